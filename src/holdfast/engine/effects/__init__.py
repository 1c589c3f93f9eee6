"""What a node does to the world: calls, models, quotas and shared answers."""
