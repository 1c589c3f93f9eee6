"""An engine whose writes can be held up, whose answers get lost, and which can be out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.clock import ManualClock
from holdfast.errors import EndpointUnreachable, HoldfastError, OutcomeUnknown
from holdfast.storage import Layout
from holdfast.storage.blobs import BlobContent
from holdfast.storage.operations import ChangePage, Operation, Reply, WriteItem
from holdfast.storage.sqlite import SqliteEngine
from tests.simulation.blobs import MemoryBlobs


class Fallible:
    """Hands everything on to another engine, unless it is told otherwise."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self.writes: list[WriteItem] = []
        """The writes that were asked for."""
        self.under_way = 0
        """How many operations have no answer yet."""
        self.open = asyncio.Event()
        """Writes wait as long as it is not set."""
        self.open.set()
        self.passes = 0
        """So many writes are let through one by one nevertheless."""
        self.lost = 0
        """So many answers to writes get lost from now on."""
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What somebody else does after an answer was lost."""
        self.gone = False
        """Whether nothing can be reached."""
        self.error: HoldfastError | None = None
        """What every operation raises."""
        self.failed = 0
        """How many operations it was raised by."""

    @property
    def layout(self) -> Layout:
        return self._engine.layout

    @property
    def poll_seconds(self) -> float:
        return self._engine.poll_seconds

    async def perform(self, operation: Operation) -> Reply:
        self.under_way += 1
        try:
            if self.gone:
                return Reply(error=EndpointUnreachable("gone"))
            if self.error is not None:
                self.failed += 1
                return Reply(error=self.error)
            if isinstance(operation, WriteItem):
                return await self._write(operation)
            return await self._engine.perform(operation)
        finally:
            self.under_way -= 1

    async def _write(self, operation: WriteItem) -> Reply:
        self.writes.append(operation)
        while not self.open.is_set() and not self.passes:
            await ManualClock().sleep(0)
        self.passes = max(0, self.passes - 1)
        answer = await self._engine.perform(operation)
        if not self.lost:
            return answer
        self.lost -= 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return Reply(error=OutcomeUnknown("lost"))

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        return await self._engine.read_changes(after, limit)

    async def create(self) -> None: ...

    async def close(self) -> None:
        await self._engine.close()


class FallibleBlobs(MemoryBlobs):
    """Blobs that cannot be used as long as there is an error."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        """Begin without a blob, or with those of another one, which sees what is written here."""
        super().__init__()
        self.contents = {} if contents is None else contents
        self.error: HoldfastError | None = None
        self.failed = 0
        """How many operations failed."""

    def write(self, key: str, data: bytes, sha256: str) -> None:
        self._fail()
        super().write(key, data, sha256)

    def read(self, key: str, bytes_max: int) -> BlobContent | None:
        self._fail()
        return super().read(key, bytes_max)

    def delete(self, key: str) -> None:
        self._fail()
        super().delete(key)

    def _fail(self) -> None:
        if self.error is not None:
            self.failed += 1
            raise self.error
