"""The values of a run, without any doing: what happened, what is to be done, what was promised."""
