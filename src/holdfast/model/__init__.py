"""The values of runs, and pure functions on them. No input or output, no clock."""
