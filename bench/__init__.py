"""Benchmarks: ``make bench``. A bar on time is on a ratio against a baseline of the same run.

The exceptions are the CPU that a step of the kernel and a call cost, in milliseconds, and how long
a flood may delay others. Writes, and effects that are done twice, are counted.
"""
