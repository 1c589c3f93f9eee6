"""Buffers streamed text: readers in this process get it at once, the table a little later.

All streams of a run that this process has claimed go through one spool, in one order, so a position
in it is one number and not one for each stream. The item and index of an entry are fixed when it is
appended: a position that a reader got here names the same text in the table, for every process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.display import get_logger
from holdfast.engine.kernel.news import ChangeNotifier
from holdfast.model.node_progress import NodeProgress
from holdfast.records.keys import RunKey, SpoolKey
from holdfast.records.streamed_text import ProgressEntry, TextBatch, TextEntry, TextStream

__all__ = ["WRITE_SECONDS", "Spool", "SpooledEntry", "Spools", "TextWriteFailed"]

_log = get_logger("holdfast.tokens")

WRITE_SECONDS = 0.25
"""How long text is buffered before it is written."""
ITEM_BYTES_MAX = 100 * 1024
# Readers in this process that are not farther behind than this never read the table.
_BUFFERED_BYTES_MAX = 256 * 1024
_BUFFERED_BATCHES_MAX = 64
_CHARS_MAX = ITEM_BYTES_MAX // 4

SpooledEntry = tuple[int, int, TextEntry]
"""The number of an item, an index in it, and the entry there."""


class TextWriteFailed(Exception):
    """Text could not be written, and no more text of its run may be."""


class _Batch:
    """The entries of one item."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: list[TextEntry] = []
        self.size = 0


