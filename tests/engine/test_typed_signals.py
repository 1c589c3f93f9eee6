"""Signals with a type: checked where they are sent, converted where they are taken."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import Graph, Holdfast, Retry, SignalReceipt, hours, signal
from holdfast.errors import (
    InvalidGraph,
    InvalidInput,
    InvalidName,
    InvalidRequest,
    RunFailed,
    SignalMisfit,
    StoreUnavailable,
    UnknownSignal,
    WaitTimedOut,
)
from holdfast.records.graph_item import graph_facts_of
from holdfast.records.keys import RunKey, graph_key, inbox_key, inbox_range
from holdfast.storage import Put
from tests.engine.support import House, kill


class Decision(TypedDict):
    yes: bool
    why: NotRequired[str]


@dataclasses.dataclass
class Vote:
    by: str
    on: date


class Offer(msgspec.Struct):
    price: Annotated[int, msgspec.Meta(ge=1)]


class Order(pydantic.BaseModel):
    count: int
    express: bool = False


def waiting_for(name: str, kind: Any = msgspec.UNSET, **options: Any) -> Graph:
    """Return a graph of one node that waits for a signal."""
    graph = Graph("g", dict, **options)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait(signal(name, kind))
        return {"type": type(answer).__name__, "answer": str(answer)}

    return graph


async def inbox_of(hf: Holdfast, id: str) -> list[str]:
    """Return the sort keys of everything in a run's inbox."""
    run = RunKey("default", id)
    generation = (await hf.run(id).get()).generation
    kernel = hf._kernel
    return [item["SK"] async for item in kernel.inboxes.query_all(run.pk, inbox_range(generation))]


