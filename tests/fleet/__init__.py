"""Tests of what operators ask about the fleet."""
