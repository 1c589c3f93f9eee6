"""Writes and reads the streamed text of answers, in this process and across processes.

A cursor names a position in the order of a run's text. A process that claims the run writes into a
new spool, which sorts after all earlier ones. So a reader that continues after a cursor misses
nothing and sees nothing twice. Late text of a former owner sorts before that of the new owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from holdfast.engine.history import events
from holdfast.engine.history.cursors import TextCursor
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.kernel.spool import Spool, SpooledEntry, TextWriteFailed
from holdfast.errors import InvalidQuery
from holdfast.model.node_progress import NodeProgress
from holdfast.model.run import TextPiece
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey, SpoolKey, parsed_text_key, text_range
from holdfast.records.streamed_text import (
    ProgressEntry,
    TextBatch,
    TextEntry,
    TextStream,
    text_of,
    text_write,
)

__all__ = ["ProgressWriter", "TokenWriter", "stream_text"]

# A reader of a run in another process polls often at first, then less often.
_POLL_FIRST_SECONDS = 0.1
_POLL_SECONDS_MAX = 1.0
# If the store fails for longer, the text ends; the call goes on.
_WRITE_TIMEOUT_SECONDS = 30.0
# How often to check, after the end of the lease, whether it was renewed or lost.
_LEASE_CHECK_SECONDS = 0.05


class TokenWriter:
    """Streams the text of one answer: ``async with TokenWriter(…) as writer: …``

    Each attempt at a call has its own writer, under the same ``call``. If the block is left by an
    error, the text ends without being marked as complete.
    """

    def __init__(
        self,
        kernel: Kernel,
        head: Head,
        *,
        is_claimed: Callable[[], bool],
        is_lost: Callable[[], bool],
        call: str,
        name: str,
    ) -> None:
        """``is_claimed`` says whether this process holds the run, so that text may be written.

        ``is_lost`` says that it has lost the run for good.
        """
        self._spool = _get_or_open_spool(kernel, head, is_claimed, is_lost)
        self._stream: int | None = self._spool.open_stream(TextStream(call, name))
        self._has_text = False

    def emit(self, text: str) -> None:
        """Add text to the answer."""
        if text and self._stream is not None:
            self._append(self._stream, text)

    async def finish(self) -> None:
        """Mark the answer as complete; when this returns, all of its text is written."""
        if self._stream is None:
            return
        self._append(self._stream, "", last=True)
        try:
            await self._spool.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the text without marking the answer as complete."""
        if self._stream is not None:
            self._spool.close_stream(self._stream)
            self._stream = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.finish()
        else:
            self.abandon()

    def _append(self, stream: int, text: str, *, last: bool = False) -> None:
        self._spool.append(stream, text, first=not self._has_text, last=last)
        self._has_text = True


class ProgressWriter:
    """Lets followers in other processes see the progress of one visit, beside the streamed text."""

    def __init__(
        self,
        kernel: Kernel,
        head: Head,
        *,
        is_claimed: Callable[[], bool],
        is_lost: Callable[[], bool],
        path: str,
        node: str,
    ) -> None:
        """``path`` names the visit; the other parameters are those of `TokenWriter`."""
        self._spool = _get_or_open_spool(kernel, head, is_claimed, is_lost)
        self._stream = self._spool.open_stream(TextStream(f"%progress.{path}", node))

    def report(self, progress: NodeProgress) -> None:
        """Write a report soon; a later one takes its place until then."""
        self._spool.report_progress(self._stream, progress)

    def close(self) -> None:
        """Write nothing more: the node has ended."""
        self._spool.close_stream(self._stream)


def _get_or_open_spool(
    kernel: Kernel, head: Head, is_claimed: Callable[[], bool], is_lost: Callable[[], bool]
) -> Spool:
    """Return the spool of a claimed run; open one if there is none for this claim."""
    spool = kernel.spools.get(head.key)
    claim = (head.generation, head.epoch)
    if spool is not None and not spool.broken and (spool.generation, spool.key.epoch) == claim:
        return spool
    key = SpoolKey(head.epoch, kernel.ids.new())

    async def write(number: int, text: TextBatch) -> None:
        put = text_write(head, key, number, text, now_ms=kernel.clock.now_ms())
        # Without the claim nothing is written: another owner may have freed the run, and the text
        # would be left behind. If the lease is renewed after all, the text must go on, because the
        # answer will be recorded.
        deadline = kernel.clock.monotonic() + _WRITE_TIMEOUT_SECONDS
        while not is_lost() and (is_claimed() or kernel.clock.monotonic() < deadline):
            if is_claimed():
                deadline = kernel.clock.monotonic() + _WRITE_TIMEOUT_SECONDS
                try:
                    await kernel.resolve_write(kernel.texts, put, alive=partial(may_send, deadline))
                    return
                except ClaimLost as lost:
                    if is_claimed():
                        raise TextWriteFailed(str(lost.__cause__)) from None
            await kernel.clock.sleep(_LEASE_CHECK_SECONDS)
        raise TextWriteFailed("this process has lost the run")

    def may_send(deadline: float) -> bool:
        return is_claimed() and not is_lost() and kernel.clock.monotonic() < deadline

    spool = Spool(key, head.generation, run=head.key, write=write, sleep=kernel.clock.sleep)
    kernel.spools.register(head.key, spool)
    return spool


