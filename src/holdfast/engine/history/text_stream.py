"""The text of answers as it comes: for whoever follows the run, in this process or in another.

A cursor names a place in the order in which a run's text was said. Who takes a run over writes into
a spool behind all others. So whoever goes on after a cursor misses nothing and sees nothing twice;
and what somebody still says who does not know that the run was taken from it, comes before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from holdfast.engine.history import events
from holdfast.engine.history.cursors import TextCursor
from holdfast.engine.kernel.kernel import Dropped, Kernel
from holdfast.engine.kernel.spool import Said, Spool, Unwritten
from holdfast.errors import InvalidQuery
from holdfast.model.run import TextPiece
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey, SpoolKey, text_of_key, text_range
from holdfast.records.tokens import Stream, Text, text_in, text_item

__all__ = ["TokenWriter", "followed"]

# Somebody who follows a run of another process asks at first often, then less so.
_ASK_FIRST_SECONDS = 0.1
_ASK_MOST_SECONDS = 1.0
# A store that is down for longer ends the text, and not the call.
_PATIENCE_SECONDS = 30.0
# Past the end of its lease a worker soon knows whether it is renewed or lost.
_LAPSED_SECONDS = 0.05


class TokenWriter:
    """Takes one answer as it comes, and lets it be followed: ``async with TokenWriter(…) as w: …``

    Each attempt at a call has one of its own, under the same ``call``. Left by an error it says
    nothing more, and the answer has no end.
    """

    def __init__(
        self,
        kernel: Kernel,
        head: Head,
        *,
        alive: Callable[[], bool],
        lost: Callable[[], bool],
        call: str,
        name: str,
    ) -> None:
        """``alive`` says whether the run is held here, so that text may be written.

        ``lost`` says that it is not, and will not be: see `Hold.lost`.
        """
        self._spool = _spool_of(kernel, head, alive, lost)
        self._stream: int | None = self._spool.begin(Stream(call, name))
        self._said = False

    def emit(self, text: str) -> None:
        """Take in some text."""
        if text and self._stream is not None:
            self._say(self._stream, text)

    async def finish(self) -> None:
        """Say that the answer is complete; when this returns, all of it can be followed."""
        if self._stream is None:
            return
        self._say(self._stream, "", last=True)
        try:
            await self._spool.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Say nothing more: the answer is not going to be complete."""
        if self._stream is not None:
            self._spool.end(self._stream)
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

    def _say(self, stream: int, text: str, *, last: bool = False) -> None:
        self._spool.say(stream, text, first=not self._said, last=last)
        self._said = True


def _spool_of(
    kernel: Kernel, head: Head, alive: Callable[[], bool], lost: Callable[[], bool]
) -> Spool:
    """Return the spool of a run that this process holds."""
    spool = kernel.spools.of(head.key)
    held = (head.generation, head.epoch)
    if spool is not None and not spool.broken and (spool.generation, spool.key.epoch) == held:
        return spool
    key = SpoolKey(head.epoch, kernel.ids.new())

    async def write(number: int, text: Text) -> None:
        put = text_item(head, key, number, text, now_ms=kernel.clock.now_ms())
        # Another owner may have freed the run by now: text would be left behind. But where our
        # lease is renewed after all, the answer is going to be recorded: so its text must not end.
        until = kernel.clock.monotonic() + _PATIENCE_SECONDS
        while not lost() and (alive() or kernel.clock.monotonic() < until):
            if alive():
                until = kernel.clock.monotonic() + _PATIENCE_SECONDS
                try:
                    await kernel.settle(kernel.texts, put, alive=partial(may_send, until))
                    return
                except Dropped as dropped:
                    if alive():
                        raise Unwritten(str(dropped.__cause__)) from None
            await kernel.clock.sleep(_LAPSED_SECONDS)
        raise Unwritten("the run is no longer held here")

    def may_send(until: float) -> bool:
        return alive() and not lost() and kernel.clock.monotonic() < until

    spool = Spool(key, head.generation, run=head.key, write=write, sleep=kernel.clock.sleep)
    kernel.spools.open(head.key, spool)
    return spool


