"""`SqliteEngine`: one writer thread, which commits in groups, and several reader threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreClosed, StoreError, StoreReplaced, Throttled
from holdfast.storage.layout import LAYOUT, Layout
from holdfast.storage.operations import (
    ChangePage,
    Operation,
    Reply,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.sqlite import schema
from holdfast.storage.sqlite.file_guard import FileGuard
from holdfast.storage.sqlite.job_threads import JobThreads
from holdfast.storage.sqlite.reader import SqliteReader
from holdfast.storage.sqlite.schema import MEMORY
from holdfast.storage.sqlite.writer import SqliteWriter
from holdfast.storage.units import sum_units
from holdfast.storage.writes import Delete, Put

__all__ = ["MEMORY", "SqliteEngine"]

SWEEP_ITEMS_MAX = 500
_READERS = 2
_WRITES = (WriteItem, TransactItems, WriteItems)
_COMMIT_WRITES_MAX = 500
_SWEEP_SECONDS = 30.0
_OPEN_ATTEMPTS_MAX = 3


class _SweepJob(msgspec.Struct, frozen=True):
    """Delete some expired items."""


class _ReadChangesJob(msgspec.Struct, frozen=True):
    """Read a page of the change feed."""

    after: str | None
    limit: int


_Job: TypeAlias = Operation | _SweepJob | _ReadChangesJob


class SqliteEngine:
    """Items in one SQLite file, or in memory.

    Several processes may have one file open. A write is on the disk when it returns. In memory
    there is only one connection, so reads and writes share one thread.
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
        """Open or create the file, for which other processes may keep it locked for 30 seconds.

        In a coroutine, a locked file does not block the event loop: a thread opens it, and
        operations wait for that. They raise the errors below, and `Throttled` if it stays locked.

        ``changes`` turns the change feed on or off for all users of the file; None leaves it
        unchanged. This process does not let the file grow over ``max_bytes``. With ``make=False``
        the file must exist.

        Raises:
            StoreNotFound, StoreReadOnly, StoreCorrupt, StoreMismatched: the file cannot be used.
            StoreReplaced: other processes replaced the file each time it was opened.
        """
        self._clock = clock or SystemClock()
        self._layout = layout
        self._readers: list[SqliteReader] = []
        self._open = partial(self._open_file, path, changes=changes, max_bytes=max_bytes, make=make)
        self._opening: Future[None] | None = None
        self._closed = False
        if not _is_in_event_loop():
            self._open(busy_ms=None)
            return
        try:
            self._open(busy_ms=0)
        except Throttled:
            self._open_in_thread()

    def _open_file(
        self,
        path: str,
        *,
        busy_ms: int | None,
        changes: bool | None,
        max_bytes: int | None,
        make: bool,
    ) -> None:
        for attempt in range(1, _OPEN_ATTEMPTS_MAX + 1):
            try:
                self._writer = SqliteWriter(
                    path,
                    layout=self._layout,
                    clock=self._clock,
                    changes=changes,
                    max_bytes=max_bytes,
                    make=make,
                    busy_ms=busy_ms,
                )
                self._open_readers(path, busy_ms)
                break
            except StoreReplaced:  # another process is restoring it
                if attempt == _OPEN_ATTEMPTS_MAX:
                    raise
        self._own_reader = SqliteReader(self._writer.connection, path)
        self._sweep_due = self._clock.monotonic()
        self._writer_threads: JobThreads[_Job, Reply] = JobThreads(
            "writer", [self._run_writer_jobs], after_batch=self._sweep_if_due
        )
        self._reader_threads: JobThreads[_Job, Reply] = self._writer_threads
        if self._readers:
            guard = self._writer.guard
            self._reader_threads = JobThreads(
                "reader", [_make_read_runner(reader, guard) for reader in self._readers]
            )

    def _open_in_thread(self) -> Future[None]:
        """Open the file in a thread, and return the future of that."""
        opening: Future[None] = Future()

        def run() -> None:
            try:
                self._open(busy_ms=None)
            except BaseException as error:
                opening.set_exception(error)
            else:
                self._opening = None
                opening.set_result(None)

        self._opening = opening  # before the thread sets it to None
        threading.Thread(target=run, name="holdfast-opening", daemon=True).start()
        return opening

    async def _wait_until_open(self) -> None:
        """Wait for the thread that opens the file; begin again if an earlier one failed."""
        opening = self._opening
        if self._closed:
            raise StoreClosed
        if opening is not None and opening.done():
            opening = self._open_in_thread()
        if opening is not None:
            await asyncio.shield(asyncio.wrap_future(opening))

    def _open_readers(self, path: str, busy_ms: int | None) -> None:
        try:
            while path != MEMORY and len(self._readers) < _READERS:
                self._readers.append(SqliteReader(schema.open_for_reading(path, busy_ms), path))
            if self._writer.guard is not None:
                self._writer.guard.check()
        except BaseException:
            self._close_files()
            raise

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def poll_seconds(self) -> float:
        return 0.15  # reads of a file cost nothing

    def perform(self, operation: Operation) -> Awaitable[Reply]:
        if self._opening is not None:
            return self._perform_when_open(operation)
        if isinstance(operation, WriteItems) and len(operation.writes) > _COMMIT_WRITES_MAX:
            return self._write_in_parts(operation.writes)
        threads = self._writer_threads if _is_write(operation) else self._reader_threads
        return threads.submit(operation)

    async def _perform_when_open(self, operation: Operation) -> Reply:
        await self._wait_until_open()
        return await self.perform(operation)

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        await self._wait_until_open()
        return _unwrap(await self._reader_threads.submit(_ReadChangesJob(after, limit)))

    async def sweep(self) -> int:
        """Delete up to 500 expired items; return how many were deleted.

        The engine also does this in the background.
        """
        await self._wait_until_open()
        return _unwrap(await self._writer_threads.submit(_SweepJob()))

    async def create(self) -> None:
        """Do nothing: opening the file created it."""

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close_blocking)

    async def _write_in_parts(self, writes: Sequence[Put | Delete]) -> Reply:
        """Write a large batch in several commits, since it is not a transaction."""
        parts = [
            WriteItems(tuple(writes[start : start + _COMMIT_WRITES_MAX]))
            for start in range(0, len(writes), _COMMIT_WRITES_MAX)
        ]
        replies = [await self._writer_threads.submit(part) for part in parts]
        errors = (reply.error for reply in replies if reply.error is not None)
        return Reply(units=sum_units(reply.units for reply in replies), error=next(errors, None))

    def _close_blocking(self) -> None:
        self._closed = True
        opening = self._opening
        if opening is not None and opening.exception() is not None:
            return  # it was never open
        self._reader_threads.close()
        self._writer_threads.close()
        self._close_files()

    def _close_files(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._writer.close()

    def _run_writer_jobs(self, jobs: list[_Job]) -> list[Reply]:
        """Run the writer's jobs: adjacent writes in one commit, all others one by one."""
        replies: list[Reply] = []
        for are_writes, group in groupby(jobs, _is_write):
            if are_writes:
                replies += self._writer.apply(list(group))  # type: ignore[arg-type]
            else:
                replies += [self._run_single(job) for job in group]
        return replies

    def _run_single(self, job: _Job) -> Reply:
        if not isinstance(job, _SweepJob):
            return _run_read(self._own_reader, job)
        try:
            return Reply(self._writer.sweep(SWEEP_ITEMS_MAX))
        except Exception as error:
            return Reply(error=error)

    def _sweep_if_due(self) -> float:
        """Sweep if it is time; return after how many seconds to sweep again."""
        now = self._clock.monotonic()
        if now >= self._sweep_due:
            # If the store cannot be swept now (full, locked), the next write reports it.
            swept = self._run_single(_SweepJob()).value or 0
            self._sweep_due = now if swept == SWEEP_ITEMS_MAX else now + _SWEEP_SECONDS
        return max(self._sweep_due - now, 0)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_write(job: _Job) -> bool:
    return isinstance(job, _WRITES)


def _make_read_runner(
    reader: SqliteReader, guard: FileGuard | None
) -> Callable[[list[_Job]], list[Reply]]:
    def read(jobs: list[_Job]) -> list[Reply]:
        try:
            if guard is not None:
                guard.check_file()
        except StoreError as error:
            return [Reply(error=error) for _ in jobs]
        return [_run_read(reader, job) for job in jobs]

    return read


def _run_read(reader: SqliteReader, job: Any) -> Reply:
    try:
        if isinstance(job, _ReadChangesJob):
            return Reply(reader.read_changes(job.after, job.limit))
        return reader.read(job)
    except Exception as error:
        return Reply(error=error)


def _unwrap(reply: Reply) -> Any:
    if reply.error is not None:
        raise reply.error
    return reply.value
