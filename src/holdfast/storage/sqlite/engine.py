"""`SqliteEngine`: one writer thread that commits in groups, and readers beside it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.storage.layout import LAYOUT, Layout
from holdfast.storage.operations import (
    Answer,
    ChangePage,
    Operation,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.core import SqliteCore
from holdfast.storage.sqlite.faults import fault
from holdfast.storage.sqlite.lanes import Lane
from holdfast.storage.sqlite.reading import SqliteReader

__all__ = ["MEMORY", "SqliteEngine"]

MEMORY = ":memory:"
SWEEP_ITEMS_MAX = 500
_READERS = 2
_SWEEP_SECONDS = 30.0


class _Sweep(msgspec.Struct, frozen=True):
    """Delete some of what has expired."""


class _ReadChanges(msgspec.Struct, frozen=True):
    """Read a part of the change feed."""

    after: str | None
    limit: int


_Job: TypeAlias = Operation | _Sweep | _ReadChanges


class SqliteEngine:
    """Items in one SQLite file, or in memory.

    Several processes may have one file open; what was answered is on the disk. In memory there is
    one connection only, so reads take their turn with the writes.
    """

    def __init__(
        self,
        path: str,
        *,
        layout: Layout = LAYOUT,
        clock: Clock | None = None,
        changes: bool | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Open the file, or make it.

        ``changes`` turns the change feed on or off for all who use the file; None leaves it as it
        is. ``max_bytes`` bounds what this process lets the file grow to.

        Raises:
            StoreNotFound, StoreReadOnly, StoreCorrupt, StoreMismatched: it cannot be used.
        """
        self._clock = clock or SystemClock()
        self._core = SqliteCore(
            path, layout=layout, clock=self._clock, changes=changes, max_bytes=max_bytes
        )
        self._sweep_due = self._clock.monotonic()
        self._own_reader = SqliteReader(self._core.connection, path)
        self._readers = [] if path == MEMORY else [_reader(path) for _ in range(_READERS)]
        self._writing: Lane[_Job, Answer] = Lane("writer", [self._work], idle=self._sweep_if_due)
        self._reading: Lane[_Job, Answer] = self._writing
        if self._readers:
            self._reading = Lane("reader", [_reading_with(reader) for reader in self._readers])

    @property
    def layout(self) -> Layout:
        return self._core.layout

    def perform(self, operation: Operation) -> Awaitable[Answer]:
        lane = self._writing if _is_write(operation) else self._reading
        return lane.run(operation)

    async def changes(self, after: str | None, limit: int) -> ChangePage:
        return _value(await self._reading.run(_ReadChanges(after, limit)))

    async def sweep(self) -> int:
        """Delete what has expired, at most 500 items; return how many.

        The engine does this by itself in the background.
        """
        return _value(await self._writing.run(_Sweep()))

    async def create(self) -> None:
        """Do nothing: to open the file was to make it."""

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._reading.close()
        self._writing.close()
        for reader in self._readers:
            reader.close()
        self._core.close()

    def _work(self, jobs: list[_Job]) -> list[Answer]:
        """Do the writer's jobs: neighbouring writes in one commit, anything else for itself."""
        answers: list[Answer] = []
        for are_writes, group in groupby(jobs, _is_write):
            if are_writes:
                answers += self._core.apply(list(group))  # type: ignore[arg-type]
            else:
                answers += [self._alone(job) for job in group]
        self._sweep_if_due()
        return answers

    def _alone(self, job: _Job) -> Answer:
        if not isinstance(job, _Sweep):
            return _read(self._own_reader, job)
        try:
            return Answer(self._core.sweep(SWEEP_ITEMS_MAX))
        except HoldfastError as error:
            return Answer(error=error)

    def _sweep_if_due(self) -> float:
        """Sweep now and then; return in how many seconds there may be something to sweep again."""
        now = self._clock.monotonic()
        if now >= self._sweep_due:
            # A store that cannot be swept now (full, locked) tells its writers so by itself.
            swept = self._alone(_Sweep()).value or 0
            self._sweep_due = now if swept == SWEEP_ITEMS_MAX else now + _SWEEP_SECONDS
        return max(self._sweep_due - now, 0)


def _is_write(job: _Job) -> bool:
    return isinstance(job, WriteItem | TransactItems | WriteItems)


def _reader(path: str) -> SqliteReader:
    try:
        connection = schema.connected(path)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise fault(error, path) from error
    return SqliteReader(connection, path)


def _reading_with(reader: SqliteReader) -> Any:
    def work(jobs: Sequence[_Job]) -> list[Answer]:
        return [_read(reader, job) for job in jobs]

    return work


def _read(reader: SqliteReader, job: Any) -> Answer:
    if not isinstance(job, _ReadChanges):
        return reader.read(job)
    try:
        return Answer(reader.changes(job.after, job.limit))
    except HoldfastError as error:
        return Answer(error=error)


def _value(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value
