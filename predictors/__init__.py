"""Predictors: output length, time per instance, prompt tokens. One file per method."""
