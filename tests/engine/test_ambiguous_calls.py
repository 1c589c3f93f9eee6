"""Calls that are made at most once: what may have happened is never blindly repeated."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import UNKNOWN, VOID, Graph, Holdfast, Retry, done, tool
from holdfast.errors import (
    AlreadyExists,
    CallFailed,
    InvalidRequest,
    NotAmbiguous,
    NotDone,
    PayloadTooLarge,
    RunNotFound,
)
from tests.engine.support import Gate, House, kill, reached


class Bank:
    """Pays once for each key, unless the key is burned."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.paid: dict[str, int] = {}
        self.burned: set[str] = set()
        self.gate = Gate()
        self.stuck = 1
        self.error: Exception | None = None

    async def pay(self, amount: int, idempotency_key: str) -> dict[str, Any]:
        self.asked.append(idempotency_key)
        if self.error is not None:
            raise self.error
        if len(self.asked) <= self.stuck:
            await self.gate.pass_through()
        assert idempotency_key not in self.burned
        self.paid[idempotency_key] = amount
        return {"receipt": amount}

    async def probe(self, key: str) -> Any:
        if key in self.paid:
            return done({"receipt": self.paid[key]})
        self.burned.add(key)
        return VOID


@pytest.fixture
def bank() -> Bank:
    return Bank()


def paying(bank: Bank, **contract: Any) -> Graph:
    pay = tool(at_most_once=True, name="pay", **contract)(bank.pay)
    graph = Graph("g", dict)

    @graph.node(retry=Retry(attempts=3, backoff=0))
    async def node(state: Any, ctx: Any) -> Any:
        try:
            return {"receipt": await ctx.call(pay, 100)}
        except CallFailed as failed:
            return {"failed": str(failed)}

    return graph


async def killed_in_the_middle(house: House, bank: Bank, graph: Graph) -> Holdfast:
    """Start a run, and let its worker die inside the call; return who is to go on."""
    hf = house.open()
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await hf.start(graph, id="doc-42")
    await bank.gate.waited_at()
    kill(doomed)
    return house.open()


async def taken_over(house: House, worker: Any) -> None:
    await house.clock.asleep(3)
    for _ in range(8):
        await house.move(5, worker)


async def ambiguous(hf: Holdfast) -> list[tuple[str, str, str]]:
    return [(call.run, call.name, call.key) async for call in hf.ambiguous()]


async def test_one_in_flight_at_a_kill_waits_for_a_person(either: House, bank: Bank) -> None:
    graph = paying(bank)
    hf = await killed_in_the_middle(either, bank, graph)
    assert await ambiguous(hf) == []
    async with either.worker(hf, graph, lease=10) as worker:
        await taken_over(either, worker)
        row = await hf.run("doc-42").get()
        assert (row.status, row.reason) == ("waiting", "ambiguous")
        assert row.waits[0].about == f"pay {bank.asked[0]}"
        (call,) = [call async for call in hf.ambiguous()]
        assert (call.run, call.graph, call.node, call.name) == ("doc-42", "g", "node", "pay")
        assert call.key == bank.asked[0]
        assert len(bank.asked) == 1
        await hf.run("doc-42").resolve(call.call, result={"receipt": 7})
        run = hf.run("doc-42")
        assert await run.result(timeout=60) == {"receipt": {"receipt": 7}}
    assert len(bank.asked) == 1
    assert await ambiguous(hf) == []
    kinds = [(each.kind, each.details.get("by")) for each in (await run.history()).entries]
    assert ("intent", None) in kinds
    assert ("call", "person") in kinds


async def test_a_person_can_say_that_it_failed_or_never_was(house: House, bank: Bank) -> None:
    bank.stuck = 2
    graph = paying(bank)
    hf = await killed_in_the_middle(house, bank, graph)
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await taken_over(house, doomed)
    (call,) = [call async for call in hf.ambiguous()]
    with pytest.raises(InvalidRequest):
        await hf.run("doc-42").resolve(call.call, void=True, error="no")
    for nothing in ({}, {"void": False}):  # which is no word that it was carried out
        with pytest.raises(InvalidRequest, match="exactly one of result"):
            await hf.run("doc-42").resolve(call.call, **nothing)
    with pytest.raises(PayloadTooLarge, match=r"limit is 4,194,304; .+\.answer_bytes_max sets"):
        await hf.run("doc-42").resolve(call.call, result="a" * 4 * 1024 * 1024)
    with pytest.raises(NotAmbiguous):
        await hf.run("doc-42").resolve("0" * 16, void=True)
    with pytest.raises(RunNotFound):
        await hf.run("doc-42", tenant="other").resolve(call.call, void=True)
    await hf.run("doc-42").resolve(call.call, void=True)
    with pytest.raises(AlreadyExists):
        await hf.run("doc-42").resolve(call.call, result=1)
    await bank.gate.waited_at()
    assert bank.asked[0] != bank.asked[1]
    kill(doomed)
    hf = house.open()
    async with house.worker(hf, graph, lease=10) as worker:
        await taken_over(house, worker)
        (again,) = [call async for call in hf.ambiguous()]
        assert (again.key, again.call != call.call) == (bank.asked[1], True)
        await hf.run("doc-42").resolve(again.call, error="the bank closed")
        state = await hf.run("doc-42").result(timeout=60)
    assert "the bank closed" in state["failed"]
    assert len(bank.asked) == 2


async def test_the_probe_decides_before_anybody_is_asked(either: House, bank: Bank) -> None:
    graph = paying(bank, probe=bank.probe)
    hf = await killed_in_the_middle(either, bank, graph)
    bank.paid[bank.asked[0]] = 100
    async with either.worker(hf, graph, lease=10) as worker:
        await taken_over(either, worker)
        assert await hf.run("doc-42").result(timeout=60) == {"receipt": {"receipt": 100}}
    assert len(bank.asked) == 1


