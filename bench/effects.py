"""A ledger outside of every contestant: it does what it is asked, and remembers who asked.

An effect that comes with a key which it knows is answered, and not done again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

WORK_SECONDS = (0.002, 0.005)
"""How long an effect takes, from and to."""


class Place(NamedTuple):
    """Where in the work an effect belongs: which step of which run."""

    run: int
    step: int


class Asked(NamedTuple):
    """An effect as the ledger was asked for it."""

    place: Place
    key: str | None
    pid: int


class EffectLedger:
    """Serves on a loopback port, for as long as `served` says."""

    def __init__(
        self,
        *,
        alarm_at: int = 0,
        alarm: Callable[[], None] = lambda: None,
        work_seconds: tuple[float, float] = WORK_SECONDS,
    ) -> None:
        """Sound the alarm at the effect of that number, before it is answered."""
        self.port = 0
        self.asked: list[Asked] = []
        self._alarm_at = alarm_at
        self._alarm = alarm
        self._work_seconds = work_seconds
        self._receipts: dict[str, str] = {}
        self._found: dict[Place, str] = {}
        self._random = Random(1)
        self._connections: set[_Connection] = set()
        self._quiet = asyncio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[EffectLedger, None]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def quiet(self) -> None:
        """Wait until nobody is connected: what the dead still asked for was read."""
        while self._connections:
            self._quiet.clear()
            await self._quiet.wait()

    def effect(self, asked: Asked) -> tuple[str, float]:
        """Do it, unless its key is known; return the receipt, and the seconds until it is given."""
        self.asked.append(asked)
        run, step = asked.place
        receipt = f"{run} {step} {len(self.asked)}"
        if asked.key is not None:
            receipt = self._receipts.setdefault(asked.key, receipt)
        self._found[asked.place] = receipt
        if len(self.asked) == self._alarm_at:
            self._alarm()
        return receipt, self._random.uniform(*self._work_seconds)

    def receipt_of(self, place: Place) -> str | None:
        """Return the receipt of what was done, or nothing if it was not."""
        return self._found.get(place)

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._quiet.set()


class _Connection(asyncio.Protocol):
    """Reads a request a line, answers each when its work is done."""

    def __init__(self, ledger: EffectLedger) -> None:
        self._ledger = ledger
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ledger.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ledger.left(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            place = Place(request["run"], request["step"])
            if request.get("only_look"):
                receipt, seconds = self._ledger.receipt_of(place), 0.0
            else:
                receipt, seconds = self._ledger.effect(Asked(place, request["key"], request["pid"]))
            answer = json.dumps({"id": request["id"], "receipt": receipt}).encode() + b"\n"
            asyncio.get_running_loop().call_later(seconds, self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def repeated(asked: Iterable[Asked]) -> set[Place]:
    """Return what was asked for more than once: twice done where keys are not honoured."""
    times = Counter(one.place for one in asked)
    return {place for place, count in times.items() if count > 1}


def done_twice(asked: Iterable[Asked]) -> set[Place]:
    """Return what was done more than once, though the keys that came with it were honoured."""
    # Without a key every time counts; with one only the first.
    keyed = {(one.place, one.key) for one in asked if one.key is not None}
    times = Counter(place for place, _ in keyed)
    times.update(one.place for one in asked if one.key is None)
    return {place for place, count in times.items() if count > 1}
