"""The SQLite engine: one file, on a laptop or in a small production.

Read `writer` and `reader` first (synchronous access to the file), then `engine` (the threads).
"""

from holdfast.storage.sqlite.engine import MEMORY, SqliteEngine

__all__ = ["MEMORY", "SqliteEngine"]
