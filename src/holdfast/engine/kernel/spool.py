"""Text on its way into the table: collected, written now and then, and heard here at once.

All streams of a run that a process holds go through one spool, in one order, so that a place in it
is one number and not one for each stream. What is in an item, and where, is settled when it is
said: so a place that somebody heard here names the same text in the table, for everybody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.display import get_logger
from holdfast.engine.kernel.news import ChangeNotifier
from holdfast.records.keys import RunKey, SpoolKey
from holdfast.records.streamed_text import TextBatch, TextEntry, TextStream

__all__ = ["WRITE_SECONDS", "Spool", "SpooledEntry", "Spools", "TextWriteFailed"]

_log = get_logger("holdfast.tokens")

WRITE_SECONDS = 0.25
"""How long text is collected before it is written."""
ITEM_BYTES_MAX = 100 * 1024
# Those who follow here and are not that far behind never ask the table.
_BUFFERED_BYTES_MAX = 256 * 1024
_BUFFERED_BATCHES_MAX = 64
_CHARS_MAX = ITEM_BYTES_MAX // 4

SpooledEntry = tuple[int, int, TextEntry]
"""An entry, after the number of its item and its index there."""


class TextWriteFailed(Exception):
    """Text that could not be written, and must not be any more."""


class _Batch:
    """What goes into one item."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: list[TextEntry] = []
        self.size = 0


class Spool:
    """The text of one run, as one process writes it."""

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
        """Whether something could not be written, so that nothing more is."""
        self.on_text: Callable[[], None] = lambda: None
        """Is called whenever there is something new, and when it is over."""
        self.on_closed: Callable[[], None] = lambda: None
        """Is called once nobody speaks any more, and everything is written."""
        self._write = write
        self._sleep = sleep
        # The oldest first; the last one is open, and the others never change.
        self._batches = deque([_Batch(0)])
        self._next_unwritten_number = 0
        self._buffered_bytes = 0
        self._open_streams: set[int] = set()
        self._lock = asyncio.Lock()
        self._writer_task: asyncio.Task[None] | None = None

    @property
    def oldest(self) -> int:
        """The number of the oldest item that can still be heard here."""
        return self._batches[0].number

    def open_stream(self, stream: TextStream) -> int:
        """Return the number of a stream that begins."""
        number = len(self.streams)
        self.streams[number] = stream
        self._open_streams.add(number)
        return number

    def append(self, stream: int, text: str, *, first: bool, last: bool = False) -> None:
        """Take in some text of a stream; it is written soon."""
        if self.broken:
            return
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be kept
        parts = [text[at : at + _CHARS_MAX] for at in range(0, len(text), _CHARS_MAX)] or [""]
        for index, part in enumerate(parts):
            ends = last and index == len(parts) - 1
            self._add(TextEntry(stream, part, first and index == 0, ends))
        self.on_text()
        if self._writer_task is None:
            self._writer_task = asyncio.ensure_future(self._write_periodically())

    def close_stream(self, stream: int) -> None:
        """Hear no more of a stream."""
        self._open_streams.discard(stream)
        self._close_if_done()

    def entries_since(self, number: int, index: int) -> list[SpooledEntry]:
        """Return what was said from a place on; it must not be before the oldest item."""
        found: list[SpooledEntry] = []
        for batch in self._batches:
            if batch.number >= number:
                begin = index if batch.number == number else 0
                entries = enumerate(batch.entries[begin:], begin)
                found += [(batch.number, place, entry) for place, entry in entries]
        return found

    async def flush(self) -> None:
        """Return when everything that was said by now is written, or cannot be."""
        # What is said meanwhile waits for its turn, however slow the store is.
        newest = self._batches[-1].number
        async with self._lock:
            while (batch := self._first_unwritten()) is not None and batch.number <= newest:
                if batch is self._batches[-1]:
                    self._batches.append(_Batch(batch.number + 1))
                streams = {entry.stream: self.streams[entry.stream] for entry in batch.entries}
                try:
                    await self._write(batch.number, TextBatch(streams, batch.entries))
                except TextWriteFailed as error:
                    message = "%s: text cannot be written, and is not any more: %s"
                    _log.warning(message, self._run.log_name, error)
                    self.broken = True
                    return
                self._next_unwritten_number = batch.number + 1
                self._buffered_bytes += batch.size
                self._evict_written()

    async def close(self) -> None:
        """Write nothing more; return when the fate of what is being written is known."""
        self.broken = True
        async with self._lock:
            self._close_if_done()

    async def _write_periodically(self) -> None:
        while self._first_unwritten() is not None:
            await self.flush()
            if not self._open_streams and self._first_unwritten() is None:
                break
            await self._sleep(WRITE_SECONDS)
        self._writer_task = None
        self._close_if_done()

    def _first_unwritten(self) -> _Batch | None:
        """Return the first batch that is not written."""
        batch = self._batches[self._next_unwritten_number - self.oldest]
        return batch if batch.entries and not self.broken else None

    def _add(self, entry: TextEntry) -> None:
        batch, size = self._batches[-1], len(entry.text.encode())
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
        if self._open_streams or self._first_unwritten() is not None:
            return
        if self._writer_task is not None:
            self._writer_task.cancel()  # it only sleeps
            self._writer_task = None
        self.on_closed()
        self.on_text()


class Spools:
    """The spools of a process: of each run that is speaking, one."""

    def __init__(self) -> None:
        self.notifier = ChangeNotifier()
        """Apart from that of journals: whoever follows these need not hear of every word."""
        self._open: dict[RunKey, Spool] = {}

    def get(self, run: RunKey) -> Spool | None:
        """Return what is spoken of a run here, if anything is."""
        return self._open.get(run)

    async def close(self, run: RunKey, generation: str) -> None:
        """Write no more text of a run: what it keeps is about to be freed."""
        spool = self.get(run)
        if spool is not None and spool.generation == generation:
            await spool.close()

    def register(self, run: RunKey, spool: Spool) -> None:
        """Let a run's text go through a spool from now on, until that is over."""

        def over() -> None:
            if self._open.get(run) is spool:
                del self._open[run]

        spool.on_closed = over
        spool.on_text = lambda: self.notifier.notify(run)
        self._open[run] = spool
