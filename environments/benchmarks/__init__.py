"""Benchmarks: environments that only evaluate."""