async def test_what_is_void_is_made_again_under_another_key(house: House, bank: Bank) -> None:
    graph = paying(bank, probe=bank.probe)
    hf = await killed_in_the_middle(house, bank, graph)
    async with house.worker(hf, graph, lease=10) as worker:
        await taken_over(house, worker)
        assert await hf.run("doc-42").result(timeout=60) == {"receipt": {"receipt": 100}}
    assert bank.burned == {bank.asked[0]}
    assert list(bank.paid) == [bank.asked[1]]


@pytest.mark.parametrize("answer", [UNKNOWN, None, "nonsense", ConnectionError("no answer")])
async def test_a_probe_that_cannot_tell_leaves_it_to_a_person(
    house: House, bank: Bank, answer: Any
) -> None:
    def probe(key: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    graph = paying(bank, probe=probe)
    hf = await killed_in_the_middle(house, bank, graph)
    async with house.worker(hf, graph, lease=10) as worker:
        await taken_over(house, worker)
        await reached(hf, "doc-42", "waiting")
        assert await ambiguous(hf) == [("doc-42", "pay", bank.asked[0])]
    assert len(bank.asked) == 1


async def test_an_error_is_no_proof_that_nothing_happened(
    house: House, hf: Holdfast, bank: Bank
) -> None:
    """Neither the retries of the call nor those of the node repeat it."""
    bank.error = ConnectionResetError("torn")
    graph = paying(bank, retry=Retry(attempts=5, backoff=0))
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert await ambiguous(hf) == [("doc-42", "pay", bank.asked[0])]
        assert len(bank.asked) == 1
        (call,) = [call async for call in hf.ambiguous()]
        await hf.run("doc-42").resolve(call.call, result={"receipt": 1})
        assert await hf.run("doc-42").result(timeout=60) == {"receipt": {"receipt": 1}}


async def test_a_tool_that_is_sure_that_nothing_happened_is_called_again(
    house: House, hf: Holdfast, bank: Bank
) -> None:
    bank.error = NotDone("the bank is closed")
    graph = paying(bank, retry=Retry(attempts=3, backoff=0))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert "the bank is closed" in (await run.result(timeout=60))["failed"]
    assert len(bank.asked) == 3
    assert await ambiguous(hf) == []


async def test_a_call_that_takes_too_long_is_ambiguous(
    house: House, hf: Holdfast, bank: Bank
) -> None:
    graph = paying(bank, timeout=0.01)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await reached(hf, "doc-42", "waiting")
        await house.quiet(worker)
        assert await ambiguous(hf) == [("doc-42", "pay", bank.asked[0])]


async def test_a_run_in_memory_is_written_down_before_it(house: House, hf: Holdfast) -> None:
    bank = Bank()
    bank.stuck = 0
    graph = paying(bank)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42", durability="on_pause")
        assert await run.result(timeout=60) == {"receipt": {"receipt": 100}}
        assert (await hf.run("doc-42").get()).status == "finished"
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds == ["intent", "call", "node", "finished"]


async def test_a_tenant_sees_only_its_own(house: House, hf: Holdfast, bank: Bank) -> None:
    bank.error = OSError("torn")
    graph = paying(bank)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", tenant="acme")
        await house.quiet(worker)
        assert await ambiguous(hf) == []
        (call,) = [call async for call in hf.ambiguous(tenant="acme")]
        assert call.tenant == "acme"
        with pytest.raises(RunNotFound):
            await hf.run("doc-42").resolve(call.call, result=1)


async def test_a_run_that_is_cancelled_is_listed_no_more(
    house: House, hf: Holdfast, bank: Bank
) -> None:
    bank.error = OSError("torn")
    graph = paying(bank)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert len(await ambiguous(hf)) == 1
        await run.cancel()
        assert await ambiguous(hf) == []


def test_one_that_takes_the_context_could_pause_in_the_middle() -> None:
    with pytest.raises(InvalidRequest, match="must not take ctx"):

        @tool(at_most_once=True)
        async def pay(ctx: Any) -> None: ...


async def test_one_that_raised_and_is_void_has_failed_like_any_other(
    house: House, hf: Holdfast, bank: Bank
) -> None:
    """To make it again and again, as fast as the bank says no, would never end."""
    bank.error = ValueError("no such account")
    graph = paying(bank, probe=bank.probe)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert "no such account" in (await run.result(timeout=60))["failed"]
    assert bank.burned == set(bank.asked)
    assert len(bank.asked) == 1


async def test_its_retries_go_on_under_other_keys(house: House, hf: Holdfast, bank: Bank) -> None:
    bank.error = ConnectionResetError("torn")
    retry = Retry(attempts=3, backoff=0, on=(ConnectionResetError,))
    graph = paying(bank, probe=bank.probe, retry=retry)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert "torn" in (await run.result(timeout=60))["failed"]
    assert len(set(bank.asked)) == 3
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds.count("call_attempt") == 2
    assert kinds.count("void") == 3


async def test_a_result_that_it_cannot_have_returned_is_asked_for_again(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @tool(at_most_once=True)
    async def pay() -> int:
        raise OSError("torn")

    @graph.node
    async def node(state: Any, ctx: Any) -> Any:
        return {"receipt": await ctx.call(pay)}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        (call,) = [call async for call in hf.ambiguous()]
        await hf.run("doc-42").resolve(call.call, result="seven")
        await house.quiet(worker)
        (again,) = [call async for call in hf.ambiguous()]
        assert again.key == call.key
        assert "not the result that was said: Expected `int`" in (await run.get()).waits[0].about
        await hf.run("doc-42").resolve(again.call, result=7)
        assert await run.result(timeout=60) == {"receipt": 7}
