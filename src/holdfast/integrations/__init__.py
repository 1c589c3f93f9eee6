"""Models of others behind the one protocol of ours; each module needs its own extra."""
