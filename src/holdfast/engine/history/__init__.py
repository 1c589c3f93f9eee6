"""What a run did, as callers read it: events, lists and streamed text."""