@pytest.mark.parametrize(
    ("kind", "misfits", "payload", "type_name"),
    [
        (bool, ("true", 1, None, [True]), True, "bool"),
        (int, ("1", 1.5, True), 7, "int"),
        (Literal["yes", "no"], ("maybe", "YES", True), "yes", "str"),
        (Decision, ({}, {"yes": "true"}, "yes", {"yes": True, "wy": "x"}), {"yes": True}, "dict"),
        (Vote, ({"by": "ann"}, {"by": 1, "on": "2026-11-17"}), None, "Vote"),
        (Offer, ({"price": 0}, {"price": "9"}), {"price": 9}, "Offer"),
        (Order, ({"count": "2"}, {"count": 2, "express": "yes"}), {"count": 2}, "Order"),
        (bool | None, ("no", 0), None, "NoneType"),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_wrong_payload_is_refused_and_the_run_keeps_waiting(
    house: House, kind: Any, misfits: tuple[Any, ...], payload: Any, type_name: str, declared: bool
) -> None:
    if kind is Vote:
        payload = Vote("ann", date(2026, 11, 17))
    graph = waiting_for("go", kind, signals=[signal("go", kind)] if declared else None)
    hf, stranger = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        for wrong in misfits:
            # In the process of the worker, and in one that does not have the graph.
            for handle in (run, stranger.run("doc-42")):
                with pytest.raises(SignalMisfit, match="'go' that run 'doc-42' waits for") as found:
                    await handle.signal("go", wrong)
                assert isinstance(found.value, InvalidInput)
                assert found.value.field == "payload"
        assert await inbox_of(hf, "doc-42") == []
        assert (await run.get()).status == "waiting"
        await stranger.run("doc-42").signal("go", payload)
        await house.move(1, worker)
        assert (await run.result(timeout=60))["type"] == type_name


async def test_a_process_without_the_graph_checks_signals(either: House) -> None:
    graph = waiting_for("approved", signals=[signal("approved", bool), signal("withdrawn")])
    hf, stranger = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
        run = await hf.start(graph, id="doc-42")
        # It may not wait yet: then all that is known of the graph counts.
        with pytest.raises(UnknownSignal) as unknown:
            await stranger.run("doc-42").signal("aproved", True)
        assert str(unknown.value) == (
            "run 'doc-42' takes the signals approved, withdrawn; got 'aproved'"
        )
        with pytest.raises(SignalMisfit, match="it must be true or false, got a string"):
            await stranger.run("doc-42").signal("approved", "true")
        await stranger.run("doc-42").signal("withdrawn", {"any": "thing"})
        await either.move(1, worker)
        await stranger.run("doc-42").signal("approved", True)
        await either.move(1, worker)
        assert await run.result(timeout=60) == {"type": "bool", "answer": "True"}


async def test_the_process_that_starts_a_run_needs_no_worker_to_check(hf: Holdfast) -> None:
    run = await hf.start(waiting_for("go", signals=[signal("go", bool)]), id="doc-42")
    with pytest.raises(SignalMisfit):
        await run.signal("go", "true")
    with pytest.raises(UnknownSignal):
        await run.signal("stop")


async def test_a_start_lets_other_processes_check_before_there_is_a_worker(either: House) -> None:
    hf, stranger = either.open(), either.open()
    await hf.start(waiting_for("go", signals=[signal("go", bool)]), id="doc-42")
    with pytest.raises(SignalMisfit):
        await stranger.run("doc-42").signal("go", "true")
    with pytest.raises(UnknownSignal):
        await stranger.run("doc-42").signal("stop")


async def test_only_the_first_start_of_a_graph_with_signals_stores_it(
    hf: Holdfast, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = hf._kernel.graph_items
    reads: list[Any] = []
    read = items.get

    async def counted(key: Any, **options: Any) -> Any:
        reads.append(key)
        return await read(key, **options)

    monkeypatch.setattr(items, "get", counted)
    graph = waiting_for("go", signals=[signal("go", bool)])
    await asyncio.gather(*(hf.start(graph) for _ in range(3)))
    await hf.start(graph)
    assert reads == [graph_key("g", 1)]
    await hf.start(waiting_for("go", bool))  # declares nothing
    assert reads == [graph_key("g", 1)]
    await house.open().start(graph)
    item = await read(graph_key("g", 1))
    assert item is not None
    assert graph_facts_of(item).revision == 1


async def test_a_start_works_without_the_item(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(hf._kernel.graph_items, "get", unavailable)
    run = await hf.start(waiting_for("go", signals=[signal("go", bool)]), id="doc-42")
    assert (await run.get()).id == "doc-42"


async def test_an_early_signal_that_does_not_fit_is_set_aside_and_listed(either: House) -> None:
    graph = waiting_for("go", bool)
    hf, stranger = either.open(), either.open()
    run = await hf.start(graph, id="doc-42")
    early = stranger.run("doc-42")
    large = {"text": "x" * 200_000}  # beside the table
    await early.signal("go", "true", signal_id="poison")
    await early.signal("go", large, signal_id="large")
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.nodes_run) == ("waiting", 0)
        aside = await early.set_aside()
        assert [(each.name, each.id, each.payload, each.node) for each in aside] == [
            ("go", "poison", "true", "ask"),
            ("go", "large", large, "ask"),
        ]
        assert aside[0].reason == "it must be true or false, got a string"
        kinds = [(entry.kind, entry.details) for entry in (await run.history()).entries]
        assert [kind for kind, _ in kinds] == ["aside", "aside"]
        assert kinds[0][1]["id"] == "poison"
        # Neither it nor the row counts it as something that waits in the inbox.
        assert hf._kernel.known_graphs.get("g", 1).published == {("go", signal_digest(graph, hf))}
        with pytest.raises(SignalMisfit, match="set the signal 'go' with the id 'poison' aside"):
            await early.signal("go", "true", signal_id="poison")
        await early.signal("go", True)
        await either.move(1, worker)
        assert (await run.result(timeout=60))["answer"] == "True"
    with pytest.raises(SignalMisfit, match="aside: it must be true or false"):
        await early.signal("go", "true", signal_id="poison")
    assert len(await run.set_aside()) == 2


async def test_a_worker_warns_of_a_signal_that_it_sets_aside(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = waiting_for("go", bool)
    run = await hf.start(graph, id="doc-42", tenant="acme")
    await run.signal("go", "a secret", signal_id="poison")
    with caplog.at_level("WARNING", logger="holdfast.runs"):
        async with house.worker(hf, graph) as worker:
            await house.quiet(worker)
    assert [record.getMessage() for record in caplog.records] == [
        "run doc-42 of tenant acme: node ask set the signal go with the id poison aside and keeps "
        "waiting: it must be true or false, got a string"
    ]


def signal_digest(graph: Graph, hf: Holdfast) -> str:
    (digest,) = hf._kernel.known_graphs.get(graph.name, graph.version).types_of("go")
    return digest


async def test_a_signal_is_set_aside_once_though_the_worker_dies(house: House) -> None:
    graph = waiting_for("go", bool)
    hf = house.open()
    run = await hf.start(graph, id="doc-42")
    await run.signal("go", "no", signal_id="poison")
    first = house.worker(hf, graph, lease=2)
    await first.start()
    await house.quiet(first)
    await run.signal("go", True, signal_id="good")
    kill(first)
    async with house.worker(house.open(), graph, lease=2) as second:
        for _ in range(8):
            await house.move(1, second)
        assert (await run.result(timeout=60))["answer"] == "True"
    assert [each.id for each in await run.set_aside()] == ["poison"]


class Torn(msgspec.Struct):
    """A type with a check that fails at first in a way of its own."""

    number: int

    def __post_init__(self) -> None:
        if _torn:
            raise _torn.pop()


_torn: list[Exception] = []


async def test_a_type_with_a_check_that_breaks_does_not_keep_its_signal(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node(retry=Retry(attempts=2, backoff=0))
    async def ask(state: Any, ctx: Any) -> Any:
        return {"number": (await ctx.wait(signal("go", Torn))).number}

    run = await hf.start(graph, id="doc-42")
    await run.signal("go", {"number": 7})
    _torn.append(ZeroDivisionError("the check broke"))
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await run.get()).status == "finished"
        assert await run.result(timeout=60) == {"number": 7}


async def test_a_run_of_many_misfits_takes_the_one_that_fits(hf: Holdfast, house: House) -> None:
    graph = waiting_for("go", bool)
    run = await hf.start(graph, id="doc-42")
    for number in range(60):
        await run.signal("go", f"{number}")
    await run.signal("go", False)
    async with house.worker(hf, graph):
        assert (await run.result(timeout=60))["answer"] == "False"
    assert len(await run.set_aside()) == 60


async def test_branches_share_the_signals_that_fit(house: House, hf: Holdfast) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def begin(state: Any) -> Any: ...

    @graph.node(writes=["a"])
    async def a(state: Any, ctx: Any) -> Any:
        return {"a": await ctx.wait(signal("go", bool))}

    @graph.node(writes=["b"])
    async def b(state: Any, ctx: Any) -> Any:
        return {"b": await ctx.wait(signal("go", bool))}

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.fork(begin, [a, b], join=end)
    run = await hf.start(graph, id="doc-42")
    for payload in ("poison", True, 3, False):
        await run.signal("go", payload)
    async with house.worker(hf, graph):
        assert sorted((await run.result(timeout=60)).values()) == [False, True]
    assert sorted(str(each.payload) for each in await run.set_aside()) == ["3", "poison"]


async def test_a_run_expires_though_a_misfit_came_in_time(house: House, hf: Holdfast) -> None:
    graph = waiting_for("go", bool)
    run = await hf.start(graph, id="doc-42", expires=hours(1))
    await run.signal("go", "poison")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        for _ in range(3):
            await house.move(3_601, worker)
        assert (await run.get()).status == "expired"


async def test_an_extension_keeps_what_was_set_aside(house: House, hf: Holdfast) -> None:
    graph = waiting_for("go", bool)
    run = await hf.start(graph, id="doc-42", expires=hours(1))
    await run.signal("go", "poison", signal_id="1")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        await run.extend(hours(1_000))
        await house.quiet(worker)
    key = RunKey("default", "doc-42")
    row = await hf._kernel.heads.get(key.head)
    assert row is not None
    item = await hf._kernel.inboxes.get(inbox_key(key, row["generation"], "go", "1"))
    assert item is not None
    assert item["ttl"] == row["ttl"]


async def test_a_misfit_does_not_answer_a_wait_before_its_deadline(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        try:
            return {"answer": await ctx.wait(signal("go", bool), max_wait=hours(1))}
        except WaitTimedOut:
            return {"answer": None}

    run = await hf.start(graph, id="doc-42")
    await run.signal("go", "poison")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await run.get()).waits[0].deadline_ms == house.clock.now_ms() + 3_600_000
        await house.move(3_601, worker)
        assert await run.result(timeout=60) == {"answer": None}


async def test_a_node_must_wait_for_declared_signals_of_their_type(
    house: House, hf: Holdfast
) -> None:
    for graph, error in (
        (waiting_for("stop", signals=[signal("go")]), "declares the signals go; got 'stop'"),
        (waiting_for("go", str, signals=[signal("go", bool)]), "declares: bool, got str"),
        (waiting_for("go", "bool"), "must be a type such as bool, got the text 'bool'"),
        (waiting_for("go", object), "no JSON schema"),
    ):
        async with house.worker(hf, graph):
            run = await hf.start(graph)
            with pytest.raises(RunFailed, match=error):
                await run.result(timeout=60)


async def test_declared_signals_are_checked_when_the_graph_is_made() -> None:
    for signals, error in (
        ("go", "must be a list"),
        (signal("go"), "must be a list"),
        (["go"], 'must contain signal\\("name"\\)'),
        ([signal("go"), signal("go", bool)], "different names, got 'go' twice"),
        ([signal("%call")], "signals:"),
        ([signal("go", object)], "no JSON schema"),
        ([signal(f"s{number}") for number in range(201)], "at most 200"),
    ):
        with pytest.raises(InvalidGraph, match=error):
            Graph("g", dict, signals=signals)  # type: ignore[arg-type]


async def test_included_graphs_add_their_signals(house: House, hf: Holdfast) -> None:
    inner = waiting_for("go", signals=[signal("go", bool)])
    outer = Graph("outer", dict, signals=[signal("stop")])
    outer.include(inner)
    assert (outer.signals, outer.takes_other_signals) == (
        {"go": bool, "stop": msgspec.UNSET},
        False,
    )
    other = Graph("other", dict, signals=[signal("go", str)])
    with pytest.raises(InvalidGraph, match="signal 'go' must have the same type"):
        other.include(inner)


async def test_a_type_is_stored_before_a_run_waits_for_it(house: House) -> None:
    graph = waiting_for("go", Literal["yes", "no"])
    hf, stranger = house.open(), house.open()
    run = await hf.start(graph, id="doc-42")
    # It has read that nothing is known, and does not ask again for a while.
    await stranger.run("doc-42").signal("other")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        (wait,) = (await run.get()).waits
        assert isinstance(wait.payload_schema, str)
        with pytest.raises(SignalMisfit, match="it must be one of 'no', 'yes'"):
            await stranger.run("doc-42").signal("go", "maybe")


async def test_the_item_of_a_graph_is_written_once(house: House) -> None:
    graph = waiting_for("go", signals=[signal("go", bool)])
    for _ in range(3):
        hf = house.open()
        async with house.worker(hf, graph) as worker:
            await asyncio.wait(worker._background_tasks[-1:])
    item = await hf._kernel.graph_items.get(graph_key("g", 1))
    assert item is not None
    facts = graph_facts_of(item)
    assert (facts.revision, facts.declared) == (1, ("go",))
    assert list(facts.schemas["go"].values()) == [{"type": "boolean"}]
    assert "ask" in facts.drawing


async def test_newer_code_of_the_same_version_may_take_more(house: House) -> None:
    old = waiting_for("go", signals=[signal("go", bool)])
    new = waiting_for("go", signals=[signal("go", Literal["yes", "no"]), signal("stop")])
    hf, stranger = house.open(), house.open()
    run = await hf.start(old, id="doc-42")
    with pytest.raises(UnknownSignal):
        await run.signal("stop")
    async with house.worker(house.open(), new) as worker:
        await house.quiet(worker)
        # The process of the old code learns of it before it refuses anything.
        await run.signal("stop")
        await house.move(1, worker)  # it waits again, and says for which of the two types
        with pytest.raises(SignalMisfit):
            await stranger.run("doc-42").signal("go", True)
        await run.signal("go", "yes")
        await house.move(1, worker)
        assert (await run.result(timeout=60))["answer"] == "yes"


async def test_a_worker_works_without_the_item(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = waiting_for("go", bool)

    async def unavailable(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(hf._kernel.graph_items, "get", unavailable)
    stranger = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await stranger.run("doc-42").signal("go", "poison")  # unchecked: the schema is unknown
        await house.move(1, worker)
        assert [each.payload for each in await stranger.run("doc-42").set_aside()] == ["poison"]
        await stranger.run("doc-42").signal("go", True)
        await house.move(1, worker)
        assert (await run.result(timeout=60))["answer"] == "True"


async def test_a_damaged_item_of_a_graph_refuses_nothing(house: House, hf: Holdfast) -> None:
    graph = waiting_for("go", bool)
    run = await hf.start(graph, id="doc-42")
    key = graph_key("g", 1)
    damaged = {"PK": key.pk, "SK": key.sk, "signals": b"\xff", "revision": 3}
    await hf._kernel.graph_items.write(Put(damaged))
    await house.open().run("doc-42").signal("go", "anything")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"


async def test_a_signal_says_whether_the_run_waits_for_it(house: House, hf: Holdfast) -> None:
    graph = waiting_for("go")
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        early = await run.signal("later", signal_id="1")
        assert early == SignalReceipt(repeated=False, answers_wait=False, waits_for=("go",))
        assert (await run.signal("later", signal_id="1")).repeated
        assert (await run.signal("go", signal_id="2")).answers_wait
        await run.result(timeout=60)
        assert (await run.signal("go", signal_id="2")).repeated


async def test_a_signal_is_sent_by_its_name_or_by_itself(house: House, hf: Holdfast) -> None:
    go = signal("go", bool)
    graph = waiting_for("go", bool)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        for wrong in (bool, 3, None, ["go"], b"go"):
            with pytest.raises(InvalidName, match=r'must be a string or signal\("name"\), got'):
                await run.signal(wrong, True)  # type: ignore[arg-type]
        with pytest.raises(InvalidName, match="must not contain '#'"):
            await run.signal(signal("g#o"), True)
        with pytest.raises(SignalMisfit):
            await run.signal(go, "true")
        assert (await run.signal(go, True)).answers_wait
        assert (await run.result(timeout=60))["answer"] == "True"


async def test_a_promoted_input_must_fit_the_wait(house: House, hf: Holdfast) -> None:
    graph = waiting_for("go", Decision)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="first", session="chat")
        await house.quiet(worker)
        with pytest.raises(SignalMisfit, match="yes: it is missing"):
            await hf.start(graph, {"no": 1}, id="second", session="chat", on_busy="promote")
        await hf.start(graph, {"yes": True}, id="third", session="chat", on_busy="promote")
        assert (await run.result(timeout=60))["type"] == "dict"


# --- retries --------------------------------------------------------------------------------------


def failing_after(kind: Any = msgspec.UNSET) -> tuple[Graph, list[str]]:
    """Return a graph whose node fails until its answer is right, and what its calls did."""
    graph = Graph("g", dict)
    made: list[str] = []

    async def pay() -> int:
        made.append("paid")
        return len(made)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        await ctx.call(pay)
        await ctx.sleep(1)
        answer = await ctx.wait(signal("go", kind))
        if answer != "good":
            raise ValueError(answer)
        return {"answer": answer}

    return graph, made


@pytest.mark.parametrize("keep", [False, True])
async def test_after_a_retry_a_wait_asks_again(either: House, keep: bool) -> None:
    graph, made = failing_after()
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("go", "poison")
        await either.clock.asleep(4)
        await either.move(1, worker)
        assert (await run.get()).status == "failed"
        await run.retry(keep_answers=keep)
        await either.quiet(worker)
        assert (await run.get()).status == ("failed" if keep else "waiting")
        if keep:
            await run.retry()
            await either.quiet(worker)
        await run.signal("go", "good")
        assert await run.result(timeout=60) == {"answer": "good"}
    assert made == ["paid"]


async def test_a_signal_that_was_taken_before_a_retry_answers_no_wait(either: House) -> None:
    graph, _ = failing_after()
    hf, stranger = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        first = await run.signal("go", "poison", signal_id="1")
        assert not first.waits_again
        await either.clock.asleep(4)
        await either.move(1, worker)
        await run.retry()
        await either.quiet(worker)
        for handle in (run, stranger.run("doc-42")):
            assert await handle.signal("go", "poison", signal_id="1") == SignalReceipt(
                repeated=True, answers_wait=False, waits_for=("go",), waits_again=True
            )
            await either.move(1, worker)
        again = await run.signal("go", "good", signal_id="2")
        assert (again.answers_wait, again.waits_again) == (True, False)
        assert await run.result(timeout=60) == {"answer": "good"}
        ended = await run.signal("go", "good", signal_id="2")
        assert (ended.repeated, ended.answers_wait, ended.waits_again) == (True, False, False)


async def test_after_a_retry_a_wait_that_timed_out_waits_anew(house: House, hf: Holdfast) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        return {"answer": await ctx.wait(signal("go"), max_wait=hours(1))}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(3_601, worker)
        assert (await run.get()).status == "failed"
        await run.retry(keep_answers=True)
        await house.quiet(worker)
        assert (await run.get()).status == "failed"
        await run.retry()
        await house.quiet(worker)
        (wait,) = (await run.get()).waits
        assert wait.deadline_ms == house.clock.now_ms() + 3_600_000
        await run.signal("go", 1)
        assert await run.result(timeout=60) == {"answer": 1}


async def test_only_the_branch_that_failed_asks_again(house: House, hf: Holdfast) -> None:
    graph = Graph("g", dict)
    answers: list[str] = []

    @graph.node
    async def begin(state: Any) -> Any:
        return {"items": ["a", "b"]}

    @graph.node(writes=["item"])
    async def ask(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait(signal(f"go-{state['item']}"))
        answers.append(answer)
        if answer == "poison":
            raise ValueError(answer)
        await ctx.wait(signal(f"more-{state['item']}"))

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.each(begin, ask, over="items", into="item", join=end)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("go-b", "kept")
        await house.quiet(worker)
        await run.signal("go-a", "poison")
        await house.quiet(worker)
        assert (await run.get()).status == "failed"
        await run.retry()
        await house.quiet(worker)
        waits = {wait.signal for wait in (await run.get()).waits}
        assert waits == {"go-a", "more-b"}
        for name in ("go-a", "more-a", "more-b"):
            await run.signal(name, "fine")
        await run.result(timeout=60)


async def test_a_retry_from_a_node_has_no_answers_to_keep(hf: Holdfast) -> None:
    run = hf.run("doc-42")
    with pytest.raises(InvalidRequest, match="keep_answers must not be given with from_node"):
        await run.retry(from_node="ask", keep_answers=True)
    with pytest.raises(InvalidRequest, match="keep_answers must be True or False, got 1"):
        await run.retry(keep_answers=1)  # type: ignore[arg-type]


async def test_a_bulk_retry_keeps_answers_if_told_to(house: House, hf: Holdfast) -> None:
    graph, _ = failing_after()
    async with house.worker(hf, graph, hold=0) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("go", "poison")
        await house.quiet(worker)
        await house.move(2, worker)
        assert (await run.get()).status == "failed"
        async for _progress in hf.retry_all(everything=True, keep_answers=True):
            pass
        await house.quiet(worker)
        assert (await run.get()).status == "failed"
        async for _progress in hf.retry_all(everything=True):
            pass
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
