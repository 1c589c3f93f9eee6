"""Values over their limits are refused with a typed error before anything is written."""

from __future__ import annotations

import asyncio
import sys
import threading
import tracemalloc
from typing import Any

import msgspec
import pytest

from holdfast import Graph, Holdfast, PayloadLimits, signal, tool
from holdfast.engine.journal import payloads, signal_payloads
from holdfast.engine.runs import starting
from holdfast.errors import (
    ArgumentsTooLarge,
    CallFailed,
    InvalidInput,
    InvalidRequest,
    JournalDamaged,
    PayloadTooLarge,
    RecordTooLarge,
    ResultTooLarge,
    RunFailed,
    RunNotFound,
)
from holdfast.graph.mismatch import TooLarge
from holdfast.graph.value_sizes import estimated_size
from holdfast.graph.values import durable
from holdfast.records.codec import pack, plain_bytes, unpack_events, unpack_value
from holdfast.records.keys import RunKey, inbox_key, journal_key
from holdfast.storage import Put
from tests import hostile
from tests.confinement import MB, confine, run_confined
from tests.engine.support import House, calls_of, item_of_head, journal_items, store_of

KB = 1024
TIGHT = PayloadLimits(
    input_bytes_max=64 * KB,
    signal_bytes_max=16 * KB,
    state_bytes_max=96 * KB,
    answer_bytes_max=32 * KB,
    arguments_bytes_max=8 * KB,
    inbox_bytes_max=64 * KB,
    record_bytes_max=256 * KB,
)


class Holder(msgspec.Struct):
    """A state."""

    list: Any = None


def graph_of(function: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node")(function)
    return graph


async def takes_one(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("decision"))}


# --- the limits themselves ------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "5", None])
def test_a_limit_must_be_a_whole_number_from_1_on(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="input_bytes_max must be an integer") as refused:
        PayloadLimits(input_bytes_max=wrong)
    assert refused.value.field == "input_bytes_max"


@pytest.mark.parametrize("name", ["input", "signal", "state", "answer"])
def test_what_may_be_written_may_be_read(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must not be more than record_bytes_max"):
        PayloadLimits(**{f"{name}_bytes_max": 32 * KB * KB + 1})


def test_a_snapshot_of_all_that_a_run_holds_can_be_written() -> None:
    with pytest.raises(InvalidRequest, match="at least twice state_bytes_max") as refused:
        PayloadLimits(state_bytes_max=16 * KB * KB + 1)
    assert refused.value.field == "state_bytes_max"


def test_an_inbox_must_have_room_for_one_signal() -> None:
    with pytest.raises(InvalidRequest, match="must not be more than inbox_bytes_max"):
        PayloadLimits(signal_bytes_max=17 * KB * KB)


async def test_limits_must_be_payload_limits(house: House) -> None:
    with pytest.raises(InvalidRequest, match="limits must be PayloadLimits") as refused:
        house.open(limits={"input_bytes_max": 5})
    assert refused.value.field == "limits"


# --- what callers send ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "input",
    [
        {"text": "a" * 70 * KB},  # compresses to almost nothing
        {"list": [0] * 70 * KB},
        {"é": "é" * 40 * KB},  # fewer letters than the limit has bytes
        {"list": [{}] * 5 * KB},  # few bytes, and much memory
        {"texts": ["ab"] * 9 * KB},
        {str(number): None for number in range(5 * KB)},
        {"a" * 70 * KB: 1},
    ],
    ids=["text", "numbers", "unicode", "containers", "texts", "map", "name"],
)
async def test_a_large_input_is_refused_and_nothing_is_written(house: House, input: Any) -> None:
    hf = house.open(limits=TIGHT)
    with pytest.raises(PayloadTooLarge, match=r"the input: .+input_bytes_max sets") as refused:
        await hf.start(graph_of(takes_one), input, id="doc-42")
    assert refused.value.field == "input"
    assert (refused.value.size or 0) > (refused.value.limit or 0) > 0
    assert not calls_of(hf, "head", "journal", "inbox")
    with pytest.raises(RunNotFound):
        await hf.run("doc-42").get()


@pytest.mark.parametrize("kind", [dict, Holder], ids=["dict", "struct"])
async def test_an_input_that_holds_too_much_is_refused_before_it_is_copied(
    house: House, kind: Any
) -> None:
    graph = Graph("g", kind)
    graph.node(name="node")(takes_one)
    hf = house.open(limits=TIGHT)
    for input in ({"list": [[] for _ in range(60_000)]}, Holder([[] for _ in range(60_000)])):
        if kind is dict and isinstance(input, Holder):
            continue
        tracemalloc.start()
        try:
            with pytest.raises(PayloadTooLarge, match="has more than"):
                await hf.start(graph, input, id="doc-42")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < KB * KB, f"{peak:,} bytes"


