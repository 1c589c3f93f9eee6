"""Requests to addresses that others chose, kept away from what only this machine can reach."""
