"""`SqliteEngine`: one writer thread that commits in groups, and readers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError, StoreReplaced
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
from holdfast.storage.sqlite.lanes import Lane
from holdfast.storage.sqlite.place import FileGuard
from holdfast.storage.sqlite.reading import SqliteReader
from holdfast.storage.sqlite.schema import MEMORY
from holdfast.storage.units import total
from holdfast.storage.writes import Delete, Put

__all__ = ["MEMORY", "SqliteEngine"]

SWEEP_ITEMS_MAX = 500
_READERS = 2
_WRITES = (WriteItem, TransactItems, WriteItems)
_WRITES_AT_ONCE_MAX = 500
_SWEEP_SECONDS = 30.0
_OPENING_ATTEMPTS = 3


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
        make: bool = True,
    ) -> None:
        """Open the file, or make it. This may wait for other processes, 30 seconds at most.

        ``changes`` turns the change feed on or off for all who use the file; None leaves it as it
        is. ``max_bytes`` bounds what this process lets the file grow to.

        Raises:
            StoreNotFound, StoreReadOnly, StoreCorrupt, StoreMismatched: it cannot be used.
            StoreReplaced: it is replaced again and again while it is opened.
        """
        self._clock = clock or SystemClock()
        self._readers: list[SqliteReader] = []
        for attempt in range(1, _OPENING_ATTEMPTS + 1):
            try:
                self._core = SqliteCore(
                    path,
                    layout=layout,
                    clock=self._clock,
                    changes=changes,
                    max_bytes=max_bytes,
                    make=make,
                )
                self._open_readers(path)
                break
            except StoreReplaced:  # another process restores it at this moment
                if attempt == _OPENING_ATTEMPTS:
                    raise
        self._own_reader = SqliteReader(self._core.connection, path)
        self._sweep_due = self._clock.monotonic()
        self._writing: Lane[_Job, Answer] = Lane("writer", [self._work], between=self._sweep_if_due)
        self._reading: Lane[_Job, Answer] = self._writing
        if self._readers:
            guard = self._core.guard
            self._reading = Lane(
                "reader", [_reading_with(reader, guard) for reader in self._readers]
            )

    def _open_readers(self, path: str) -> None:
        try:
            while path != MEMORY and len(self._readers) < _READERS:
                self._readers.append(SqliteReader(schema.opened_for_reading(path), path))
            if self._core.guard is not None:
                self._core.guard.check()
        except BaseException:
            self._close_files()
            raise

    @property
    def layout(self) -> Layout:
        return self._core.layout

    def perform(self, operation: Operation) -> Awaitable[Answer]:
        if isinstance(operation, WriteItems) and len(operation.writes) > _WRITES_AT_ONCE_MAX:
            return self._write_in_parts(operation.writes)
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

    async def _write_in_parts(self, writes: Sequence[Put | Delete]) -> Answer:
        """Write a large batch in several commits, since it need not be one."""
        parts = [
            WriteItems(tuple(writes[start : start + _WRITES_AT_ONCE_MAX]))
            for start in range(0, len(writes), _WRITES_AT_ONCE_MAX)
        ]
        answers = [await self._writing.run(part) for part in parts]
        errors = (answer.error for answer in answers if answer.error is not None)
        return Answer(units=total(answer.units for answer in answers), error=next(errors, None))

    def _close(self) -> None:
        self._reading.close()
        self._writing.close()
        self._close_files()

    def _close_files(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._core.close()

    def _work(self, jobs: list[_Job]) -> list[Answer]:
        """Do the writer's jobs: neighbouring writes in one commit, anything else for itself."""
        answers: list[Answer] = []
        for are_writes, group in groupby(jobs, _is_write):
            if are_writes:
                answers += self._core.apply(list(group))  # type: ignore[arg-type]
            else:
                answers += [self._alone(job) for job in group]
        return answers

    def _alone(self, job: _Job) -> Answer:
        if not isinstance(job, _Sweep):
            return _read(self._own_reader, job)
        try:
            return Answer(self._core.sweep(SWEEP_ITEMS_MAX))
        except Exception as error:
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
    return isinstance(job, _WRITES)


def _reading_with(
    reader: SqliteReader, guard: FileGuard | None
) -> Callable[[list[_Job]], list[Answer]]:
    def read(jobs: list[_Job]) -> list[Answer]:
        try:
            if guard is not None:
                guard.check_file()
        except StoreError as error:
            return [Answer(error=error) for _ in jobs]
        return [_read(reader, job) for job in jobs]

    return read


def _read(reader: SqliteReader, job: Any) -> Answer:
    try:
        if isinstance(job, _ReadChanges):
            return Answer(reader.changes(job.after, job.limit))
        return reader.read(job)
    except Exception as error:
        return Answer(error=error)


def _value(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value
