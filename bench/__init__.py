"""Benchmarks: ``make bench``. Every figure is a ratio against a baseline of the same run."""