async def test_a_map_with_tuples_for_keys_is_refused(hf: Holdfast) -> None:
    run = await hf.start(graph_of(takes_one), id="doc-42")
    with pytest.raises(InvalidInput, match="keys of maps"):
        await run.signal("decision", {(1, 2): 3})
    with pytest.raises(InvalidInput, match="keys of maps"):
        await hf.start(graph_of(takes_one), {"map": {(1, 2): 3}}, id="doc-43")


async def test_an_input_of_the_largest_size_is_kept(house: House) -> None:
    hf = house.open(limits=TIGHT)
    empty = len(msgspec.msgpack.encode({"text": "a" * 60 * KB})) - 60 * KB
    largest = {"text": "a" * (64 * KB - empty)}
    await hf.start(graph_of(takes_one), largest, id="doc-42")
    with pytest.raises(PayloadTooLarge) as refused:
        await hf.start(graph_of(takes_one), {"text": largest["text"] + "a"}, id="doc-43")
    assert (refused.value.size, refused.value.limit) == (64 * KB + 1, 64 * KB)


async def test_a_large_payload_is_refused_and_nothing_is_written(house: House) -> None:
    hf = house.open(limits=TIGHT)
    run = await hf.start(graph_of(takes_one), id="doc-42")
    before = await item_of_head(hf, "doc-42")
    for payload in ("a" * 17 * KB, [[]] * 2 * KB):
        with pytest.raises(PayloadTooLarge, match=r"the payload: .+signal_bytes_max") as refused:
            await run.signal("decision", payload)
        assert refused.value.field == "payload"
    assert await item_of_head(hf, "doc-42") == before
    assert await journal_items(hf, "doc-42") == []
    await run.signal("decision", "a" * 15 * KB)


async def test_by_default_ten_megabytes_are_refused(hf: Holdfast) -> None:
    run = await hf.start(graph_of(takes_one), id="doc-42")
    with pytest.raises(PayloadTooLarge):
        await run.signal("decision", "a" * 10_000_000)
    with pytest.raises(PayloadTooLarge):
        await hf.start(graph_of(takes_one), {"text": "a" * 10_000_000}, id="doc-43")


async def sends_what_shares_its_parts() -> None:
    """Send values of a few hundred bytes that have no end once they are written out."""

    async def returns_it(state: Any, ctx: Any) -> Any:
        return {"endless": hostile.shared(14, 6, 1)}

    graph, waits = graph_of(returns_it), Graph("waits", dict)
    waits.node(name="node")(takes_one)
    async with Holdfast("sqlite://:memory:") as hf, hf.worker([graph, waits]):
        run = await hf.start(waits, {})
        confine(more_bytes=64 * MB, cpu_seconds=60)
        for value in (
            hostile.shared(12, 10, 1),
            hostile.shared(40, 2, "a"),
            [["a" * MB] * 99] * 99,
        ):
            with pytest.raises(PayloadTooLarge):
                await hf.start(waits, {"endless": value})
            with pytest.raises(PayloadTooLarge):
                await run.signal("decision", value)
        with pytest.raises(RunFailed) as failed:
            await (await hf.start(graph, {})).result(timeout=60)
        assert failed.value.kind == "ResultTooLarge"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be confined")
def test_a_value_that_shares_its_parts_is_measured_as_it_would_be_written() -> None:
    run_confined(f"{__name__}:{sends_what_shares_its_parts.__name__}")


async def test_a_child_is_not_started_with_a_large_input(house: House) -> None:
    child = Graph("child", dict)

    @child.node
    async def only(state: Any) -> Any:
        return {}

    async def parent(state: Any, ctx: Any) -> Any:
        with pytest.raises(PayloadTooLarge):
            await ctx.start(child, {"text": "a" * 70 * KB})
        return {"refused": True}

    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph_of(parent), child) as worker:
        run = await hf.start(graph_of(parent), id="doc-42")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"refused": True}


async def test_a_child_may_return_more_than_a_signal_may_carry(house: House) -> None:
    child = Graph("child", dict)

    @child.node
    async def only(state: Any) -> Any:
        return {"text": "a" * 90 * KB}

    async def parent(state: Any, ctx: Any) -> Any:
        return {"letters": len((await ctx.run(child, {}))["text"])}

    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph_of(parent), child) as worker:
        run = await hf.start(graph_of(parent), id="doc-42")
        await house.patiently_quiet(worker)
        assert await run.result(timeout=60) == {"letters": 90 * KB}


