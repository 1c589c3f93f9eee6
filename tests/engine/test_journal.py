"""The journal's group commit: records that become ready meanwhile travel together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from holdfast.clock import ManualClock, SeededIds
from holdfast.engine.journal.reader import new_run
from holdfast.engine.journal.writer import GROUP_BYTES_MAX, JournalWriter, PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.errors import InvalidResult
from holdfast.model.event import Event, NodeFinished
from holdfast.model.execution import Execution
from holdfast.records.codec import pack, unpack_events
from holdfast.records.head import Head, JournalExtent
from holdfast.records.journal import Content, content_of, record_overhead_bytes, record_write
from holdfast.records.keys import RunKey, journal_key, journal_range
from holdfast.storage import Meter, Put, Store
from holdfast.storage.item import item_bytes
from holdfast.storage.layout import TOKEN
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from tests.engine.fallible import Fallible

RUN = RunKey("acme", "doc-42")
GENERATION = "g"
EMPTY = Execution(seed=GENERATION, state={}, node="a")


@pytest.fixture
async def engine() -> AsyncIterator[Fallible]:
    """An engine whose writes wait until they are let through."""
    made = Fallible(SqliteEngine(MEMORY))
    made.open.clear()
    yield made
    await made.close()


@pytest.fixture
def kernel(engine: Fallible) -> Kernel:
    clock = ManualClock()
    return Kernel(Store(engine, None, url="test", meter=Meter()), clock, SeededIds(1, clock))


@pytest.fixture
def journal(kernel: Kernel) -> JournalWriter:
    return JournalWriter(
        kernel, head(), new_run(EMPTY, JournalExtent(), 0, plain_bytes=0), alive=lambda: True
    )


def head() -> Head:
    return Head(
        key=RUN,
        graph="g",
        version=1,
        list_shards=1,
        status="running",
        generation=GENERATION,
        epoch=1,
        owner="w",
        input_hash=b"",
        input=b"",
        first="a",
        node="a",
        created_ms=0,
        updated_ms=0,
        starts_ms=0,
        expires_ms=10,
        ttl=10,
        kept="keep-10d",
    )


def event(number: int, text: str = "") -> Event:
    return NodeFinished(0, "a", number, {"text": text}, "a")


async def stored(kernel: Kernel) -> list[list[int]]:
    """Return the visits that each record carries."""
    items = [item async for item in kernel.journals.query_all(RUN.pk, journal_range(GENERATION))]
    contents = [content_of(item).data or b"" for item in items]
    return [
        [e.visit for e in unpack_events(data) if isinstance(e, NodeFinished)] for data in contents
    ]


async def settled() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await ManualClock().sleep(0)


async def test_what_becomes_ready_while_a_put_is_under_way_shares_the_next(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    appends = [asyncio.create_task(journal.append([event(n)])) for n in range(32)]
    await settled()
    assert len(engine.writes) == 1
    engine.open.set()
    await asyncio.gather(*appends)
    assert await stored(kernel) == [[0], list(range(1, 32))]
    assert journal.extent.position == 3


async def test_a_group_is_capped_and_the_rest_takes_the_next_position(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    # Text that does not compress and yet stays inline here: this store has no blobs.
    large = Random(1).randbytes(GROUP_BYTES_MAX // 4).hex()[: GROUP_BYTES_MAX // 3]
    appends = [asyncio.create_task(journal.append([event(n, large)])) for n in range(6)]
    await settled()
    engine.open.set()
    await asyncio.gather(*appends)
    groups = await stored(kernel)
    assert [n for group in groups for n in group] == list(range(6))
    assert groups == [[0], [1, 2], [3, 4], [5]]


async def test_whoever_was_first_does_not_write_for_those_that_keep_coming(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    first = asyncio.create_task(journal.append([event(0)]))
    await settled()
    others = [asyncio.create_task(journal.append([event(1)]))]
    await settled()
    engine.passes = 1
    await first
    assert await stored(kernel) == [[0]]
    await settled()
    assert not others[0].done()  # it is being written, by nobody who waits for anything else
    others += [asyncio.create_task(journal.append([event(n)])) for n in (2, 3)]
    await settled()
    engine.open.set()
    await asyncio.gather(*others)
    assert await stored(kernel) == [[0], [1], [2, 3]]
    await journal.append([event(4)])
    assert await stored(kernel) == [[0], [1], [2, 3], [4]]


async def test_whoever_waits_for_what_another_task_writes_hears_of_a_conflict(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    first = asyncio.create_task(journal.append([event(0)]))
    await settled()
    others = [asyncio.create_task(journal.append([event(n)])) for n in (1, 2)]
    await settled()
    engine.passes = 1
    await first
    # Somebody else writes at the next position before it is let through.
    item = dict(engine.writes[0].write.item) if isinstance(engine.writes[0].write, Put) else {}
    item |= {"SK": journal_key(RUN, GENERATION, 2).sk, "data": pack([event(100)])}
    await engine._engine.perform(msgspec.structs.replace(engine.writes[0], write=Put(item)))
    engine.open.set()
    results = await asyncio.gather(*others, return_exceptions=True)
    assert [type(result) for result in results] == [PositionTaken, PositionTaken]
    assert await stored(kernel) == [[0], [100]]
    assert not journal.outcome_unknown


async def test_whoever_is_cancelled_takes_nobody_along_whose_record_is_written_by_another(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    first = asyncio.create_task(journal.append([event(0)]))
    await settled()
    others = [asyncio.create_task(journal.append([event(n)])) for n in (1, 2)]
    await settled()
    engine.passes = 1
    await first
    await settled()
    others[0].cancel()
    await settled()
    engine.open.set()
    results = await asyncio.gather(*others, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, type(None)]
    assert await stored(kernel) == [[0], [1, 2]]


async def test_if_the_first_is_cancelled_all_that_wait_hear_of_it(
    engine: Fallible, journal: JournalWriter
) -> None:
    first = asyncio.create_task(journal.append([event(0)]))
    await settled()
    others = [asyncio.create_task(journal.append([event(n)])) for n in (1, 2)]
    await settled()
    first.cancel()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [
        asyncio.CancelledError,
        PositionTaken,
        PositionTaken,
    ]
    assert journal.outcome_unknown


async def test_what_is_too_large_is_refused_alone_and_the_rest_is_written(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    large = Random(1).randbytes(400 * 1024)  # more than an item holds, and there are no blobs
    unfit = NodeFinished(0, "a", 7, {"data": large}, "a")
    batches = [[event(0)], [event(1)], [unfit], [event(2)]]
    appends = [asyncio.create_task(journal.append(events)) for events in batches]
    await settled()
    engine.open.set()
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results] == [
        type(None),
        type(None),
        InvalidResult,
        type(None),
    ]
    assert await stored(kernel) == [[0], [1], [2]]
    with pytest.raises(InvalidResult):
        await journal.append([unfit])
    await journal.append([event(3)])
    assert await stored(kernel) == [[0], [1], [2], [3]]


async def test_what_is_large_is_not_held_back(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    engine.open.set()
    assert journal.buffer([event(0)])
    assert not journal.buffer([event(1, "x" * GROUP_BYTES_MAX)])
    await journal.flush()
    assert await stored(kernel) == [[0]]


async def test_what_is_held_back_travels_with_the_next_that_must_be_durable(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    engine.open.set()
    journal.buffer([event(0)])
    journal.buffer([event(1)])
    assert await stored(kernel) == []
    await journal.append([event(2)])
    assert await stored(kernel) == [[0, 1, 2]]
    await journal.flush()
    assert len(engine.writes) == 1


async def test_all_who_wait_for_what_is_held_back_share_one_put_that_no_cancelling_cuts_short(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    journal.buffer([event(0)])
    waits = [asyncio.ensure_future(journal.flush()) for _ in range(3)]
    await settled()
    assert [len(engine.writes), journal.has_buffered, journal.has_unwritten] == [1, False, True]
    waits[0].cancel()
    engine.open.set()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, type(None), type(None)]
    assert await stored(kernel) == [[0]]
    assert len(engine.writes) == 1


async def test_whoever_waits_for_what_is_held_back_hears_that_the_position_is_lost(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    engine.open.set()
    rival = JournalWriter(
        kernel, head(), new_run(EMPTY, JournalExtent(), 0, plain_bytes=0), alive=lambda: True
    )
    await rival.append([event(100)])
    journal.buffer([event(0)])
    with pytest.raises(PositionTaken):
        await journal.flush()
    assert await stored(kernel) == [[100]]


async def test_what_cannot_be_kept_is_refused_alone(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    engine.open.set()
    unfit = NodeFinished(0, "a", 7, {"n": 2**80}, "a")
    results = await asyncio.gather(
        journal.append([event(0)]),
        journal.append([unfit]),
        journal.append([event(1)]),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), InvalidResult, type(None)]
    assert await stored(kernel) == [[0], [1]]


async def test_whoever_loses_a_position_writes_nothing_and_all_of_its_group_hear_of_it(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    engine.open.set()
    rival = JournalWriter(
        kernel, head(), new_run(EMPTY, JournalExtent(), 0, plain_bytes=0), alive=lambda: True
    )
    await rival.append([event(100)])
    engine.open.clear()
    appends = [asyncio.create_task(journal.append([event(n)])) for n in range(3)]
    await settled()
    engine.open.set()
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results] == [PositionTaken] * 3
    assert await stored(kernel) == [[100]]


async def test_a_lost_answer_is_asked_for_again_byte_for_byte(
    kernel: Kernel, engine: Fallible, journal: JournalWriter
) -> None:
    clock = kernel.clock
    assert isinstance(clock, ManualClock)
    engine.open.set()
    engine.lost = 1
    append = asyncio.create_task(journal.append([event(0)]))
    while len(engine.writes) < 2:
        await ManualClock().sleep(0)
        clock.advance(0.1)
    await append
    first, second = (operation.write for operation in engine.writes)
    assert isinstance(first, Put)
    assert first == second
    assert first.key == journal_key(RUN, GENERATION, 1)
    assert await stored(kernel) == [[0]]
    assert journal.extent.position == 2


async def test_nothing_is_concluded_from_a_lost_answer_once_the_lease_is_over(
    kernel: Kernel, engine: Fallible
) -> None:
    engine.open.set()
    engine.lost = 1
    journal = JournalWriter(
        kernel, head(), new_run(EMPTY, JournalExtent(), 0, plain_bytes=0), alive=lambda: False
    )
    with pytest.raises(ClaimLost):
        await journal.append([event(0)])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("id", "ttl", "epoch"), [("doc-42", 10, 1), ("dök-42", 4_000_000, 12_345)])
def test_the_overhead_is_what_a_record_has_besides_its_content(
    id: str, ttl: int, epoch: int, whole: bool
) -> None:
    row = msgspec.structs.replace(head(), key=RunKey("acme", id), ttl=ttl, epoch=epoch)
    put = record_write(row, 7, Content(b"x" * 100), token="", whole=whole)
    stored = {**put.item, TOKEN: SeededIds(1, ManualClock(0)).new()}
    assert item_bytes(stored) == record_overhead_bytes(row, 7, whole=whole) + 100
