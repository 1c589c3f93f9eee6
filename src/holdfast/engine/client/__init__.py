"""What a process offers its callers: starts, commands, results, bulk actions, sweeps."""
