"""Live streams: one reader of the store for all followers of a run or of a list."""
