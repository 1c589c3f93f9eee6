"""Executes a claimed run: drives its program, runs its nodes, pauses it and ends it."""
