"""Checks of the source that no linter has: run by ``make check``."""