async def stream_text(
    kernel: Kernel, run: RunKey, *, after: TextCursor | None, follow: bool, joined: bool = True
) -> AsyncGenerator[TextPiece | None, None]:
    """Yield the text of a run's answers; with ``follow``, also new text until the run has ended.

    It yields None when it has read the row and checked the cursor. Unless the pieces are
    ``joined``, each is one entry, so that all readers get the same pieces.

    Raises:
        RunNotFound: there is no such run, or its data is no longer stored.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: an item cannot be read.
    """
    poll_seconds = _POLL_FIRST_SECONDS
    notified = asyncio.Event()
    with kernel.notifier.subscribe(run, notified), kernel.spools.notifier.subscribe(run, notified):
        head = await events.read_head_with_journal(kernel, run)
        reader = _TextReader(kernel, head, after, joined=joined)
        yield None
        while True:
            found = False
            if not reader.is_live:
                async for piece in reader.read_stored():
                    found = True
                    yield piece
            for piece in reader.read_live():
                found = True
                yield piece
            # The row was read before the text: if it had the end, all text was there.
            if not follow or head.status in ENDED:
                return
            poll_seconds = _POLL_FIRST_SECONDS if found else poll_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_seconds):
                    await notified.wait()
            poll_seconds = min(poll_seconds * 2, _POLL_SECONDS_MAX)
            # While text arrives the run has not ended, so its row is not read.
            has_news = found or (notified.is_set() and reader.is_live)
            notified.clear()
            if not has_news:
                head = await events.reread_head(kernel, head)
                reader.update_head(head)


def _is_progress(entry: TextEntry) -> bool:
    return isinstance(entry, ProgressEntry) and entry.progress is not None


class _TextReader:
    """Reads each entry of a run's text once: from the table, or live from a local spool.

    It remembers which attempt of each call it has read, and marks where another one replaces it.
    """

    def __init__(
        self, kernel: Kernel, head: Head, after: TextCursor | None, *, joined: bool
    ) -> None:
        if after is not None and after.generation != head.generation:
            raise InvalidQuery(
                f"the run {head.key.id!r} has no text at {str(after)!r}", field="after"
            )
        self._kernel = kernel
        self._head = head
        self._has_cursor = after is not None
        self._joined = joined
        self._position = after or TextCursor(head.generation, SpoolKey(0, ""), 0, 0)
        self._attempts: dict[str, tuple[SpoolKey, int]] = {}

    def update_head(self, head: Head) -> None:
        """Use the current row of the run."""
        self._head = head

    @property
    def is_live(self) -> bool:
        """Whether the next text is in a local spool, so that the table need not be read."""
        return self._live_spool() is not None

    def read_live(self) -> list[TextPiece]:
        """Return the new text of the local spool."""
        spool = self._live_spool()
        if spool is None:
            return []
        numbered = spool.entries_since(self._position.number, self._position.index)
        return list(self._take_pieces(spool.key, spool.streams, numbered))

    async def read_stored(self) -> AsyncGenerator[TextPiece, None]:
        """Yield the text in the table from the position on."""
        head, at = self._head, self._position
        here = self._local_spool()
        where = text_range(head.generation, at.spool, at.number)
        async for item in self._kernel.texts.query_all(head.key.pk, where):
            spool, number = parsed_text_key(item["SK"])
            text = text_of(item, self._kernel.limits.record_bytes_max)
            skipped = at.index if (spool, number) == (at.spool, at.number) else 0
            entries = list(enumerate(text.entries))[skipped:]
            numbered = [(number, index, entry) for index, entry in entries]
            for piece in self._take_pieces(spool, text.streams, numbered):
                yield piece
            self._position = TextCursor(head.generation, spool, number + 1, 0)
        # All text before this spool was written before the spool was opened.
        if here is not None and here.key > self._position.spool:
            self._position = TextCursor(head.generation, here.key, 0, 0)

    def _local_spool(self) -> Spool | None:
        """Return the local spool of the run, unless a later owner writes the text by now."""
        spool = self._kernel.spools.get(self._head.key)
        return spool if spool is not None and spool.key.epoch >= self._head.epoch else None

    def _live_spool(self) -> Spool | None:
        spool, at = self._local_spool(), self._position
        is_continued = spool is not None and (spool.generation, spool.key) == (
            at.generation,
            at.spool,
        )
        return spool if spool is not None and is_continued and at.number >= spool.oldest else None

    def _take_pieces(
        self, spool: SpoolKey, streams: Mapping[int, TextStream], numbered: Sequence[SpooledEntry]
    ) -> Iterable[TextPiece]:
        """Yield entries as pieces; join adjacent entries of one stream, if asked to."""
        pieces = [each for each in numbered if not _is_progress(each[2])]
        begin = 0
        for end in range(1, len(pieces) + 1):
            number, index, entry = pieces[end - 1]
            is_continued = end < len(pieces) and pieces[end][2].stream == entry.stream
            if self._joined and is_continued:
                continue
            first, stream = pieces[begin][2], streams[entry.stream]
            self._position = TextCursor(self._head.generation, spool, number, index + 1)
            attempt = (spool, entry.stream)
            restarted = self._is_restart(stream.call, attempt, first=first.first)
            self._attempts[stream.call] = attempt
            yield TextPiece(
                call=stream.call,
                name=stream.name,
                text="".join(each.text for _, _, each in pieces[begin:end]),
                cursor=str(self._position),
                last=entry.last,
                restarted=restarted,
            )
            begin = end
        if numbered:
            number, index, _ = numbered[-1]
            self._position = TextCursor(self._head.generation, spool, number, index + 1)

    def _is_restart(self, call: str, attempt: tuple[SpoolKey, int], *, first: bool) -> bool:
        """Return whether an attempt takes the place of another one that the caller has read."""
        before = self._attempts.get(call)
        if before is None:
            # The text before the cursor is unknown here: it may be that of a failed attempt.
            return first and self._has_cursor
        return before != attempt
