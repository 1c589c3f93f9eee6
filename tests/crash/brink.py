"""A storage engine that kills its own process right before or right after one of its writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from holdfast.storage import Meter, Put, Store, Update
from holdfast.storage import open as open_store
from holdfast.storage.layout import Key, Layout
from holdfast.storage.operations import (
    ChangePage,
    Operation,
    Reply,
    TableEngine,
    TransactItems,
    WriteItem,
    WriteItems,
)

Side: TypeAlias = Literal["before", "after"]


class Brink:
    """Hands everything on to another engine, and counts the writes."""

    def __init__(
        self, engine: TableEngine, number: int, side: Side, told: Callable[[str], None]
    ) -> None:
        """Die at the write of that number, counted from 1; at none if it is 0."""
        self._engine = engine
        self._number = number
        self._side = side
        self._told = told
        self._writes = 0

    @property
    def layout(self) -> Layout:
        return self._engine.layout

    @property
    def poll_seconds(self) -> float:
        return self._engine.poll_seconds

    async def perform(self, operation: Operation) -> Reply:
        if not isinstance(operation, WriteItem | TransactItems | WriteItems) or _is_beat(operation):
            return await self._engine.perform(operation)
        self._writes += 1
        here = self._writes == self._number
        self._told(f"write {self._writes}: {_name_of(operation)}")
        if here and self._side == "before":
            _die()
        answer = await self._engine.perform(operation)
        if here:
            _die()
        return answer

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        return await self._engine.read_changes(after, limit)

    async def create(self) -> None:
        await self._engine.create()

    async def close(self) -> None:
        await self._engine.close()


def open_at_brink(url: str, number: int, side: Side, told: Callable[[str], None]) -> Store:
    """Return the store at an address, with such an engine in it."""
    store = open_store(url)
    engine = Brink(store._engine, number, side, told)
    return Store(engine, store.blobs, url=url, meter=Meter())


def _is_beat(operation: WriteItem | TransactItems | WriteItems) -> bool:
    """Return whether a worker prolongs its lease, which it does at times of its own."""
    if not isinstance(operation, WriteItem):
        return False
    write = operation.write
    return (
        isinstance(write, Update)
        and write.key.pk.startswith("WORKER#")
        and "buried_ms" not in write.set
    )


def _name_of(operation: WriteItem | TransactItems | WriteItems) -> str:
    write: Any = operation.write if isinstance(operation, WriteItem) else operation.writes[0]
    key = Key(write.item["PK"], write.item["SK"]) if isinstance(write, Put) else write.key
    return f"{type(write).__name__} {key.pk} {key.sk}"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
