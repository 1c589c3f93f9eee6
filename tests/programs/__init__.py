"""Programs that are not graphs."""
