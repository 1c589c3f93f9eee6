"""Reviews: questions of runs to people, and how they are decided."""
