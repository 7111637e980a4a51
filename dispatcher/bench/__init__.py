"""Benchmarks: simulated, live over HTTP, and the experiments of papers."""