class Spool:
    """The streamed text of one run, as one process writes it."""

    def __init__(
        self,
        key: SpoolKey,
        generation: str,
        *,
        run: RunKey,
        write: Callable[[int, TextBatch], Awaitable[object]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.key = key
        self.generation = generation
        self._run = run
        self.streams: dict[int, TextStream] = {}
        self.broken = False
        """Whether a write failed, after which nothing more is written."""
        self.on_text: Callable[[], None] = lambda: None
        """Called when there is new text, and when the spool closes."""
        self.on_closed: Callable[[], None] = lambda: None
        """Called when all streams are closed and everything is written."""
        self._write = write
        self._sleep = sleep
        # Oldest first. Only the last batch is open; the others never change.
        self._batches = deque([_Batch(0)])
        self._next_unwritten_number = 0
        self._buffered_bytes = 0
        self._open_streams: set[int] = set()
        # The next write takes the last report of each stream.
        self._unwritten_progress: dict[int, NodeProgress] = {}
        self._lock = asyncio.Lock()
        self._writer_task: asyncio.Task[None] | None = None

    @property
    def oldest(self) -> int:
        """The number of the oldest item that is still buffered."""
        return self._batches[0].number

    def open_stream(self, stream: TextStream) -> int:
        """Open a stream; return its number."""
        number = len(self.streams)
        self.streams[number] = stream
        self._open_streams.add(number)
        return number

    def append(self, stream: int, text: str, *, first: bool, last: bool = False) -> None:
        """Add text to a stream; it is written soon."""
        if self.broken:
            return
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be stored
        parts = [text[at : at + _CHARS_MAX] for at in range(0, len(text), _CHARS_MAX)] or [""]
        for index, part in enumerate(parts):
            ends = last and index == len(parts) - 1
            self._add(TextEntry(stream, part, first and index == 0, ends))
        self.on_text()
        if self._writer_task is None:
            self._writer_task = asyncio.ensure_future(self._write_periodically())

    def report_progress(self, stream: int, progress: NodeProgress) -> None:
        """Let the next write say how far the node of a stream is, in place of an earlier report."""
        if self.broken:
            return
        self._unwritten_progress[stream] = progress
        if self._writer_task is None:
            self._writer_task = asyncio.ensure_future(self._write_periodically())

    def close_stream(self, stream: int) -> None:
        """Close a stream: no more text of it follows."""
        self._open_streams.discard(stream)
        self._unwritten_progress.pop(stream, None)
        self._close_if_done()

    def entries_since(self, number: int, index: int) -> list[SpooledEntry]:
        """Return the entries from a position on, which must not be before the oldest item."""
        found: list[SpooledEntry] = []
        for batch in self._batches:
            if batch.number >= number:
                begin = index if batch.number == number else 0
                entries = enumerate(batch.entries[begin:], begin)
                found += [(batch.number, place, entry) for place, entry in entries]
        return found

    async def flush(self) -> None:
        """Write everything that was appended so far; return when it is written, or failed."""
        self._append_progress()
        # Text that is appended meanwhile is left to the next flush, however slow the store is.
        newest = self._batches[-1].number
        async with self._lock:
            while (batch := self._first_unwritten()) is not None and batch.number <= newest:
                if batch is self._batches[-1]:
                    self._batches.append(_Batch(batch.number + 1))
                streams = {entry.stream: self.streams[entry.stream] for entry in batch.entries}
                try:
                    await self._write(batch.number, TextBatch(streams, batch.entries))
                except TextWriteFailed as error:
                    message = "%s: streamed text could not be written, and no more is: %s"
                    _log.warning(message, self._run.log_name, error)
                    self.broken = True
                    return
                self._next_unwritten_number = batch.number + 1
                self._buffered_bytes += batch.size
                self._evict_written()

    async def close(self) -> None:
        """Write nothing more; return when the write under way is resolved."""
        self.broken = True
        self._unwritten_progress.clear()
        async with self._lock:
            self._close_if_done()

    async def _write_periodically(self) -> None:
        while self._has_unwritten():
            await self.flush()
            if not self._open_streams and not self._has_unwritten():
                break
            await self._sleep(WRITE_SECONDS)
        self._writer_task = None
        self._close_if_done()

    def _first_unwritten(self) -> _Batch | None:
        """Return the first batch that is not written."""
        batch = self._batches[self._next_unwritten_number - self.oldest]
        return batch if batch.entries and not self.broken else None

    def _has_unwritten(self) -> bool:
        return bool(self._unwritten_progress) or self._first_unwritten() is not None

    def _append_progress(self) -> None:
        reported, self._unwritten_progress = self._unwritten_progress, {}
        for stream, progress in reported.items():
            self._add(ProgressEntry(stream, "", progress=progress))

    def _add(self, entry: TextEntry) -> None:
        batch, size = self._batches[-1], len(entry.text.encode())
        if isinstance(entry, ProgressEntry) and entry.progress is not None:
            size = len(entry.progress.message.encode())
        if batch.entries and batch.size + size > ITEM_BYTES_MAX:
            batch = _Batch(batch.number + 1)
            self._batches.append(batch)
        batch.entries.append(entry)
        batch.size += size

    def _evict_written(self) -> None:
        while self.oldest < self._next_unwritten_number and (
            self._buffered_bytes > _BUFFERED_BYTES_MAX or len(self._batches) > _BUFFERED_BATCHES_MAX
        ):
            self._buffered_bytes -= self._batches.popleft().size

    def _close_if_done(self) -> None:
        if self._open_streams or self._has_unwritten():
            return
        if self._writer_task is not None:
            self._writer_task.cancel()  # it only sleeps
            self._writer_task = None
        self.on_closed()
        self.on_text()


class Spools:
    """The spools of a process: one for each run with open streams."""

    def __init__(self) -> None:
        self.notifier = ChangeNotifier()
        """Apart from the journals' notifier: their readers must not be woken by every word."""
        self._open: dict[RunKey, Spool] = {}

    def get(self, run: RunKey) -> Spool | None:
        """Return the spool of a run, if it has one in this process."""
        return self._open.get(run)

    async def close(self, run: RunKey, generation: str) -> None:
        """Write no more text of a run: its data is about to be deleted."""
        spool = self.get(run)
        if spool is not None and spool.generation == generation:
            await spool.close()

    def register(self, run: RunKey, spool: Spool) -> None:
        """Use a spool for a run's text until the spool closes."""

        def remove() -> None:
            if self._open.get(run) is spool:
                del self._open[run]

        spool.on_closed = remove
        spool.on_text = lambda: self.notifier.notify(run)
        self._open[run] = spool
