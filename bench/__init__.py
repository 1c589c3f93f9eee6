"""Benchmarks: ``make bench``. Every bar but one is on a ratio against a baseline of the same run.

The exception is the CPU that a step of the kernel costs, in milliseconds.
"""
