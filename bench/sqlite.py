"""Durable conditional 1 KB writes on SQLite, against bare sqlite3 loops that insert the same."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, in_turns, ratio, show
from holdfast.clock import SystemIds
from holdfast.storage.open import open as open_store
from holdfast.storage.writes import Absent, Put

IN_FLIGHT = 32
ROUNDS = 7
WRITES = 16_000
WRITES_SINGLE = 1_500
BODY = random.Random(1).randbytes(1024)


def bare(writes: int, group: int) -> float:
    """Insert rows with sqlite3 alone, so many to a commit; return rows a second."""
    ids = SystemIds()
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, pk TEXT NOT NULL, sk TEXT NOT NULL,"
            " body BLOB NOT NULL)"
        )
        connection.execute("CREATE UNIQUE INDEX items_key ON items (pk, sk)")
        started = time.perf_counter()
        for _ in range(writes // group):
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(group):
                inserted = connection.execute(
                    "INSERT INTO items (pk, sk, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (f"RUN#{ids.new()}", "HEAD", BODY),
                )
                assert inserted.rowcount == 1  # conditional, as ours are
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
        connection.close()
    return writes / seconds


def ours(*, changes: str) -> float:
    """Put items that must be new through the whole of the table; return writes a second."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_ours(Path(folder), changes))


async def _ours(folder: Path, changes: str) -> float:
    ids = SystemIds()
    left = iter(range(WRITES))
    async with open_store(f"sqlite:///{folder}/ours.db?changes={changes}") as store:

        async def write() -> None:
            for _ in left:
                item = {"PK": f"RUN#{ids.new()}", "SK": "HEAD", "body": BODY}
                await store.table.write(Put(item, Absent("PK")))

        started = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(IN_FLIGHT)))
        return WRITES / (time.perf_counter() - started)


def measure() -> list[Figure]:
    rounds = in_turns(
        {
            "bare sqlite3, 32 rows a commit": lambda: bare(WRITES, IN_FLIGHT),
            "bare sqlite3, 1 row a commit": lambda: bare(WRITES_SINGLE, 1),
            "ours, 32 in flight": lambda: ours(changes="off"),
            "ours, 32 in flight, change feed on": lambda: ours(changes="on"),
        },
        ROUNDS,
    )
    show(rounds, "writes/s")
    group = "bare sqlite3, 32 rows a commit"
    return [
        Figure(
            "SQLite writes, 32 in flight / bare group commit",
            ratio(rounds, "ours, 32 in flight", group),
            at_least=0.45,
        ),
        Figure(
            "SQLite writes with the change feed on / bare group commit",
            ratio(rounds, "ours, 32 in flight, change feed on", group),
            at_least=0.30,
        ),
        Figure(
            "SQLite writes, 32 in flight / one commit a write",
            ratio(rounds, "ours, 32 in flight", "bare sqlite3, 1 row a commit"),
            at_least=3,
        ),
    ]