# --- what nodes return ----------------------------------------------------------------------------


async def test_a_state_that_grows_beyond_its_limit_fails_the_run(house: House) -> None:
    size = [60 * KB]
    graph = Graph("g", dict)

    @graph.node
    async def first(state: Any) -> Any:
        return {"first": "a" * 60 * KB}

    @graph.node
    async def second(state: Any) -> Any:
        return {"second": "b" * size[0]}

    graph.route(first, second)
    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="state_bytes_max is 98,304") as failed:
            await run.result(timeout=60)
        assert failed.value.kind == "ResultTooLarge"
        size[0] = 30 * KB
        await run.retry()
        await house.quiet(worker)
        assert len((await run.result(timeout=60))["second"]) == 30 * KB


async def test_a_state_may_be_written_often_without_growing(house: House) -> None:
    graph = Graph("g", dict)
    for number in range(5):

        @graph.node(name=f"node{number}")
        async def node(state: Any, number: int = number) -> Any:
            return {"text": str(number) * 60 * KB}

    graph.route(*(f"node{number}" for number in range(5)))
    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.result(timeout=60))["text"] == "4" * 60 * KB


async def test_a_state_that_was_larger_before_may_shrink(house: House) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def waits(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal("decision")), "text": "a" * 100 * KB}

    roomy = house.open()
    await roomy.start(graph, {"text": "a" * 150 * KB}, id="doc-42")
    await roomy.run("doc-42").signal("decision", "go")
    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").result(timeout=60))["got"] == "go"


async def test_a_large_answer_fails_its_call(house: House) -> None:
    @tool
    async def bomb() -> str:
        return "a" * 33 * KB

    async def calls(state: Any, ctx: Any) -> Any:
        expected = r"the limit is 32,768; PayloadLimits\.answer_bytes_max sets"
        with pytest.raises(CallFailed, match=expected) as failed:
            await ctx.call(bomb)
        assert failed.value.is_a(ResultTooLarge)
        return {"caught": True}

    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph_of(calls)) as worker:
        run = await hf.start(graph_of(calls), id="doc-42")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"caught": True}


async def test_large_arguments_are_refused_and_nothing_is_called(house: House) -> None:
    called: list[str] = []

    @tool
    async def keeps(text: str) -> None:
        called.append(text)

    async def calls(state: Any, ctx: Any) -> Any:
        expected = r"a call of '.+keeps' have .+\.arguments_bytes_max is 8,192"
        with pytest.raises(ArgumentsTooLarge, match=expected) as refused:
            await ctx.call(keeps, "a" * 9 * KB)
        assert refused.value.limit == 8 * KB
        await ctx.call(keeps, "small")
        return {}

    hf = house.open(limits=TIGHT)
    async with house.worker(hf, graph_of(calls)) as worker:
        run = await hf.start(graph_of(calls), id="doc-42")
        await house.quiet(worker)
        await run.result(timeout=60)
    assert called == ["small"]


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("unpack", [unpack_value, unpack_events])
def test_a_record_that_claims_a_terabyte_is_refused_unread(unpack: Any) -> None:
    assert plain_bytes(hostile.claiming(2**40)) == 2**40
    with pytest.raises(RecordTooLarge) as refused:
        unpack(hostile.claiming(2**40))
    assert (refused.value.size, refused.value.limit) == (2**40, 32 * KB * KB)


def test_a_record_that_unpacks_to_more_than_it_claims_is_damaged() -> None:
    packed = bytearray(pack("a" * 100_000))
    at = bytes(packed).index((100_005).to_bytes(4, "little"))
    packed[at : at + 4] = (1_000).to_bytes(4, "little")
    assert plain_bytes(bytes(packed)) == 1_000
    with pytest.raises(JournalDamaged):
        unpack_value(bytes(packed))


def test_a_record_that_does_not_say_its_size_is_damaged() -> None:
    with pytest.raises(JournalDamaged, match="does not have its uncompressed size"):
        unpack_value(hostile.framed(msgspec.msgpack.encode("a" * 100_000), with_size=False))


def test_a_record_is_read_up_to_its_limit() -> None:
    packed = pack("a" * 1_000)
    assert unpack_value(packed, plain_bytes(packed)) == "a" * 1_000
    with pytest.raises(RecordTooLarge):
        unpack_value(packed, plain_bytes(packed) - 1)


