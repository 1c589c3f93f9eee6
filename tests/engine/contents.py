"""All that a store on SQLite holds, in plain text: what must be deleted must not be in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.records.codec import unpack_value


def stored(file: Path, blobs: Iterator[bytes]) -> str:
    """Return all that is stored in all tables of a file, and in the blobs, in plain text."""
    found = list(map(plain, blobs))
    connection = sqlite3.connect(file)
    try:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in named.fetchall():
            found += [plain(row) for row in connection.execute(f"SELECT * FROM {name}")]
    finally:
        connection.close()
    return "\n".join(found)


def plain(value: Any) -> str:
    """Return a stored value with the packed bytes in it unpacked."""
    if isinstance(value, bytes):
        for read in (unpack_value, msgspec.msgpack.decode):
            with suppress(Exception):
                return plain(read(value))
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return plain(list(cast(dict[Any, Any], value).items()))
    if isinstance(value, list | tuple):
        return " ".join(map(plain, cast(Iterable[Any], value)))
    if isinstance(value, str) and value.startswith("{"):
        return plain(msgspec.json.decode(value))
    return str(value)


def blobs_in(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".db" not in path.name:
            yield path.read_bytes()
