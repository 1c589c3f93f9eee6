"""The kit for tests of workflows: a store in memory, a manual clock, scripted models, one node."""