async def test_a_stored_bomb_ends_its_own_run_only(house: House) -> None:
    hf = house.open(limits=TIGHT)
    graph = graph_of(takes_one)
    async with house.worker(hf, graph, resumes_max=1) as worker:
        for id in ("bombed", "other"):
            await hf.start(graph, id=id)
        await house.quiet(worker)
        generation = (await item_of_head(hf, "bombed"))["generation"]
        key = journal_key(RunKey("default", "bombed"), generation, 1)
        bomb = {"PK": key.pk, "SK": key.sk, "ttl": 5_000_000_000, "data": hostile.claiming(2**40)}
        await store_of(hf).records("journal").write(Put(bomb, token="t"))
        for id in ("bombed", "other"):
            await hf.run(id).signal("decision", "go")
        await house.quiet(worker)
        row = await hf.run("bombed").get()
        assert (row.status, row.failure and row.failure.type) == ("quarantined", "RecordTooLarge")
        assert await hf.run("other").result(timeout=60) == {"got": "go"}


async def test_a_bomb_in_the_inbox_harms_only_the_run_that_awaits_it(house: House) -> None:
    hf = house.open(limits=TIGHT)
    graph = graph_of(takes_one)
    async with house.worker(hf, graph) as worker:
        for id, name in (("awaits", "decision"), ("ignores", "noise")):
            await hf.start(graph, id=id)
            await house.quiet(worker)
            generation = (await item_of_head(hf, id))["generation"]
            key = inbox_key(RunKey("default", id), generation, name, "0")
            bomb = {
                "PK": key.pk,
                "SK": key.sk,
                "ttl": 5_000_000_000,
                "data": hostile.claiming(2**40),
            }
            await store_of(hf).records("inbox").write(Put({**bomb, "accepted_ms": 1}, token="0"))
            await hf.run(id).signal("decision", "go")
        await house.quiet(worker)
        assert await hf.run("ignores").result(timeout=60) == {"got": "go"}
        with pytest.raises(RunFailed) as failed:
            await hf.run("awaits").result(timeout=60)
        assert failed.value.kind == "RecordTooLarge"


# --- off the event loop ---------------------------------------------------------------------------


async def test_large_values_are_packed_and_unpacked_in_a_thread(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[str]] = {"packed": set(), "unpacked": set()}

    def watched(what: str, function: Any) -> Any:
        def watching(*args: Any) -> Any:
            threads[what].add(threading.current_thread().name)
            return function(*args)

        return watching

    monkeypatch.setattr(payloads, "_pack", watched("packed", payloads._pack))
    monkeypatch.setattr(
        signal_payloads, "unpack_value", watched("unpacked", signal_payloads.unpack_value)
    )
    hf = house.open()
    graph = graph_of(takes_one)
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "a" * 300 * KB)
    here = threading.current_thread().name
    assert here not in threads["packed"]
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert len((await run.result(timeout=60))["got"]) == 300 * KB
    assert threads["unpacked"]
    assert here not in threads["unpacked"]


async def test_a_large_object_is_handled_in_a_thread(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    prepared = starting._prepare

    def watching(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return prepared(*args)

    monkeypatch.setattr(starting, "_prepare", watching)
    graph = Graph("g", Holder)
    graph.node(name="node")(takes_one)
    hf = house.open()
    await hf.start(graph, Holder("small"), id="doc-41")
    here = threading.current_thread().name
    assert threads == {here}
    await hf.start(graph, Holder(["a" * 30] * 10_000), id="doc-42")
    assert threads > {here}


async def test_few_large_values_are_handled_at_once(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, came = 0, 0, asyncio.Event()

    async def to_thread(work: Any, *args: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 2:
            # All that are let in come before this is done.
            asyncio.get_running_loop().call_soon(came.set)
        await came.wait()
        under_way -= 1

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    await asyncio.gather(*(hf._kernel.offload.run(10**6, int) for _ in range(6)))
    assert most == 2


# --- measuring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, 1, "text", b"bytes", [1, [2, {"a": "b"}]], {"k": ("x", None)}, {1: 2.5}]
)
def test_at_least_so_many_bytes_is_never_more_than_there_are(value: Any) -> None:
    assert estimated_size(value, 10**6).bytes <= len(msgspec.msgpack.encode(value))
    assert estimated_size(value, 10**6).is_complete


def test_counting_stops_early_also_in_what_holds_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert estimated_size(endless, 100) == (14, False)  # no value of 100 bytes may hold 13 elements
    assert estimated_size([[0] * 1_000] * 1_000, 500).bytes <= 2_000
    assert estimated_size(endless, 10**9) == (4_097, False)
    assert estimated_size([["a" * 100]] * 10_000, 10**9).bytes < 500_000


def test_a_value_of_few_bytes_may_not_hold_many_containers() -> None:
    assert durable([[]] * 60, bytes_max=1_000)
    with pytest.raises(TooLarge, match="lists and maps"):
        durable([[]] * 70, bytes_max=1_000)
