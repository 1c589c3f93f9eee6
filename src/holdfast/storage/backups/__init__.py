"""Backup and restore of a store in a SQLite file, as a copy that needs nothing else.

A backup of ``runs.db`` is a file and a folder of blobs, ``copy.db`` and ``copy.db.blobs``. Together
they are a store that can be opened. `copies` makes it, `backup` and `restore` use it.
"""
