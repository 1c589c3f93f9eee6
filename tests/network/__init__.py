"""Tests of requests to addresses that others chose."""
