"""Each kind of fault of the table and the blobs does what it says, and is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.errors import (
    ConditionFailed,
    EndpointUnreachable,
    HoldfastError,
    OutcomeUnknown,
    Throttled,
    TransactionCancelled,
)
from holdfast.storage.blobs import BlobRef
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key
from holdfast.storage.table import Table
from holdfast.storage.writes import Absent, Check, Delete, Equals, Present, Put, Update, Write
from tests.simulation.faults import FaultPlan, calm
from tests.simulation.process import Process
from tests.simulation.world import World, simulate

KEY = Key("p", "s")
ITEM: Item = {"PK": "p", "SK": "s", "n": 1}
CREATION = Put(ITEM, Absent("PK"))
COUNTING = Update(key=KEY, add={"n": 1})

Ask = Callable[[Table], Awaitable[Any]]

writes = pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda table: table.write(CREATION), id="put"),
        pytest.param(lambda table: table.write(COUNTING), id="update"),
        pytest.param(lambda table: table.transact([CREATION]), id="transact"),
    ],
)
reads = pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda table: table.get(KEY), id="get"),
        pytest.param(lambda table: table.get_many([KEY]), id="get_many"),
        pytest.param(lambda table: table.query("p"), id="query"),
        pytest.param(lambda table: table.query("p", index="GSI1"), id="index"),
        pytest.param(lambda table: table.read_changes(), id="changes"),
    ],
)


async def _wait(world: World, seconds: float) -> None:
    await world.process("test").clock.sleep(seconds)


class _Result:
    """What became of one request: for its caller, at once in the table, and in the end."""

    def __init__(self, world: World, error: HoldfastError | None, at_once: Item | None) -> None:
        self.faults = dict(world.faults)
        self.error = error
        self.at_once = at_once
        self.in_the_end = world.item(KEY)


def _asked(ask: Ask, plan: FaultPlan, seed: int = 1) -> _Result:
    async def scenario(world: World) -> _Result:
        table = world.process("w").table
        world.plan = plan
        error: HoldfastError | None = None
        try:
            await ask(table)
        except HoldfastError as raised:
            error = raised
        world.plan = calm()
        at_once = world.item(KEY)
        await _wait(world, 100)
        return _Result(world, error, at_once)

    return simulate(scenario, seed)


# --- not applied ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error"), [("throttled", Throttled), ("unreachable", EndpointUnreachable)]
)
@pytest.mark.parametrize("ask", [*writes.args[1], *reads.args[1]])
def test_what_was_refused_was_not_done(ask: Ask, kind: str, error: type[HoldfastError]) -> None:
    result = _asked(ask, calm().evolve(**{kind: 1}))
    assert type(result.error) is error
    assert result.in_the_end is None
    assert result.faults == {kind: 1}


@writes
def test_an_unknown_write_may_never_be_applied(ask: Ask) -> None:
    result = _asked(ask, calm().evolve(unapplied_unknown=1))
    assert type(result.error) is OutcomeUnknown
    assert result.in_the_end is None
    assert result.faults == {"unapplied_unknown": 1}


def test_a_transaction_is_cancelled_although_its_conditions_hold() -> None:
    plan = calm().evolve(cancelled_transaction=1)
    result = _asked(lambda table: table.transact([CREATION]), plan)
    assert isinstance(result.error, TransactionCancelled)
    assert result.error.failed == ()
    assert result.in_the_end is None
    assert result.faults == {"cancelled_transaction": 1}
    assert _asked(lambda table: table.write(CREATION), plan).in_the_end == ITEM


# --- applied, and the answer lost -----------------------------------------------------------------


@writes
def test_a_lost_answer_is_that_of_an_applied_write(ask: Ask) -> None:
    result = _asked(ask, calm().evolve(lost_answer=1, settled=0))
    assert type(result.error) is OutcomeUnknown
    assert result.at_once == result.in_the_end == ITEM
    assert result.faults == {"lost_answer": 1}


@reads
def test_a_lost_answer_of_a_read_is_an_endpoint_out_of_reach(ask: Ask) -> None:
    result = _asked(ask, calm().evolve(lost_answer=1))
    assert type(result.error) is EndpointUnreachable
    assert result.faults == {"lost_answer": 1}


@pytest.mark.parametrize("kind", ["lost_answer", "unapplied_unknown", "late_write"])
def test_a_write_that_may_be_repeated_is_not_unknown_but_out_of_reach(kind: str) -> None:
    result = _asked(lambda table: table.write(Put(ITEM)), calm().evolve(**{kind: 1}, settled=0))
    assert type(result.error) is EndpointUnreachable
    assert (result.in_the_end is None) is (kind == "unapplied_unknown")


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(Put(ITEM, Absent("PK"), token="mine"), id="put"),
        pytest.param(Update(key=KEY, add={"n": 1}, token="mine"), id="adding"),
        pytest.param(Update(key=KEY, set={"n": 1}, token="mine"), id="update"),
    ],
)
def test_the_engine_finds_its_own_token(write: Write) -> None:
    plan = calm().evolve(lost_answer=1, settled=1)
    result = _asked(lambda table: table.write(write), plan)
    assert result.error is None
    # An update that adds must not have been carried out a second time.
    assert result.in_the_end == {**ITEM, TOKEN: "mine"}
    assert result.faults == {"lost_answer_settled": 1}


def test_without_a_token_the_engine_cannot_tell_and_says_what_stands_there() -> None:
    plan = calm().evolve(lost_answer=1, settled=1)
    result = _asked(lambda table: table.write(CREATION), plan)
    assert isinstance(result.error, OutcomeUnknown)
    assert result.error.item == result.in_the_end == ITEM
    replaced = _asked(lambda table: table.write(Put(ITEM, token="mine"), returning="old"), plan)
    assert isinstance(replaced.error, OutcomeUnknown)


def test_the_service_knows_a_transaction_by_its_token() -> None:
    plan = calm().evolve(lost_answer=1, settled=1)
    result = _asked(lambda table: table.transact([COUNTING]), plan)
    assert result.error is None
    assert result.in_the_end == ITEM
    refused = _asked(lambda table: table.transact([Check(KEY, Present("PK"))]), plan)
    assert isinstance(refused.error, OutcomeUnknown)


# --- applied later --------------------------------------------------------------------------------


def test_a_late_write_is_applied_after_its_sender_crashed() -> None:
    async def scenario(world: World) -> float:
        process = world.process("w")
        applied: list[float] = []
        world.on_applied(lambda at_ms, *_: applied.append(world.loop.time()))
        with pytest.raises(OutcomeUnknown):
            await process.run(process.table.write(CREATION))
        process.crash()
        assert world.loop.time() < 0.021
        assert world.item(KEY) is None
        await _wait(world, 31)
        assert world.item(KEY) == ITEM
        assert world.faults == {"late_write": 1, "crash": 1}
        return applied[0]

    moments = [simulate(scenario, seed, calm().evolve(late_write=1)) for seed in range(20)]
    assert min(moments) < 10
    assert 20 < max(moments) < 30.03


def test_the_condition_of_a_late_write_is_that_of_its_own_time() -> None:
    async def scenario(world: World) -> None:
        slow, fast = world.process("slow"), world.process("fast")
        world.plan = calm().evolve(late_write=1)
        with pytest.raises(OutcomeUnknown):
            await slow.table.write(CREATION)
        world.plan = calm()
        theirs = {**ITEM, "n": 2}
        await fast.table.write(Put(theirs, Absent("PK")))
        await _wait(world, 31)
        assert world.item(KEY) == theirs
        assert world.faults == {"late_write_refused": 1}

    simulate(scenario, 3)


def test_a_duplicate_is_written_once_more_later_if_its_condition_holds() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        world.plan = calm().evolve(duplicate_write=1)
        await table.write(Put(ITEM))
        await table.write(Put({"PK": "p", "SK": "new"}, Absent("PK")))
        # What adds, and what is a transaction, is never carried out twice.
        await table.write(Update(key=Key("p", "count"), add={"n": 1}))
        await table.transact([Update(key=Key("p", "count"), add={"n": 1})])
        world.plan = calm()
        await table.write(Put({**ITEM, "n": 2}))
        await _wait(world, 31)
        assert world.item(KEY) == ITEM
        assert (world.item(Key("p", "count")) or {})["n"] == 2
        assert world.faults == {"duplicate_write": 1, "duplicate_write_refused": 1}

    simulate(scenario, 2)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "written"),
    [
        ("throttled", Throttled, range(5, 46)),
        ("unreachable", EndpointUnreachable, range(5, 46)),
        ("lost_answer", EndpointUnreachable, range(50, 51)),
        ("late_write", EndpointUnreachable, range(50, 51)),
        ("unapplied_unknown", EndpointUnreachable, range(1)),
    ],
)
def test_of_a_batch_that_failed_some_may_stand(
    kind: str, error: type[HoldfastError], written: range
) -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        world.plan = calm().evolve(**{kind: 1})
        with pytest.raises(error):
            await process.table.write_many(Put({"PK": "p", "SK": str(n)}) for n in range(50))
        await _wait(world, 31)
        assert len(world.items("p")) in written
        assert world.faults[kind] == (50 if kind == "late_write" else 1)

    simulate(scenario, 1)


def test_a_batch_is_not_one_moment() -> None:
    async def scenario(world: World) -> None:
        moments: set[float] = set()
        world.on_applied(lambda *_: moments.add(world.loop.time()))
        table = world.process("w").table
        await table.write_many([*(Put({"PK": "p", "SK": str(n)}) for n in range(9)), Delete(KEY)])
        assert len(moments) == 10
        assert len(world.items("p")) == 9

    simulate(scenario, 1)


# --- stale reads ----------------------------------------------------------------------------------


def _entry(n: int, place: str) -> Put:
    return Put({"PK": "p", "SK": str(n), "GSI1PK": "due", "GSI1SK": place, "secret": "x"})


def test_a_stale_index_shows_an_old_entry_and_a_consistent_read_does_not() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        await table.write(_entry(1, "old"))
        await _wait(world, 100)
        await table.write(_entry(1, "new"))
        world.plan = calm().evolve(stale_index=1, lag_seconds_max=4)
        seen: list[tuple[str, ...]] = []
        for _ in range(40):
            await _wait(world, 0.1)
            page = await table.query("due", index="GSI1")
            seen.append(tuple(entry["GSI1SK"] for entry in page.items))
            assert all(set(entry) == {"PK", "SK", "GSI1PK", "GSI1SK"} for entry in page.items)
            item = await table.get(Key("p", "1"))
            assert item is not None
            assert item["GSI1SK"] == "new"
        # An entry that moved may also be missing, or be there twice.
        assert set(seen) == {("old",), ("new",), (), ("new", "old")}
        assert world.faults == {"stale_index": sum(places != ("new",) for places in seen)}
        await _wait(world, 5)
        page = await table.query("due", index="GSI1")
        assert [entry["GSI1SK"] for entry in page.items] == ["new"]

    simulate(scenario, 1)


def test_a_stale_index_has_pages() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        for n in range(10):
            await table.write(_entry(n, f"{n}"))
        await _wait(world, 10)
        await table.write_many(Delete(Key("p", str(n))) for n in range(10))
        # Older than every deletion, younger than every entry.
        world.plan = calm().evolve(stale_index=1, lag_seconds_max=8)
        whole = 0
        for forward in [True, False] * 20:
            places: list[str] = []
            cursor: str | None = None
            while True:
                page = await table.query(
                    "due", index="GSI1", limit=3, cursor=cursor, forward=forward
                )
                assert len(page.items) <= 3
                places += [entry["GSI1SK"] for entry in page.items]
                cursor = page.cursor
                if cursor is None:
                    break
            assert places == sorted(places, reverse=not forward)
            whole += len(places) == 10
        assert whole > 3

    simulate(scenario, 1)


def test_an_eventual_read_may_be_stale() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        await table.write(Put(ITEM))
        await _wait(world, 100)
        await table.write(Put({**ITEM, "n": 2}))
        world.plan = calm().evolve(stale_read=1, lag_seconds_max=2)
        numbers: dict[str, set[int]] = {"get": set(), "query": set()}
        for _ in range(20):
            await _wait(world, 0.1)
            got = await table.get(KEY, eventual=True)
            numbers["get"].add((got or {})["n"])
            page = await table.query("p", eventual=True)
            numbers["query"].add(page.items[0]["n"])
            exact = await table.query("p")
            assert exact.items[0]["n"] == 2
            assert (await table.get(KEY) or {})["n"] == 2
        assert numbers == {"get": {1, 2}, "query": {1, 2}}
        assert 0 < world.faults["stale_read"] < 40

    simulate(scenario, 1)


# --- time -----------------------------------------------------------------------------------------


def test_an_operation_takes_milliseconds_and_rarely_seconds() -> None:
    async def scenario(world: World) -> list[float]:
        process = world.process("w")
        taken: list[float] = []
        for _ in range(100):
            begun = process.clock.monotonic()
            await process.table.get(KEY)
            taken.append(process.clock.monotonic() - begun)
        assert set(world.faults) <= {"slow"}
        return taken

    calmly = simulate(scenario, 1)
    assert all(0.0002 <= seconds <= 0.020 for seconds in calmly)
    slowly = simulate(scenario, 1, calm().evolve(slow=1))
    assert all(seconds <= 5 for seconds in slowly)
    assert max(slowly) > 3


def test_a_write_is_applied_between_its_sending_and_its_answer() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        applied: list[float] = []
        world.on_applied(lambda *_: applied.append(world.loop.time()))
        for n in range(50):
            sent = world.loop.time()
            await table.write(Put({**ITEM, "n": n}))
            assert sent <= applied[-1] < world.loop.time()
        assert len(applied) == 50

    simulate(scenario, 1)


def test_a_read_sees_what_stands_while_it_is_under_way() -> None:
    async def scenario(world: World) -> set[int]:
        reader, writer = world.process("r"), world.process("w")
        seen: set[int] = set()

        async def write() -> None:
            for n in range(200):
                await writer.table.write(Put({**ITEM, "n": n}))

        async def read() -> None:
            while not writing.done():
                before = (world.item(KEY) or {"n": -1})["n"]
                item = await reader.table.get(KEY) or {"n": -1}
                after = (world.item(KEY) or {"n": -1})["n"]
                assert before <= item["n"] <= after
                seen.add((item["n"] > before) + 2 * (item["n"] < after))

        writing = writer.spawn(write())
        await reader.run(read())
        return seen

    assert simulate(scenario, 1) >= {1, 2}


# --- blobs ----------------------------------------------------------------------------------------


def test_blobs_are_shared_and_work_as_blobs_do() -> None:
    async def scenario(world: World) -> None:
        one, two = world.process("one").store.blobs, world.process("two").store.blobs
        ref = await one.put(b"bytes", prefix="a/")
        await one.put(b"more", key="a/b")
        assert await two.with_purpose("journal").get(ref) == b"bytes"
        page = await two.list("a/", limit=1)
        assert len(page.entries) == 1
        page = await two.list("a/", after=page.cursor, limit=5)
        assert [entry.key for entry in page.entries] == ["a/b"]
        assert page.cursor is None
        await two.delete("a/b")
        assert await two.delete_all("a/") == 1
        assert world.blobs.contents == {}
        assert world.loop.time() > 0

    simulate(scenario, 1)


@pytest.mark.parametrize("kind", ["blob_unreachable", "blob_lost_answer"])
def test_a_blob_that_failed_is_written_only_where_the_answer_was_lost(kind: str) -> None:
    async def scenario(world: World) -> None:
        blobs = world.process("w").store.blobs
        with pytest.raises(EndpointUnreachable):
            await blobs.put(b"bytes", key="a/b")
        assert bool(world.blobs.contents) is (kind == "blob_lost_answer")
        with pytest.raises(EndpointUnreachable):
            await blobs.get(BlobRef("a/b", "0" * 64, 5))
        assert world.faults == {kind: 2}

    simulate(scenario, 1, calm().evolve(**{kind: 1}))


def test_to_delete_many_blobs_may_be_cut_short() -> None:
    async def scenario(world: World) -> int:
        blobs = world.process("w").store.blobs
        for n in range(10):
            await blobs.put(b"x", key=f"a/{n}")
        world.plan = calm().evolve(blob_unreachable=1)
        with pytest.raises(EndpointUnreachable):
            await blobs.delete_all("a/")
        return len(world.blobs.keys("a/"))

    assert len({simulate(scenario, seed) for seed in range(10)}) > 3


def test_a_blob_sent_before_a_crash_may_arrive() -> None:
    async def scenario(world: World) -> bool:
        process: Process = world.process("w")
        process.spawn(process.store.blobs.put(b"bytes", key="a"))
        while not world.operations:
            await _wait(world, 0)
        process.crash()
        await _wait(world, 100)
        return "a" in world.blobs.contents

    assert {simulate(scenario, seed) for seed in range(20)} == {True, False}


# --- what the caller may rely on ------------------------------------------------------------------


def test_who_is_cancelled_gets_no_answer_and_the_write_is_applied() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        writing = process.spawn(process.table.write(CREATION))
        while not world.operations:
            await _wait(world, 0)
        writing.cancel()
        await _wait(world, 1)
        assert writing.cancelled()
        assert world.item(KEY) == ITEM

    simulate(scenario, 1)


def test_a_refusal_is_the_truth() -> None:
    async def scenario(world: World) -> None:
        table = world.process("w").table
        await table.write(CREATION)
        with pytest.raises(ConditionFailed) as refused:
            await table.write(CREATION)
        assert refused.value.item == ITEM
        with pytest.raises(TransactionCancelled) as cancelled:
            await table.transact([Check(KEY, Equals("n", 2)), Delete(Key("p", "x"))])
        assert cancelled.value.failed == (0,)

    simulate(scenario, 1)
