"""What a process offers its callers: starting runs, commands, waiting, bulk actions, sweeps."""
