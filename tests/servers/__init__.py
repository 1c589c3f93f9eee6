"""Real services on this machine, for tests and benchmarks, each a module with a `serve()`."""
