"""A stub before a DynamoDB Local, and engines whose pauses take no time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest

from holdfast.clock import SystemIds
from holdfast.storage.dynamodb import DynamoEngine
from tests.servers import stub_dynamodb
from tests.servers.stub_dynamodb import Stub

_numbers = itertools.count()


class LeapingClock:
    """A clock on which whoever sleeps wakes up at once, later."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Any] | None = None

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.on_sleep is not None:
            await self.on_sleep()


class Open(Protocol):
    def __call__(self, endpoint: str | None = None, **options: Any) -> DynamoEngine: ...


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
async def stub(dynamodb_local: str) -> AsyncIterator[Stub]:
    async with stub_dynamodb.serve(dynamodb_local) as stub:
        yield stub


@pytest.fixture
def table_name() -> str:
    """A table that no other test uses."""
    return f"table-{next(_numbers)}"


@pytest.fixture
async def open_engine(stub: Stub, clock: LeapingClock, table_name: str) -> AsyncIterator[Open]:
    """Opens engines on the test's table, by way of the stub where nothing else is said."""
    opened: list[DynamoEngine] = []

    def open_engine(endpoint: str | None = None, **options: Any) -> DynamoEngine:
        # DynamoDB Local never forgets a client token: they have to be new in every test.
        ids = SystemIds()
        engine = DynamoEngine(
            options.pop("table", table_name),
            endpoint=endpoint or stub.endpoint,
            **{"clock": clock, "ids": ids, "region": "us-east-1", **options},
        )
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        await engine.close()


@pytest.fixture
async def other(open_engine: Open, dynamodb_local: str) -> DynamoEngine:
    """Somebody else at the same table, which is made here; not by way of the stub."""
    engine = open_engine(dynamodb_local)
    await engine.create()
    return engine


@pytest.fixture
def engine(other: DynamoEngine, open_engine: Open) -> DynamoEngine:
    """The engine under test, at a table that is there."""
    return open_engine()
