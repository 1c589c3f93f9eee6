"""A process with little memory and time that is handed hostile values: ``python -m … TARGET``.

What it is handed may be refused, with an error of Holdfast's, and by nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Graph, Holdfast, PayloadLimits, signal, tool
from holdfast.errors import HoldfastError, Unsuccessful
from holdfast.records.codec import unpack_events, unpack_value
from holdfast.records.keys import RunKey, inbox_key, journal_key
from holdfast.storage import Put

MEMORY_BYTES_MAX = 1024**3
CPU_SECONDS_MAX = 240
EXAMPLES = 30
KB = 1024
LIMITS = PayloadLimits(
    input_bytes_max=64 * KB,
    signal_bytes_max=64 * KB,
    state_bytes_max=128 * KB,
    answer_bytes_max=64 * KB,
    arguments_bytes_max=64 * KB,
    inbox_bytes_max=256 * KB,
    record_bytes_max=1024 * KB,
)

# --- values ---------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(),
    st.integers(min_value=2**62, max_value=2**66),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(1, 5_000).map(lambda digits: 10**digits),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cf", "Cc", "Co"]), max_size=8),
    st.sampled_from(["\0", "\ud800", "\u202e", "e\u0301", "\ufeff", "__proto__", "🏴" * 9]),
    st.integers(1, 200_000).map(lambda size: "a" * size),
    st.integers(1, 60_000).map(lambda size: "é" * size),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.binary(max_size=20))


def nested(depth: int, kind: int) -> Any:
    """Return a value of that depth."""
    value: Any = None
    for _ in range(depth):
        value = [value] if kind == 0 else {"a": value} if kind == 1 else (value, [])
    return value


def wide(count: int, kind: int) -> Any:
    """Return a value with so many elements."""
    return [[] if kind == 0 else {} if kind == 1 else 0] * count


VALUES = st.one_of(
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.one_of(TEXTS, st.integers()), inner, max_size=4),
            st.tuples(inner, inner),
        ),
        max_leaves=12,
    ),
    st.builds(nested, st.integers(1, 5_000), st.integers(0, 2)),
    st.builds(wide, st.integers(1, 300_000), st.integers(0, 2)),
)
STATES = st.one_of(VALUES, st.dictionaries(TEXTS, VALUES, max_size=3))


# --- stored bytes ---------------------------------------------------------------------------------


def framed(plain: bytes, *, with_size: bool = True) -> bytes:
    """Return bytes as they are kept, compressed."""
    compressor = zstandard.ZstdCompressor(write_content_size=with_size)
    return b"\x01" + compressor.compress(plain)


def damaged(data: bytes, at: int, with_what: int) -> bytes:
    """Return bytes of which one is another."""
    changed = bytearray(data)
    changed[at % len(changed)] = with_what
    return bytes(changed)


PLAIN = st.one_of(
    st.binary(max_size=200),
    VALUES.map(lambda value: _encoded(value)),
    st.integers(1, 3_000_000).map(lambda size: b"\xc6" + size.to_bytes(4, "big") + bytes(size)),
    st.integers(1, 2_000_000).map(
        lambda count: b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    ),
    st.integers(1, 5_000).map(lambda depth: b"\x91" * depth + b"\xc0"),
    st.sampled_from(
        [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01"]
    ),
)
STORED = st.one_of(
    st.binary(max_size=100),
    PLAIN.map(lambda plain: b"\x00" + plain),
    PLAIN.map(framed),
    PLAIN.map(lambda plain: framed(plain, with_size=False)),
    st.builds(damaged, PLAIN.map(framed), st.integers(0, 10**6), st.integers(0, 255)),
)


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b"\xc0"


# --- what is done with them -----------------------------------------------------------------------


@tool
async def returns(number: int) -> Any:
    """Return what is to be returned; it is not an argument."""
    return RETURNED[number]


@tool
async def swallows(value: Any) -> None:
    """Take any argument."""


RETURNED: list[Any] = []
GRAPH = Graph("g", dict)


@GRAPH.node
async def node(state: Any, ctx: Any) -> Any:
    """Do with a value what the input says."""
    what = await ctx.wait(signal("what"))
    if what == "state":
        return RETURNED[-1]
    if what == "answer":
        await ctx.call(returns, len(RETURNED) - 1)
    if what == "argument":
        await ctx.call(swallows, RETURNED[-1])
    if what == "stored":
        await ctx.wait(signal("stored"))
    return {}


class Target:
    """A store with a worker, and one value after the other."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._number = 0

    async def start(self, value: Any) -> None:
        self._number += 1
        await self._hf.start(GRAPH, value, id=f"start-{self._number}")

    async def signal(self, value: Any) -> None:
        self._number += 1
        run = await self._hf.start(GRAPH, id=f"signal-{self._number}")
        await run.signal("noise", value)
        await run.signal("what", value)
        await run.result(timeout=60)

    async def state(self, value: Any) -> None:
        await self._told("state", value)

    async def answer(self, value: Any) -> None:
        await self._told("answer", value)

    async def argument(self, value: Any) -> None:
        await self._told("argument", value)

    async def _told(self, what: str, value: Any) -> None:
        self._number += 1
        RETURNED.append(value)
        run = await self._hf.start(GRAPH, id=f"{what}-{self._number}")
        await run.signal("what", what)
        try:
            await run.result(timeout=60)
        except Unsuccessful as ended:
            if not ended.kind or not hasattr(sys.modules["holdfast.errors"], ended.kind):
                raise AssertionError(f"the run ended with {ended.kind}: {ended}") from None

    async def stored(self, data: bytes) -> None:
        for unpack in (unpack_value, unpack_events):
            try:
                unpack(data, LIMITS.record_bytes_max)
            except HoldfastError:
                continue
        self._number += 1
        run = await self._hf.start(GRAPH, id=f"stored-{self._number}")
        table = self._hf._store.records("test")
        item = await table.get(RunKey("default", run.id).head)
        assert item is not None
        put = {"ttl": item["ttl"], "data": data}
        inbox = inbox_key(RunKey("default", run.id), item["generation"], "stored", "0")
        await table.write(Put({"PK": inbox.pk, "SK": inbox.sk, "accepted_ms": 1, **put}, token="0"))
        if self._number % 2:
            record = journal_key(RunKey("default", run.id), item["generation"], 1)
            await table.write(Put({"PK": record.pk, "SK": record.sk, "epoch": 1, **put}, token="0"))
        await run.signal("what", "stored")
        await run.cancel(reason="enough")


def main(name: str) -> None:
    """Hand one target after the other values until enough were tried."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    values = {"stored": STORED, "state": STATES, "start": STATES}.get(name, VALUES)

    async def tried(value: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/runs.db"
            async with Holdfast(url, limits=LIMITS) as hf:
                act: Callable[[Any], Coroutine[Any, Any, None]] = getattr(Target(hf), name)
                if name in ("start", "stored"):
                    await act(value)
                    return
                async with hf.worker([GRAPH], drain_seconds=0):
                    await act(value)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def check(value: Any) -> None:
        try:
            asyncio.run(tried(value))
        except HoldfastError:
            return

    check()


if __name__ == "__main__":
    main(sys.argv[1])
