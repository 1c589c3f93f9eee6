"""The embedded engine: one SQLite file, on a laptop or in a small production.

Read `core` first (what happens to the file, synchronously), then `engine` (the threads around it).
"""

from holdfast.storage.sqlite.engine import MEMORY, SqliteEngine

__all__ = ["MEMORY", "SqliteEngine"]
