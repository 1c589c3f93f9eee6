"""Text on its way into the table: collected, written now and then, and heard here at once.

All streams of a run that a process holds go through one spool, in one order, so that a place in it
is one number and not one for each stream. What is in an item, and where, is settled when it is
said: so a place that somebody heard here names the same text in the table, for everybody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.display import log_named
from holdfast.engine.kernel.news import News
from holdfast.records.keys import RunKey, SpoolKey
from holdfast.records.tokens import Entry, Stream, Text

__all__ = ["WRITE_SECONDS", "Said", "Spool", "Spools", "Unwritten"]

_log = log_named("holdfast.tokens")

WRITE_SECONDS = 0.25
"""How long text is collected before it is written."""
ITEM_BYTES_MAX = 100 * 1024
# Those who follow here and are not that far behind never ask the table.
_HEARD_BYTES_MAX = 256 * 1024
_HEARD_BATCHES_MAX = 64
_LETTERS_MAX = ITEM_BYTES_MAX // 4

Said = tuple[int, int, Entry]
"""An entry, after the number of its item and its index there."""


class Unwritten(Exception):
    """Text that could not be written, and must not be any more."""


class _Batch:
    """What goes into one item."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: list[Entry] = []
        self.size = 0


class Spool:
    """The text of one run, as one process writes it."""

    def __init__(
        self,
        key: SpoolKey,
        generation: str,
        *,
        run: RunKey,
        write: Callable[[int, Text], Awaitable[object]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.key = key
        self.generation = generation
        self._run = run
        self.streams: dict[int, Stream] = {}
        self.broken = False
        """Whether something could not be written, so that nothing more is."""
        self.heard: Callable[[], None] = lambda: None
        """Is called whenever there is something new, and when it is over."""
        self.over: Callable[[], None] = lambda: None
        """Is called once nobody speaks any more, and everything is written."""
        self._write = write
        self._sleep = sleep
        # The oldest first; the last one is open, and the others never change.
        self._batches = deque([_Batch(0)])
        self._written = 0
        self._kept_bytes = 0
        self._speakers: set[int] = set()
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None

    @property
    def oldest(self) -> int:
        """The number of the oldest item that can still be heard here."""
        return self._batches[0].number

    def begin(self, stream: Stream) -> int:
        """Return the number of a stream that begins."""
        number = len(self.streams)
        self.streams[number] = stream
        self._speakers.add(number)
        return number

    def say(self, stream: int, text: str, *, first: bool, last: bool = False) -> None:
        """Take in some text of a stream; it is written soon."""
        if self.broken:
            return
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be kept
        parts = [text[at : at + _LETTERS_MAX] for at in range(0, len(text), _LETTERS_MAX)] or [""]
        for index, part in enumerate(parts):
            ends = last and index == len(parts) - 1
            self._add(Entry(stream, part, first and index == 0, ends))
        self.heard()
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write_now_and_then())

    def end(self, stream: int) -> None:
        """Hear no more of a stream."""
        self._speakers.discard(stream)
        self._leave_if_over()

    def since(self, number: int, index: int) -> list[Said]:
        """Return what was said from a place on; it must not be before the oldest item."""
        said: list[Said] = []
        for batch in self._batches:
            if batch.number >= number:
                begin = index if batch.number == number else 0
                entries = enumerate(batch.entries[begin:], begin)
                said += [(batch.number, place, entry) for place, entry in entries]
        return said

    async def flush(self) -> None:
        """Return when everything that was said by now is written, or cannot be."""
        # What is said meanwhile waits for its turn, however slow the store is.
        newest = self._batches[-1].number
        async with self._lock:
            while (batch := self._unwritten()) is not None and batch.number <= newest:
                if batch is self._batches[-1]:
                    self._batches.append(_Batch(batch.number + 1))
                streams = {entry.stream: self.streams[entry.stream] for entry in batch.entries}
                try:
                    await self._write(batch.number, Text(streams, batch.entries))
                except Unwritten as error:
                    told = "%s: text cannot be written, and is not any more: %s"
                    _log.warning(told, self._run.told, error)
                    self.broken = True
                    return
                self._written = batch.number + 1
                self._kept_bytes += batch.size
                self._forget()

    async def close(self) -> None:
        """Write nothing more; return when the fate of what is being written is known."""
        self.broken = True
        async with self._lock:
            self._leave_if_over()

    async def _write_now_and_then(self) -> None:
        while self._unwritten() is not None:
            await self.flush()
            if not self._speakers and self._unwritten() is None:
                break
            await self._sleep(WRITE_SECONDS)
        self._writing = None
        self._leave_if_over()

    def _unwritten(self) -> _Batch | None:
        """Return the first batch that is not written."""
        batch = self._batches[self._written - self.oldest]
        return batch if batch.entries and not self.broken else None

    def _add(self, entry: Entry) -> None:
        batch, size = self._batches[-1], len(entry.text.encode())
        if batch.entries and batch.size + size > ITEM_BYTES_MAX:
            batch = _Batch(batch.number + 1)
            self._batches.append(batch)
        batch.entries.append(entry)
        batch.size += size

    def _forget(self) -> None:
        while self.oldest < self._written and (
            self._kept_bytes > _HEARD_BYTES_MAX or len(self._batches) > _HEARD_BATCHES_MAX
        ):
            self._kept_bytes -= self._batches.popleft().size

    def _leave_if_over(self) -> None:
        if self._speakers or self._unwritten() is not None:
            return
        if self._writing is not None:
            self._writing.cancel()  # it only sleeps
            self._writing = None
        self.over()
        self.heard()


class Spools:
    """The spools of a process: of each run that is speaking, one."""

    def __init__(self) -> None:
        self.news = News()
        """Apart from that of journals: whoever follows these need not hear of every word."""
        self._open: dict[RunKey, Spool] = {}

    def of(self, run: RunKey) -> Spool | None:
        """Return what is spoken of a run here, if anything is."""
        return self._open.get(run)

    async def close(self, run: RunKey, generation: str) -> None:
        """Write no more text of a run: what it keeps is about to be freed."""
        spool = self.of(run)
        if spool is not None and spool.generation == generation:
            await spool.close()

    def open(self, run: RunKey, spool: Spool) -> None:
        """Let a run's text go through a spool from now on, until that is over."""

        def over() -> None:
            if self._open.get(run) is spool:
                del self._open[run]

        spool.over = over
        spool.heard = lambda: self.news.tell(run)
        self._open[run] = spool
