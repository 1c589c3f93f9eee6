"""Tools that need a person: a call is made with exactly the arguments that a reviewer approved."""

from __future__ import annotations

import dataclasses
import logging
from datetime import date
from typing import Any

import pytest

from holdfast import Approval, Context, Graph, Holdfast, Retry, signal, tool
from holdfast.errors import CallChanged, CallFailed, CallRejected, InvalidRequest, RunFailed
from holdfast.model.review import Review
from tests.engine.asking import graph_of
from tests.engine.support import House


class Bank:
    """Makes transfers, and knows which ones."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.failing = 0

    def transfer(self, **options: Any) -> Any:
        @tool(name="transfer", **{"approval": True, **options})
        async def transfer(amount: int, to: str = "Ana", idempotency_key: str = "") -> str:
            """Transfer money."""
            if self.failing:
                self.failing -= 1
                raise ConnectionError("closed")
            self.made.append((amount, to))
            return f"{amount} to {to}"

        return transfer


async def pending(hf: Holdfast, run: str = "r") -> list[Review]:
    page = await hf.reviews.list(run=run)
    return [await hf.reviews.get(entry.id) for entry in page.reviews]


async def only(hf: Holdfast, run: str = "r") -> Review:
    (review,) = await pending(hf, run)
    return review


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_call_waits_for_its_approval(either: House) -> None:
    bank = Bank()
    transfer = bank.transfer()

    async def node(state: Any, ctx: Context) -> Any:
        return {"done": await ctx.call(transfer, 100, "Ben")}

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
        assert bank.made == []
        row = await run.get()
        assert (row.status, row.reason) == ("waiting", "review")
        review = await only(hf)
        assert review.question == 'Call transfer(amount=100, to="Ben")?'
        assert review.tool == "transfer"
        assert review.values == {"amount": 100, "to": "Ben"}
        assert review.shown == {"tool": "transfer", "description": "Transfer money."}
        assert review.form is not None
        assert review.form["properties"]["amount"] == {"type": "integer"}
        assert "idempotency_key" not in review.form["properties"]
        await hf.reviews.approve(review.id, by="Cleo")
        assert await run.result(timeout=60) == {"done": "100 to Ben"}
    assert bank.made == [(100, "Ben")]


async def test_a_function_of_the_arguments_says_which_calls_need_an_approval(house: House) -> None:
    bank = Bank()
    seen: list[int] = []

    def is_large(amount: int) -> bool:
        seen.append(amount)
        return amount > 100

    transfer = bank.transfer(approval=is_large)

    async def node(state: Any, ctx: Context) -> Any:
        return {"small": await ctx.call(transfer, 5), "large": await ctx.call(transfer, amount=500)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        assert bank.made == [(5, "Ana")]
        await hf.reviews.approve((await only(hf)).id, by="Cleo")
        assert await run.result(timeout=60) == {"small": "5 to Ana", "large": "500 to Ana"}
    assert bank.made == [(5, "Ana"), (500, "Ana")]
    assert seen == [5, 500]


@pytest.mark.parametrize("fault", ["raises", "returns"])
async def test_a_function_that_cannot_say_it_lets_nothing_be_called(
    house: House, fault: str
) -> None:
    bank = Bank()

    def broken(amount: int) -> Any:
        if fault == "raises":
            raise KeyError("limit")

    transfer = bank.transfer(approval=broken)

    async def node(state: Any, ctx: Context) -> Any:
        return {"done": await ctx.call(transfer, 5)}

    graph, hf = graph_of(node), house.open()
    said = "raised KeyError: 'limit'" if fault == "raises" else "must return True or False, got No"
    async with house.worker(hf, graph):
        with pytest.raises(RunFailed, match=f"when of the approval of tool 'transfer' {said}"):
            await (await hf.start(graph, id="r")).result(timeout=60)
    assert bank.made == []
    assert await pending(hf) == []


async def test_options_of_an_approval(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer(
        approval=Approval(
            question=lambda amount, to: f"Pay {to} {amount}?",
            show=lambda to: {"customer": to.upper()},
            assignees=["Cleo", "Dan"],
            expires="1h",
            quorum=2,
        )
    )

    async def node(state: Any, ctx: Context) -> Any:
        return {"done": await ctx.call(transfer, 5)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="r")
        await house.quiet(worker)
        review = await only(hf)
        assert review.question == "Pay Ana 5?"
        assert review.shown["customer"] == "ANA"
        assert (review.assignees, review.quorum) == (("Cleo", "Dan"), 2)
        assert review.expires_at is not None
        assert (review.expires_at - review.created_at).total_seconds() == 3600
        await hf.run("r").cancel()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"approval": "yes"}, "approval must be True, a plain function"),
        ({"approval": lambda ammount: True}, "has the parameter 'ammount'; the tool has: amount"),
    ],
)
def test_a_wrong_approval_is_refused_where_it_is_declared(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        Bank().transfer(**options)


def test_wrong_options_of_an_approval_are_refused() -> None:
    async def later(amount: int) -> bool:
        return True

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"when": later}, "when must be a plain function"),
        ({"question": 5}, "question must be a plain function"),
        ({"show": {"a": 1}}, "show must be a plain function"),
        ({"assignees": [""]}, "assignees must be a name"),
        ({"quorum": 0}, "quorum must be an integer from 1"),
        ({"assignees": ["a"], "quorum": 2}, "quorum must be at most the number of assignees"),
        ({"expires": "soon"}, "expires"),
        ({"expires": "1d", "remind_after": "2d"}, "remind_after must be shorter than expires, 1d"),
        ({"escalate_to": "boss"}, "escalate_to needs escalate_after="),
        ({"assignees": "ana, bob"}, "assignees must not contain names with a comma"),
    ]
    for options, fault in wrong:
        with pytest.raises(InvalidRequest, match=fault):
            Approval(**options)

    def many(*amounts: int) -> None: ...

    with pytest.raises(InvalidRequest, match="approves arguments by name"):
        tool(approval=True)(many)
    with pytest.raises(InvalidRequest, match="needs a function with a signature"):
        tool(approval=True)(dict)


@dataclasses.dataclass
class Person:
    name: str


async def test_a_reviewer_edits_the_arguments(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    @tool(approval=True)
    async def pay(to: Person, day: date, amount: int) -> int:
        made.append((to, day, amount))
        return amount

    async def node(state: Any, ctx: Context) -> Any:
        paid = await ctx.call(pay, Person("Ana"), date(2026, 1, 5), 100)
        await ctx.wait(signal("go on"))
        return {"paid": paid}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        review = await only(hf)
        edited = {"to": {"name": "Ben"}, "day": "2026-02-01", "amount": 50}
        await hf.reviews.approve(review.id, by="Cleo", values=edited)
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"paid": 50}
        (entry,) = [e for e in (await run.history()).entries if e.kind == "call"]
    assert made == [(Person("Ben"), date(2026, 2, 1), 50)]
    assert entry.details["arguments"]["amount"] == 50
    # The node asks for what it asked for before: the edit is no change of the program.
    assert warnings_of(caplog) == []


async def test_edited_arguments_that_do_not_fit_are_asked_for_again(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer()

    async def node(state: Any, ctx: Context) -> Any:
        return {"done": await ctx.call(transfer, 100)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        first = await only(hf)
        # As a process of another release may decide that checks less.
        await decide_with(hf, first.id, {"amount": "much", "to": "Ana"})
        await house.quiet(worker)
        assert bank.made == []
        again = await only(hf)
        assert again.id != first.id
        assert again.values == {"amount": 100, "to": "Ana"}
        await hf.reviews.approve(again.id, by="Cleo")
        assert await run.result(timeout=60) == {"done": "100 to Ana"}


async def decide_with(hf: Holdfast, id: str, values: Any) -> None:
    """Put a decision with any values into the inbox, as an approval of them."""
    from holdfast.engine.runs.signalling import send_signal
    from holdfast.model.wait import ReviewWait
    from holdfast.records.keys import RunKey

    run, _, name = id.rpartition("~")
    review = await hf.reviews.get(id)
    payload = {
        "status": "approved", "by": "Cleo", "comment": "", "values": values,
        "at_ms": hf._kernel.clock.now_ms(), "digest": review.digest, "seen": review.rendered,
    }  # fmt: skip
    await send_signal(
        hf._kernel,
        hf._workers,
        RunKey("default", run),
        name=ReviewWait(name).signal,
        id="decision",
        payload=payload,
        first_counts=True,
    )


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_rejection_is_the_end_of_the_call(house: House, at_most_once: bool) -> None:
    bank = Bank()
    transfer = bank.transfer(at_most_once=at_most_once, retry=Retry(attempts=3))
    told: list[CallRejected] = []

    async def node(state: Any, ctx: Context) -> Any:
        try:
            await ctx.call(transfer, 100)
        except CallRejected as error:
            told.append(error)
        if ctx.attempt == 1:
            raise ConnectionError
        return {"attempt": ctx.attempt}

    graph, hf = graph_of(node, retry=Retry(attempts=2, backoff=0)), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        await hf.reviews.reject((await only(hf)).id, by="Cleo", comment="too much")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"attempt": 2}
    assert bank.made == []
    assert [str(error) for error in told] == [
        "'transfer' was not called: Cleo rejected this call: too much"
    ] * 2
    assert {(e.status, e.by, e.comment) for e in told} == {("rejected", "Cleo", "too much")}
    assert told[0].reason == "Cleo rejected this call: too much"
    assert isinstance(told[0], CallFailed)
    assert told[0].is_a(CallRejected)


async def test_a_rejected_call_is_not_made_by_a_program_that_asks_no_more(house: House) -> None:
    bank = Bank()

    def graph(approval: bool) -> Graph:
        transfer = bank.transfer(approval=approval)

        async def node(state: Any, ctx: Context) -> Any:
            try:
                await ctx.call(transfer, 100)
            except CallFailed as error:
                if approval:
                    raise ConnectionError from None
                return {"rejected": error.is_a(CallRejected)}

        return graph_of(node, retry=Retry(attempts=2, backoff=60, jitter=0))

    old, new = graph(True), graph(False)
    hf = house.open()
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
        await hf.reviews.reject((await only(hf)).id, by="Cleo")
        await house.quiet(worker)
    other = house.open()
    async with house.worker(other, new) as worker:
        await house.move(61, worker)
        assert await other.run("r").result(timeout=60) == {"rejected": True}
    assert bank.made == []


async def test_a_program_that_asks_no_more_ignores_a_pending_review(house: House) -> None:
    bank = Bank()

    def graph(approval: bool) -> Graph:
        transfer = bank.transfer(approval=approval)

        async def node(state: Any, ctx: Context) -> Any:
            await ctx.call(transfer, 100)

        return graph_of(node)

    old, new = graph(True), graph(False)
    hf = house.open()
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
    await hf.reviews.reject((await only(hf)).id, by="Cleo")
    other = house.open()
    async with house.worker(other, new):
        await other.run("r").result(timeout=60)
    assert len(bank.made) == 1


async def test_a_call_that_expires_is_rejected(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer(approval=Approval(expires="1h"))

    async def node(state: Any, ctx: Context) -> Any:
        try:
            await ctx.call(transfer, 100)
        except CallRejected as error:
            return {"status": error.status, "reason": error.reason}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        await house.move(3600, worker)
        assert await run.result(timeout=60) == {
            "status": "expired",
            "reason": "no reviewer approved this call in time",
        }
    assert bank.made == []


# --- whatever a resume computes -------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "payment-1"])
async def test_a_clock_in_the_arguments_neither_asks_again_nor_changes_the_call(
    house: House, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    made: list[Any] = []

    @tool(approval=True)
    async def book(at: int) -> int:
        made.append(at)
        return at

    async def node(state: Any, ctx: Context) -> Any:
        at = await ctx.with_options(key=key).call(book, house.clock.now_ms())
        await ctx.wait(signal("go on"))
        return {"at": at}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        review = await only(hf)
        await house.move(60, worker)
        await hf.reviews.approve(review.id, by="Cleo")
        await house.quiet(worker)
        (warning,) = warnings_of(caplog)
        assert "has other arguments than those that were approved; exactly the" in warning
        assert made == [review.values["at"]]
        await run.signal("go on")
        assert await run.result(timeout=60) == {"at": review.values["at"]}
    assert len(made) == 1
    assert "its record answers, and nothing is called again" in warnings_of(caplog)[1]


async def test_a_changed_program_executes_what_was_approved(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()

    def graph(amount: int, approval: Any) -> Graph:
        transfer = bank.transfer(approval=approval)

        async def node(state: Any, ctx: Context) -> Any:
            return {"done": await ctx.call(transfer, amount)}

        return graph_of(node)

    old, new = graph(100, True), graph(999, lambda amount: False)
    hf = house.open()
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
    other = house.open()
    async with house.worker(other, new):
        await other.reviews.approve((await only(other)).id, by="Cleo")
        assert await other.run("r").result(timeout=60) == {"done": "100 to Ana"}
    assert bank.made == [(100, "Ana")]
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("fits", [True, False])
async def test_changed_parameters_of_a_tool(
    house: House, caplog: pytest.LogCaptureFixture, fits: bool
) -> None:
    made: list[Any] = []

    @tool(name="pay", approval=True)
    async def before(amount: int) -> int:
        raise AssertionError

    async def wider(amount: int, to: str = "Ana") -> int:
        made.append((amount, to))
        return amount

    async def narrower(amount: str) -> int:
        raise AssertionError

    after = tool(name="pay", approval=True)(wider if fits else narrower)

    def graph(pay: Any, amount: Any) -> Graph:
        async def node(state: Any, ctx: Context) -> Any:
            try:
                return {"paid": await ctx.call(pay, amount)}
            except CallChanged as error:
                return {"changed": str(error)}

        return graph_of(node)

    old, new = graph(before, 7), graph(after, 7 if fits else "7")
    hf = house.open()
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
    other = house.open()
    async with house.worker(other, new):
        await other.reviews.approve((await only(other)).id, by="Cleo")
        state = await other.run("r").result(timeout=60)
    if fits:
        assert (state, made) == ({"paid": 7}, [(7, "Ana")])
        assert len(warnings_of(caplog)) == 1
    else:
        assert "the approved arguments of 'pay' do not fit its parameters any" in state["changed"]
        assert "nothing was called" in state["changed"]


async def test_another_tool_under_the_same_key_is_not_called(house: House) -> None:
    bank = Bank()

    @tool(approval=True)
    async def close_account(amount: int, to: str = "Ana") -> str:
        raise AssertionError

    def graph(used: Any) -> Graph:
        async def node(state: Any, ctx: Context) -> Any:
            try:
                return {"done": await ctx.with_options(key="k").call(used, 100)}
            except CallChanged as error:
                return {"changed": str(error)}

        return graph_of(node)

    old, new = graph(bank.transfer()), graph(close_account)
    hf = house.open()
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
    other = house.open()
    async with house.worker(other, new):
        await other.reviews.approve((await only(other)).id, by="Cleo")
        state = await other.run("r").result(timeout=60)
    assert "the reviewers approved a call of 'transfer'; nothing was called" in state["changed"]


async def test_one_key_for_two_different_calls_is_refused(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer(approval=lambda amount: False)

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.with_options(key="k").call(transfer, 1)
        await ctx.with_options(key="k").call(transfer, 1)
        try:
            await ctx.with_options(key="k").call(transfer, 2)
        except CallChanged as error:
            return {"changed": str(error)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph):
        state = await (await hf.start(graph, id="r")).result(timeout=60)
    assert "another call needs another key" in state["changed"]
    assert bank.made == [(1, "Ana")]
