"""Scheduling policies: routing, ordering, admission. One file per published algorithm."""
