"""Tests of access to a store over a network."""
