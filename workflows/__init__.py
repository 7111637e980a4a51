"""Workflows: the stage tracker, deadlines and budgets, templates learned from history."""