async def followed(
    kernel: Kernel, run: RunKey, *, after: TextCursor | None, follow: bool
) -> AsyncGenerator[TextPiece, None]:
    """Yield the text of a run's answers, then what comes of it, until the run has ended.

    Raises:
        RunNotFound: there is no such run, or what it kept is gone.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: what was written cannot be read.
    """
    pause = _ASK_FIRST_SECONDS
    told = asyncio.Event()
    with kernel.news.listening(run, told), kernel.spools.news.listening(run, told):
        head = await events.kept(kernel, run)
        reader = _Reader(kernel, head, after)
        while True:
            found = False
            if not reader.hears:
                async for piece in reader.read():
                    found = True
                    yield piece
            for piece in reader.heard():
                found = True
                yield piece
            # Its row was read before its text: where it said the end, all that counts was there.
            if not follow or head.status in ENDED:
                return
            pause = _ASK_FIRST_SECONDS if found else pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await told.wait()
            pause = min(pause * 2, _ASK_MOST_SECONDS)
            # As long as something comes it has not ended, and its row need not be asked.
            speaks = found or (told.is_set() and reader.hears)
            told.clear()
            if not speaks:
                head = await events.same(kernel, head)
                reader.see(head)


class _Reader:
    """Reads a run's text, each entry once: from the table, and from here on where it is said here.

    It knows which attempt it has seen of a call, and tells where another one takes its place.
    """

    def __init__(self, kernel: Kernel, head: Head, after: TextCursor | None) -> None:
        if after is not None and after.generation != head.generation:
            raise InvalidQuery(
                f"the run {head.key.id!r} has no text at {str(after)!r}", field="after"
            )
        self._kernel = kernel
        self._head = head
        self._resumed = after is not None
        self._at = after or TextCursor(head.generation, SpoolKey(0, ""), 0, 0)
        self._seen: dict[str, tuple[SpoolKey, int]] = {}

    def see(self, head: Head) -> None:
        """Hear which owner the run has by now."""
        self._head = head

    @property
    def hears(self) -> bool:
        """Whether what comes next is said here, so that the table need not be asked."""
        return self._spool_here() is not None

    def heard(self) -> list[TextPiece]:
        """Return what was said here since."""
        spool = self._spool_here()
        if spool is None:
            return []
        said = spool.since(self._at.number, self._at.index)
        return list(self._pieces(spool.key, spool.streams, said))

    async def read(self) -> AsyncGenerator[TextPiece, None]:
        """Yield what the table has from here on."""
        head, at = self._head, self._at
        here = self._open_spool()
        where = text_range(head.generation, at.spool, at.number)
        async for item in self._kernel.texts.every(head.key.pk, where):
            spool, number = text_of_key(item["SK"])
            text = text_in(item, self._kernel.limits.record_bytes_max)
            skipped = at.index if (spool, number) == (at.spool, at.number) else 0
            entries = list(enumerate(text.entries))[skipped:]
            said = [(number, index, entry) for index, entry in entries]
            for piece in self._pieces(spool, text.streams, said):
                yield piece
            self._at = TextCursor(head.generation, spool, number + 1, 0)
        # All that came before this spool was written before it was opened.
        if here is not None and here.key > self._at.spool:
            self._at = TextCursor(head.generation, here.key, 0, 0)

    def _open_spool(self) -> Spool | None:
        """Return what is said of the run here, unless another owner speaks by now."""
        spool = self._kernel.spools.of(self._head.key)
        return spool if spool is not None and spool.key.epoch >= self._head.epoch else None

    def _spool_here(self) -> Spool | None:
        spool, at = self._open_spool(), self._at
        goes_on = spool is not None and (spool.generation, spool.key) == (at.generation, at.spool)
        return spool if spool is not None and goes_on and at.number >= spool.oldest else None

    def _pieces(
        self, spool: SpoolKey, streams: Mapping[int, Stream], said: list[Said]
    ) -> Iterable[TextPiece]:
        """Yield entries as pieces, those of one stream that follow each other in one."""
        begin = 0
        for end in range(1, len(said) + 1):
            number, index, entry = said[end - 1]
            if end < len(said) and said[end][2].stream == entry.stream:
                continue
            first, stream = said[begin][2], streams[entry.stream]
            self._at = TextCursor(self._head.generation, spool, number, index + 1)
            yield TextPiece(
                call=stream.call,
                name=stream.name,
                text="".join(each.text for _, _, each in said[begin:end]),
                cursor=str(self._at),
                last=entry.last,
                restarted=self._restarts(stream.call, (spool, entry.stream), first.first),
            )
            begin = end

    def _restarts(self, call: str, attempt: tuple[SpoolKey, int], first: bool) -> bool:
        before = self._seen.get(call)
        self._seen[call] = attempt
        if before is None:
            # What was read before the cursor is not known: perhaps an attempt that came to nothing.
            return first and self._resumed
        return before != attempt
