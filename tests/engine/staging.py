"""An engine between a process and its store that holds, loses or cuts short what a test names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from holdfast import Holdfast, Worker
from holdfast.errors import OutcomeUnknown
from holdfast.storage import Meter, Store
from holdfast.storage import open as open_store
from holdfast.storage.layout import Layout
from holdfast.storage.operations import (
    ChangePage,
    Operation,
    Reply,
    TableEngine,
    TransactItems,
    WriteItem,
    WriteItems,
)
from tests.engine.support import WAIT_SECONDS_MAX, House

Side: TypeAlias = Literal["before", "after"]
Which: TypeAlias = Callable[[Operation], bool]


class Hold:
    """An operation that does not go through until it is let."""

    def __init__(self, which: Which, side: Side) -> None:
        self.which = which
        self.side = side
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    @property
    def is_reached(self) -> bool:
        """Whether the operation stands there, or has."""
        return self._reached.is_set()

    async def reached(self) -> None:
        """Return when the operation stands there."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await self._reached.wait()

    def release(self) -> None:
        self._released.set()

    async def pass_through(self) -> None:
        self._reached.set()
        await self._released.wait()


class Stage:
    """Hands everything on to another engine, but for what it was told."""

    def __init__(self, engine: TableEngine) -> None:
        self._engine = engine
        self._holds: list[Hold] = []
        self._losses: list[tuple[Which, bool]] = []
        self._death: tuple[int, Side, Callable[[], None]] | None = None
        self.writes = 0
        """How many writes were asked for, but those of a worker about itself and its graphs."""

    @property
    def layout(self) -> Layout:
        return self._engine.layout

    @property
    def poll_seconds(self) -> float:
        return self._engine.poll_seconds

    def hold(self, which: Which, *, side: Side = "before") -> Hold:
        """Hold the next operation of that kind, before or after it is carried out."""
        hold = Hold(which, side)
        self._holds.append(hold)
        return hold

    def lose(self, which: Which, *, carried_out: bool) -> None:
        """Lose the answer to the next operation of that kind."""
        self._losses.append((which, carried_out))

    def die_at(self, number: int, side: Side, die: Callable[[], None]) -> None:
        """Let the process end at its write of that number, counted from 1."""
        self._death = (number, side, die)

    def live_on(self) -> None:
        """Let the process end at no write any more."""
        self._death = None

    async def perform(self, operation: Operation) -> Reply:
        hold = next((hold for hold in self._holds if hold.which(operation)), None)
        if hold is not None:
            self._holds.remove(hold)
        loss = next((loss for loss in self._losses if loss[0](operation)), None)
        if loss is not None:
            self._losses.remove(loss)
        if hold is not None and hold.side == "before":
            await hold.pass_through()
        number = self._numbered(operation)
        await self._survive(number, "before")
        if loss is not None and not loss[1]:
            return Reply(error=OutcomeUnknown("lost on its way"))
        answer = await self._engine.perform(operation)
        await self._survive(number, "after")
        if hold is not None and hold.side == "after":
            await hold.pass_through()
        return answer if loss is None else Reply(error=OutcomeUnknown("the answer was lost"))

    def _numbered(self, operation: Operation) -> int:
        if not is_write(operation):
            return 0
        self.writes += 1
        return self.writes

    async def _survive(self, number: int, side: Side) -> None:
        if self._death is not None and self._death[:2] == (number, side):
            self._death[2]()
            await asyncio.Event().wait()  # who died hears of nothing any more

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        return await self._engine.read_changes(after, limit)

    async def create(self) -> None:
        await self._engine.create()

    async def close(self) -> None:
        await self._engine.close()


def is_write(operation: Operation) -> bool:
    """Return whether an operation writes, and not only about a worker or its graphs."""
    if isinstance(operation, WriteItem):
        return not operation.write.key.pk.startswith(("WORKER#", "GRAPH#"))
    return isinstance(operation, TransactItems | WriteItems)


def transaction(operation: Operation) -> bool:
    return isinstance(operation, TransactItems)


def write_of(pk: str, sk: str) -> Which:
    """Return which operations write the item of that key."""
    return lambda operation: isinstance(operation, WriteItem) and operation.write.key == (pk, sk)


def staged(house: House, **options: Any) -> tuple[Holdfast, Stage]:
    """Return a further instance on the house's store, and what stands between the two."""
    store = open_store(house.url, clock=house.clock)
    stage = Stage(store._engine)
    through = Store(stage, store.blobs, url=house.url, meter=Meter())
    return house.open(store=through, **options), stage


async def played(house: House, worker: Worker, moves: Iterable[float]) -> bool:
    """Let a worker run a scene while the clock moves; return whether it lived to see its end."""
    await worker.start()
    gone = asyncio.ensure_future(worker.stopped.wait())
    for seconds in moves:
        scene = asyncio.ensure_future(house.move(seconds, worker))
        await asyncio.wait({gone, scene}, return_when=asyncio.FIRST_COMPLETED)
        scene.cancel()
        if gone.done():
            return False
    gone.cancel()
    return True
