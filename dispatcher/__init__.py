"""Headway: a dispatcher proxy for agent applications over mixed vLLM fleets."""
