"""Models of other services behind the Model protocol; each module needs its own extra."""
