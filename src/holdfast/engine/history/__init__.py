"""What callers read about runs: events, lists and streamed text."""
