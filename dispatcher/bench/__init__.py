"""Compares policies on the same work: in the simulator, over HTTP, and beside papers' claims."""
