"""The journal of a run: its owner writes it, and every process can read it."""
