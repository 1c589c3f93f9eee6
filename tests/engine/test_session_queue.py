"""Sessions: one run after the other, in the order of their starts, whoever runs them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast import Graph, Holdfast, RunFilter, days, signal
from holdfast.errors import (
    AlreadyExists,
    InvalidName,
    InvalidRequest,
    OutcomeUnknown,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    SessionBusy,
    TransactionCancelled,
)
from holdfast.records import session_queue as queue_records
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import SessionQueueKey
from holdfast.storage import Delete, Key, Put
from tests.engine.staging import staged, transaction, write_of
from tests.engine.support import (
    Gate,
    House,
    chain,
    item_of_head,
    journal_items,
    reached,
    store_of,
    tenant_key,
)

SESSION = "chat-7"


class Talk:
    """A graph whose runs tell when they begin and end, and stand at a gate where they have one."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gates: dict[str, Gate] = {}
        self.graph = Graph("talk", dict)
        self.graph.node(name="begin")(self._begin)
        self.graph.node(name="end")(self._end)
        self.graph.route("begin", "end")

    def gate(self, id: str) -> Gate:
        return self.gates.setdefault(id, Gate())

    async def _begin(self, state: Any, ctx: Any) -> Any:
        self.told.append(f"{ctx.run_id} begins")
        if ctx.run_id in self.gates:
            await self.gates[ctx.run_id].pass_through()

    async def _end(self, state: Any, ctx: Any) -> Any:
        self.told.append(f"{ctx.run_id} ends")


def in_order(*ids: str) -> list[str]:
    return [f"{id} {what}" for id in ids for what in ("begins", "ends")]


async def asks(state: Any, ctx: Any) -> Any:
    return {"answer": await ctx.wait(signal("answer"))}


ASKING = chain("asking", 1, lambda number: {}, node0=asks)


async def asks_twice(state: Any, ctx: Any) -> Any:
    return [await ctx.wait(signal("answer")), await ctx.wait(signal("answer"))]


TWICE = chain("twice", 1, lambda number: {}, node0=asks_twice)


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no queued run ask by itself: it must be told."""
    monkeypatch.setattr(queue_records, "_RECHECK_MS_MIN", 10**12)
    monkeypatch.setattr(queue_records, "_RECHECK_MS_MAX", 10**12)


async def queued_ids(hf: Holdfast, **of: Any) -> list[str]:
    return [entry.id for entry in await hf.session_queue(SESSION, **of)]


async def place_of(hf: Holdfast, id: str) -> IndexKey:
    row = await item_of_head(hf, id)
    return IndexKey(row["GSI1PK"], row["GSI1SK"])


async def tickets(hf: Holdfast) -> list[dict[str, Any]]:
    key = SessionQueueKey("default", "-", SESSION)
    return [item async for item in store_of(hf).table.query_all(key.pk) if item["SK"] != "LAST"]


# --- the order ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_net")
async def test_runs_of_a_session_go_on_one_after_the_other(either: House) -> None:
    hf, talk = either.open(), Talk()
    talk.gate("a")
    async with either.worker(hf, talk.graph) as worker:
        runs = [await hf.start(talk.graph, id=id, session=SESSION) for id in "abc"]
        await talk.gate("a").waited_at()
        assert talk.told == ["a begins"]
        second = await runs[1].get()
        assert (second.status, second.reason, second.session) == ("waiting", "queued", SESSION)
        assert [(entry.number, entry.id) for entry in await hf.session_queue(SESSION)] == [
            (1, "a"),
            (2, "b"),
            (3, "c"),
        ]
        talk.gate("a").open()
        await runs[2].result(timeout=60)
        await either.quiet(worker)
    assert talk.told == in_order("a", "b", "c")
    assert await queued_ids(hf) == []
    assert await tickets(hf) == []


async def test_an_idle_session_is_nobodys_delay(house: House, hf: Holdfast) -> None:
    talk = Talk()
    async with house.worker(hf, talk.graph) as worker:
        for id in "abc":
            run = await hf.start(talk.graph, id=id, session=SESSION)
            await run.result(timeout=60)
            await house.quiet(worker)  # the result is there before its ticket is gone
        assert worker.counts["claimed"] == 0  # each was made in the hands of the worker
    assert (await hf.run("c").get()).reason is None
    assert (await item_of_head(hf, "c"))["ticket"] == 3


async def test_other_sessions_users_and_tenants_do_not_wait(house: House, hf: Holdfast) -> None:
    talk = Talk()
    talk.gate("a")
    async with house.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, id="a", session=SESSION, user="ann")
        await talk.gate("a").waited_at()
        await hf.start(talk.graph, id="b", session="other", user="ann")
        await hf.start(talk.graph, id="c", session=SESSION, user="bob")
        await hf.start(talk.graph, id="d", session=SESSION)
        await hf.start(talk.graph, id="e", session=SESSION, user="ann", tenant="other")
        await hf.start(talk.graph, id="f", user="ann")
        for id in "bcdf":
            await hf.run(id).result(timeout=60)
        await hf.run("e", tenant="other").result(timeout=60)
        assert await queued_ids(hf, user="ann") == ["a"]
        assert await queued_ids(hf, user="ann", tenant="other") == []
        assert await queued_ids(hf) == []
        talk.gate("a").open()
        await house.quiet(worker)
    assert (await hf.list(RunFilter(status="finished"))).runs[-1].session == SESSION


@pytest.mark.usefixtures("no_net")
async def test_two_workers_and_many_starters_keep_the_order(either: House) -> None:
    first, second, client, talk = either.open(), either.open(), either.open(), Talk()
    ids = [f"run-{number}" for number in range(12)]
    async with either.worker(first, talk.graph) as one, either.worker(second, talk.graph) as two:
        starters = [first, second, client]
        await asyncio.gather(
            *(
                starters[number % 3].start(talk.graph, id=id, session=SESSION)
                for number, id in enumerate(ids)
            )
        )
        for _ in range(len(ids)):  # what the other worker is to take it finds by looking
            await either.move(1, one, two)
        assert await queued_ids(client) == []
    numbers = {(await item_of_head(client, id))["ticket"]: id for id in ids}
    assert sorted(numbers) == list(range(1, len(ids) + 1))
    assert talk.told == in_order(*(numbers[number] for number in sorted(numbers)))


@pytest.mark.usefixtures("no_net")
@pytest.mark.parametrize("how", ["cancelled", "failed", "expired", "quarantined"])
async def test_however_a_run_ends_the_next_one_begins(house: House, how: str) -> None:
    talk, ending = Talk(), Graph("ending", dict)

    @ending.node
    async def node(state: Any, ctx: Any) -> Any:
        if how == "failed":
            raise ValueError
        await ctx.wait(signal("never"))

    hf = house.open()
    async with house.worker(hf, ending, talk.graph, resumes_max=1) as worker:
        front = await hf.start(ending, id="front", session=SESSION, expires=1000)
        if how != "failed":
            await house.quiet(worker)
        run = await hf.start(talk.graph, id="next", session=SESSION)
        if how == "cancelled":
            await front.cancel()
        elif how == "quarantined":
            table = store_of(hf).table
            head = await item_of_head(hf, "front")
            await table.write_many([_damaged(head)])
            await front.signal("never")
            await house.quiet(worker)
        elif how == "expired":
            await house.move(1001, worker)
        await house.move(1, worker)
        await run.result(timeout=60)
        await house.quiet(worker)
    assert (await front.get()).status == how
    assert (await front.get()).due_at is None
    assert await tickets(hf) == []


def _damaged(head: dict[str, Any]) -> Put:
    return Put({"PK": head["PK"], "SK": f"J#{head['generation']}#00000001", "ttl": head["ttl"]})


@pytest.mark.usefixtures("no_net")
async def test_a_queued_run_can_leave_the_queue(house: House) -> None:
    hf, client, talk = house.open(), house.open(), Talk()
    talk.gate("a")
    async with house.worker(hf, talk.graph) as worker:
        for id in "abcd":
            await hf.start(talk.graph, id=id, session=SESSION, expires=100 if id == "c" else 1000)
        await talk.gate("a").waited_at()
        await client.run("b").cancel()
        assert (await client.run("b").get()).status == "cancelled"
        assert await queued_ids(client) == ["a", "c", "d"]
        assert "signals" not in await item_of_head(hf, "a")  # those before it are left alone
        house.clock.advance(101)
        await reached(hf, "c", "expired")
        assert talk.told == ["a begins"]
        talk.gate("a").open()
        await hf.run("d").result(timeout=60)
        await house.quiet(worker)
    assert talk.told == in_order("a", "d")


async def test_a_queued_run_that_holds_a_signal_expires_nevertheless(house: House) -> None:
    hf, talk = house.open(), Talk()
    async with house.worker(hf, ASKING, talk.graph) as worker:
        await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        run = await hf.start(talk.graph, id="next", session=SESSION, expires=100)
        await run.signal("whatever")
        await house.move(101, worker)
        assert (await run.get()).status == "expired"
    assert talk.told == []


async def test_a_quarantined_run_can_be_retried_while_its_session_is_passed_on(
    house: House,
) -> None:
    talk = Talk()
    hf, stage = staged(house)
    async with house.worker(hf, ASKING, talk.graph, resumes_max=1) as worker:
        front = await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        head = await item_of_head(hf, "front")
        await store_of(hf).table.write_many([_damaged(head)])
        hold = stage.hold(write_of(*SessionQueueKey("default", "-", SESSION).ticket(1)))
        await front.signal("answer", 42)
        await house.quiet(worker)
        house.clock.advance(1)
        await hold.reached()  # somebody holds it, and is about to pay
        assert (await front.get()).status == "quarantined"
        await store_of(hf).table.write(Delete(_damaged(head).key))
        await house.open().run("front").retry()
        row = await item_of_head(hf, "front")
        assert (row["status"], "owner" in row) == ("running", False)
        hold.release()
        await house.quiet(worker)
        await house.move(1, worker)
        assert await front.result(timeout=60) == {"answer": 42}


async def test_a_queued_run_asks_again_more_and_more_seldom(house: House, hf: Holdfast) -> None:
    talk = Talk()
    async with house.worker(hf, ASKING, talk.graph) as worker:
        await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        await hf.start(talk.graph, id="next", session=SESSION)
        began = house.clock.now_ms() / 1000
        waits = (60, 120, 240, 480, 960, 1920, 3840, 3840 + 3600, 3840 + 2 * 3600)
        for asked, waited in enumerate(waits):
            assert worker.counts["claimed"] == asked
            run = await hf.run("next").get()
            assert (run.status, run.reason) == ("waiting", "queued")
            assert run.due_at == run.created_at + timedelta(seconds=waited)
            await house.move(waited - house.clock.now_ms() / 1000 + began, worker)
        assert talk.told == []


async def test_a_front_that_is_gone_without_having_left_blocks_nobody(house: House) -> None:
    hf, talk = house.open(), Talk()
    await hf.start(talk.graph, id="gone", session=SESSION)
    await hf.start(talk.graph, id="next", session=SESSION)
    head = await item_of_head(hf, "gone")
    await store_of(hf).table.write(Delete(Key(head["PK"], "HEAD")))
    async with house.worker(hf, talk.graph) as worker:
        await house.move(60, worker)
        await house.quiet(worker)
        assert (await hf.run("next").get()).status == "finished"
    assert await tickets(hf) == []


async def test_a_session_that_was_forgotten_counts_anew(house: House, hf: Holdfast) -> None:
    talk = Talk()
    await hf.start(talk.graph, id="old", session=SESSION, expires=10)
    house.clock.advance(3 * 24 * 3600)  # past its ttl, though its items may still stand
    async with house.worker(hf, talk.graph):
        run = await hf.start(talk.graph, id="new", session=SESSION, on_busy="reject")
        await run.result(timeout=60)


async def test_a_run_that_is_to_start_later_holds_its_place(house: House, hf: Holdfast) -> None:
    talk = Talk()
    at = datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    async with house.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, id="later", session=SESSION, start_at=at)
        await hf.start(talk.graph, id="now", session=SESSION)
        await house.move(600, worker)
        assert (await hf.run("later").get()).reason == "scheduled"
        assert talk.told == []
        await house.move(3000, worker)
        await hf.run("now").result(timeout=60)
        await house.quiet(worker)
    assert talk.told == in_order("later", "now")


@pytest.mark.usefixtures("no_net")
async def test_one_that_is_in_front_before_its_time_waits_for_its_time(house: House) -> None:
    hf, talk = house.open(), Talk()
    talk.gate("a")
    at = datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    async with house.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        later = await hf.start(talk.graph, id="later", session=SESSION, start_at=at)
        talk.gate("a").open()
        await house.move(10, worker)
        assert ((await later.get()).status, talk.told) == ("waiting", in_order("a"))
        await house.move(3600, worker)
        assert (await later.get()).status == "finished"


async def test_a_retried_run_does_not_queue_again(house: House, hf: Holdfast) -> None:
    talk, broken = Talk(), {"broken": True}
    talk.gate("next")
    flaky = Graph("flaky", dict)

    @flaky.node
    async def node(state: Any) -> Any:
        if broken["broken"]:
            raise ValueError

    async with house.worker(hf, talk.graph, flaky) as worker:
        run = await hf.start(flaky, id="flaky", session=SESSION)
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        await hf.start(talk.graph, id="next", session=SESSION)
        last = await hf.start(talk.graph, id="last", session=SESSION)
        await talk.gate("next").waited_at()
        broken["broken"] = False
        await run.retry()
        await run.result(timeout=60)
        await house.clock.asleep(3)
        assert (await last.get()).reason == "queued"
        talk.gate("next").open()
        await last.result(timeout=60)
        await house.quiet(worker)
    assert talk.told == in_order("next", "last")


async def test_a_signal_waits_with_the_run_that_is_queued(house: House, hf: Holdfast) -> None:
    talk = Talk()
    talk.gate("a")
    async with house.worker(hf, talk.graph, ASKING) as worker:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        asking = await hf.start(ASKING, id="asking", session=SESSION)
        await asking.signal("answer", 42)
        assert (await asking.get()).reason == "queued"
        talk.gate("a").open()
        assert await asking.result(timeout=60) == {"answer": 42}
        await house.quiet(worker)


async def test_a_worker_that_is_not_up_to_date_does_not_make_it_a_runs_turn(house: House) -> None:
    hf, talk = house.open(), Talk()
    newer = Graph("talk", dict, version=2)
    newer.node(name="begin")(talk._begin)
    async with house.worker(hf, ASKING, talk.graph) as worker:
        await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        run = await house.open().start(newer, id="next", session=SESSION)
        worker.claims.offer(await place_of(hf, "next"))
        await house.quiet(worker)
        assert (await run.get()).reason == "newer_version"
    hf = house.open()
    async with house.worker(hf, newer) as worker:
        await house.move(30, worker)
        assert (await run.get()).reason == "queued"
        assert talk.told == []
        await hf.run("front").cancel()
        assert await run.result(timeout=60) == {}
        await house.quiet(worker)


# --- what goes wrong in between -------------------------------------------------------------------


@pytest.mark.usefixtures("no_net")
async def test_one_that_left_before_the_next_was_there_is_not_waited_for(house: House) -> None:
    hf, talk = house.open(), Talk()
    slow, stage = staged(house)
    talk.gate("a")
    async with house.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        hold = stage.hold(transaction)
        starting = asyncio.create_task(slow.start(talk.graph, id="b", session=SESSION))
        await hold.reached()  # it saw that a goes on
        talk.gate("a").open()
        await house.quiet(worker)
        assert await tickets(hf) == []  # and nobody was there to be told
        hold.release()
        await starting
        await house.move(1, worker)
        assert (await hf.run("b").get()).status == "finished"


async def test_a_start_that_is_carried_out_late_does_not_step_in_front(house: House) -> None:
    hf, talk = house.open(), Talk()
    slow, stage = staged(house)
    talk.gate("c")
    async with house.worker(hf, talk.graph) as worker:
        hold = stage.hold(transaction)
        starting = asyncio.create_task(slow.start(talk.graph, id="late", session=SESSION))
        await hold.reached()  # it saw an empty queue, and is to be number 1
        await hf.start(talk.graph, id="b", session=SESSION)
        await hf.start(talk.graph, id="c", session=SESSION)
        await talk.gate("c").waited_at()
        assert await queued_ids(hf) == ["c"]  # number 1 has come and gone
        hold.release()
        await starting
        await house.clock.asleep(3)
        assert talk.told == [*in_order("b"), "c begins"]
        assert await queued_ids(hf) == ["c", "late"]
        talk.gate("c").open()
        await hf.run("late").result(timeout=60)
        await house.quiet(worker)
    assert talk.told == in_order("b", "c", "late")


@pytest.mark.usefixtures("no_net")
async def test_one_that_is_told_while_it_goes_back_into_the_queue_looks_again(
    house: House,
) -> None:
    hf, talk = house.open(), Talk()
    other, stage = staged(house)
    talk.gate("a")
    run = await hf.start(talk.graph, id="b0", session="other")  # makes the settings
    await run.cancel()
    async with house.worker(hf, talk.graph) as worker, house.worker(other, talk.graph) as second:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        b = await house.open().start(talk.graph, id="b", session=SESSION)
        hold = stage.hold(
            lambda operation: (
                write_of(*tenant_key("b").head)(operation)
                and operation.write.set.get("reason") == "queued"  # type: ignore[union-attr]
            )
        )
        second.claims.offer(await place_of(hf, "b"))
        await hold.reached()  # it saw that a goes on, and is about to say so
        talk.gate("a").open()
        await house.quiet(worker)
        assert talk.told == in_order("a")
        hold.release()
        await b.result(timeout=60)
        await house.quiet(worker, second)
    assert talk.told == in_order("a", "b")


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_start_whose_answer_was_lost_is_one_start(house: House, carried_out: bool) -> None:
    talk = Talk()
    hf, stage = staged(house)
    stage.lose(transaction, carried_out=carried_out)
    starting = asyncio.create_task(hf.start(talk.graph, id="a", session=SESSION))
    await house.clock.asleep(1)
    house.clock.advance(1)
    await starting
    assert [item["run"] for item in await tickets(hf)] == ["a"]
    assert (await hf.run("a").get()).reason is None
    async with house.worker(hf, talk.graph) as worker:
        await house.quiet(worker)
    assert talk.told == in_order("a")


async def test_a_lost_start_whose_number_is_taken_meanwhile_takes_the_next(house: House) -> None:
    talk = Talk()
    hf, stage = staged(house)
    other = house.open()
    stage.lose(transaction, carried_out=False)
    starting = asyncio.create_task(hf.start(talk.graph, id="a", session=SESSION))
    await house.clock.asleep(1)
    await other.start(talk.graph, id="b", session=SESSION)
    house.clock.advance(1)
    await starting
    assert await queued_ids(hf) == ["b", "a"]
    assert (await hf.run("a").get()).reason == "queued"


async def test_a_lost_start_that_meets_another_transaction_does_not_replace_itself(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk()
    hf = house.open()
    await hf.start(ASKING, id="front", session=SESSION)
    queues = hf._kernel.session_queues
    transact = queues.transact
    answers = [OutcomeUnknown("lost"), TransactionCancelled("met another one")]

    async def unlucky(writes: Any) -> None:
        if len(answers) != 1:
            await transact(writes)
        if answers:
            raise answers.pop(0)

    monkeypatch.setattr(queues, "transact", unlucky)
    starting = asyncio.create_task(hf.start(talk.graph, id="a", session=SESSION, on_busy="replace"))
    for _ in range(2):
        await house.clock.asleep(1)
        house.clock.advance(1)
    await starting
    assert (await hf.run("front").get()).status == "cancelled"
    assert (await hf.run("a").get()).status != "cancelled"
    assert await queued_ids(hf) == ["a"]


async def test_a_start_that_never_hears_says_so_and_can_be_repeated(house: House) -> None:
    talk = Talk()
    hf, stage = staged(house)
    for _ in range(100):
        stage.lose(transaction, carried_out=True)
    starting = asyncio.create_task(hf.start(talk.graph, id="a", session=SESSION))
    for _ in range(6):  # the patience is 30 seconds
        await house.clock.asleep(1)
        house.clock.advance(5)
    with pytest.raises(OutcomeUnknown):
        await starting
    await house.open().start(talk.graph, id="a", session=SESSION)
    assert await queued_ids(hf) == ["a"]


# --- idempotency and bad input --------------------------------------------------------------------


@pytest.mark.parametrize("on_busy", ["queue", "reject", "replace", "promote"])
async def test_a_repeated_start_is_the_same_run(either: House, on_busy: Any) -> None:
    hf, talk = either.open(), Talk()
    for _ in range(3):
        run = await hf.start(talk.graph, {"n": 1}, id="a", session=SESSION, on_busy=on_busy)
        assert run.id == "a"
    assert await queued_ids(hf) == ["a"]
    async with either.worker(hf, talk.graph) as worker:
        await either.quiet(worker)
        await hf.start(talk.graph, {"n": 1}, id="a", session=SESSION, on_busy=on_busy)
        await either.quiet(worker)
    assert talk.told == in_order("a")
    assert await tickets(hf) == []
    for other in ({"input": {"n": 2}}, {"session": "other"}, {"session": None}):
        asked = {"input": {"n": 1}, "session": SESSION, **other}
        with pytest.raises(AlreadyExists):
            await hf.start(talk.graph, id="a", **asked)


async def test_a_large_input_is_kept_beside_the_row(either: House) -> None:
    hf, talk = either.open(), Talk()
    text = {"text": "".join(chr(0x4E00 + (n * 7919) % 20000) for n in range(20_000))}
    talk.gate("a")
    async with either.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, text, id="a", session=SESSION)
        run = await hf.start(talk.graph, text, id="b", session=SESSION)
        await hf.start(talk.graph, text, id="b", session=SESSION)
        talk.gate("a").open()
        assert await run.result(timeout=60) == text
        await either.quiet(worker)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"on_busy": "queue"}, InvalidRequest),
        ({"session": SESSION, "on_busy": "wait"}, InvalidRequest),
        ({"session": SESSION, "on_busy": 1}, InvalidRequest),
        ({"session": ""}, InvalidName),
        ({"session": "a#b"}, InvalidName),
        ({"session": "a" * 129}, InvalidName),
        ({"session": 7}, InvalidName),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    hf: Holdfast, asked: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await hf.start(ASKING, id="a", **asked)
    with pytest.raises(RunNotFound):
        await hf.run("a").get()


@pytest.mark.parametrize("session", ["", "a#b", None, 7])
async def test_a_session_has_a_name(hf: Holdfast, session: Any) -> None:
    with pytest.raises(InvalidName):
        await hf.session_queue(session)


# --- reject ---------------------------------------------------------------------------------------


async def test_a_busy_session_rejects(either: House) -> None:
    hf, talk = either.open(), Talk()
    talk.gate("a")
    async with either.worker(hf, talk.graph) as worker:
        first = await hf.start(talk.graph, id="a", session=SESSION, on_busy="reject")
        with pytest.raises(SessionBusy, match="'a'") as refused:
            await hf.start(talk.graph, id="b", session=SESSION, on_busy="reject")
        assert refused.value.run == "a"
        with pytest.raises(RunNotFound):
            await hf.run("b").get()
        talk.gate("a").open()
        await first.result(timeout=60)
        # Who heard that it is over does not find the session busy.
        await hf.start(talk.graph, id="b", session=SESSION, on_busy="reject")
        await hf.run("b").result(timeout=60)
        await either.quiet(worker)


async def test_of_many_that_may_be_rejected_one_gets_in(house: House) -> None:
    talk = Talk()
    clients = [house.open() for _ in range(4)]
    starts = [
        hf.start(talk.graph, id=f"run-{number}", session=SESSION, on_busy="reject")
        for number, hf in enumerate(clients)
    ]
    done = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(one, SessionBusy) for one in done) == 3
    assert len(await queued_ids(clients[0])) == 1


# --- replace --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_net")
async def test_a_newcomer_replaces_all_before_it(either: House) -> None:
    hf, talk = either.open(), Talk()
    talk.gate("a")
    async with either.worker(hf, talk.graph) as worker:
        for id in "abc":
            await hf.start(talk.graph, id=id, session=SESSION)
        await talk.gate("a").waited_at()
        run = await hf.start(talk.graph, id="d", session=SESSION, on_busy="replace")
        await run.result(timeout=60)
        await either.quiet(worker)
        for id in "abc":
            with pytest.raises(RunCancelled, match="replaced by run 'd'"):
                await hf.run(id).result(timeout=60)
    assert talk.told == ["a begins", *in_order("d")]
    assert await tickets(hf) == []


@pytest.mark.usefixtures("no_net")
async def test_none_of_the_replaced_begins_when_the_one_before_it_ends(house: House) -> None:
    hf, talk = house.open(), Talk()
    async with house.worker(hf, ASKING, talk.graph) as worker:
        await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        await hf.start(talk.graph, id="b", session=SESSION)
        run = await hf.start(talk.graph, id="c", session=SESSION, on_busy="replace")
        await run.result(timeout=60)
        await house.quiet(worker)
    assert talk.told == in_order("c")


@pytest.mark.usefixtures("no_net")
async def test_a_replaced_run_of_another_process_is_waited_for(house: House) -> None:
    hf, client, talk = house.open(), house.open(), Talk()
    talk.gate("a")
    async with house.worker(hf, talk.graph) as worker:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        run = await client.start(talk.graph, id="b", session=SESSION, on_busy="replace")
        assert (await run.get()).reason == "queued"
        assert talk.told == ["a begins"]
        talk.gate("a").open()
        await house.move(1, worker)
        assert (await run.get()).status == "finished"
    assert (await hf.run("a").get()).status == "cancelled"
    assert talk.told == ["a begins", *in_order("b")]


async def test_whoever_claims_a_replacing_run_replaces_again(house: House) -> None:
    hf, talk = house.open(), Talk()
    dying, stage = staged(house)
    async with house.worker(hf, ASKING, talk.graph) as worker:
        await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        hold = stage.hold(transaction, side="after")
        starting = asyncio.create_task(
            dying.start(talk.graph, id="b", session=SESSION, on_busy="replace")
        )
        await hold.reached()
        starting.cancel()  # it dies before it has cancelled anybody
        assert (await hf.run("front").get()).status == "waiting"
        await house.move(60, worker)
        await hf.run("b").result(timeout=60)
        await house.quiet(worker)
    assert (await hf.run("front").get()).status == "cancelled"


# --- promote --------------------------------------------------------------------------------------


async def test_a_newcomer_answers_what_the_front_waits_for(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, ASKING) as worker:
        front = await hf.start(ASKING, {"n": 1}, id="front", session=SESSION)
        await either.quiet(worker)
        for _ in range(2):
            run = await client.start(
                ASKING, {"text": "yes"}, id="new", session=SESSION, on_busy="promote"
            )
            assert run.id == "front"
        await either.move(1, worker)
        assert await front.result(timeout=60) == {"n": 1, "answer": {"text": "yes"}}
        assert await client.run("new").result(timeout=60) == await front.result(timeout=60)
        pointer = await client.run("new").get()
        assert (pointer.status, pointer.into, pointer.due_at) == ("promoted", "front", None)
        again = await client.start(
            ASKING, {"text": "yes"}, id="new", session=SESSION, on_busy="promote"
        )
        assert again.id == "front"
        with pytest.raises(AlreadyExists):
            await client.start(ASKING, {"text": "no"}, id="new", session=SESSION)
        with pytest.raises(RunEnded) as ended:
            await client.run("new").signal("answer")
        assert ended.value.status == "promoted"
        with pytest.raises(RunEnded):
            await client.run("new").cancel()
        with pytest.raises(RunNotFound, match="front"):
            await client.run("new").history()
        await either.move(1, worker)
        assert [entry.id for entry in (await client.list(RunFilter(status="promoted"))).runs] == [
            "new"
        ]
    assert len([item for item in await journal_items(hf, "front") if "#IN#" in item["SK"]]) == 1


async def test_a_large_promoted_input_is_a_blob_of_the_front(either: House) -> None:
    hf = either.open()
    text = {"text": "".join(chr(0x4E00 + (n * 7919) % 20000) for n in range(20_000))}
    async with either.worker(hf, ASKING) as worker:
        front = await hf.start(ASKING, id="front", session=SESSION)
        await either.quiet(worker)
        await hf.start(ASKING, text, id="new", session=SESSION, on_busy="promote")
        assert await front.result(timeout=60) == {"answer": text}
        await either.quiet(worker)
    assert (await front.get()).due_at is not None  # its blobs are to be freed


async def test_a_newcomer_queues_where_the_front_waits_for_nothing(house: House) -> None:
    hf, talk = house.open(), Talk()
    talk.gate("a")
    sleeping = Graph("sleeping", dict)

    @sleeping.node
    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(3600)

    async with house.worker(hf, talk.graph, sleeping, ASKING) as worker:
        await hf.start(talk.graph, id="a", session=SESSION)
        await talk.gate("a").waited_at()
        await hf.start(sleeping, id="sleeps", session="other")
        await reached(hf, "sleeps", "waiting")
        for session, id in ((SESSION, "b"), ("other", "c")):
            run = await hf.start(talk.graph, id=id, session=session, on_busy="promote")
            assert (run.id, (await run.get()).reason) == (id, "queued")
        talk.gate("a").open()
        await house.quiet(worker)
        # A wait whose time is up takes no answer, though nobody has looked at it yet.
        asking = chain("briefly", 1, lambda number: {}, node0=_asks_briefly)
    async with house.worker(hf, asking) as worker:
        await hf.start(asking, id="brief", session="third")
        await house.quiet(worker)
    house.clock.advance(101)
    run = await hf.start(talk.graph, id="d", session="third", on_busy="promote")
    assert (run.id, (await run.get()).reason) == ("d", "queued")


async def _asks_briefly(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("answer"), max_wait=100)


async def test_one_whose_id_a_signal_has_already_queues(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, TWICE) as worker:
        front = await hf.start(TWICE, id="front", session=SESSION)
        await house.quiet(worker)
        await front.signal("answer", 1, signal_id="new")
        await house.quiet(worker)
        run = await hf.start(ASKING, id="new", session=SESSION, on_busy="promote")
        assert (run.id, (await run.get()).reason) == ("new", "queued")


async def test_a_front_that_goes_on_meanwhile_is_not_answered_twice(house: House) -> None:
    hf, talk = house.open(), Talk()
    slow, stage = staged(house)
    async with house.worker(hf, ASKING, talk.graph) as worker:
        front = await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
        hold = stage.hold(transaction)
        starting = asyncio.create_task(
            slow.start(talk.graph, id="new", session=SESSION, on_busy="promote")
        )
        await hold.reached()
        await front.signal("answer", "another")
        assert await front.result(timeout=60) == {"answer": "another"}
        await house.quiet(worker)
        hold.release()
        assert (await starting).id == "new"
        await house.move(1, worker)
        assert (await hf.run("new").get()).status == "finished"


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_promotion_whose_answer_was_lost_counts_once(
    house: House, carried_out: bool
) -> None:
    hf, stage = staged(house)
    async with house.worker(hf, ASKING) as worker:
        front = await hf.start(ASKING, id="front", session=SESSION)
        await house.quiet(worker)
    client, stage = staged(house)
    stage.lose(transaction, carried_out=carried_out)
    starting = asyncio.create_task(
        client.start(ASKING, {"n": 1}, id="new", session=SESSION, on_busy="promote")
    )
    await house.clock.asleep(1)
    house.clock.advance(1)
    assert (await starting).id == "front"
    hf = house.open()
    async with house.worker(hf, ASKING) as worker:
        await house.quiet(worker)
        assert await hf.run(front.id).result(timeout=60) == {"answer": {"n": 1}}


# --- more time ------------------------------------------------------------------------------------


async def test_a_run_that_is_given_more_time_keeps_its_place_that_long(house: House) -> None:
    hf, talk = house.open(), Talk()
    async with house.worker(hf, ASKING, talk.graph) as worker:
        front = await hf.start(ASKING, id="front", session=SESSION, expires=days(1))
        await house.quiet(worker)
        await hf.run("front").extend(days(40))
        await house.move(timedelta(days=20).total_seconds(), worker)
        # Its first ttl is long over, and the broom may have been here.
        with pytest.raises(SessionBusy):
            await hf.start(talk.graph, id="next", session=SESSION, on_busy="reject")
        await hf.start(talk.graph, id="next", session=SESSION, expires=days(30))
        assert await queued_ids(hf) == ["front", "next"]
        await front.signal("answer", 1)
        await hf.run("next").result(timeout=60)
        await house.quiet(worker)
    assert await tickets(hf) == []


async def test_the_counting_is_kept_as_long_as_who_was_given_more_time(house: House) -> None:
    hf, other = house.open(), house.open()
    slow, stage = staged(house)
    await hf.start(ASKING, id="a", session=SESSION, expires=days(1))
    hold = stage.hold(transaction)
    starting = asyncio.create_task(slow.start(ASKING, id="b", session=SESSION, expires=days(1)))
    await hold.reached()  # it read how long the counting is to be kept
    await other.run("a").extend(days(40))
    hold.release()
    await starting
    kept = await store_of(hf).table.get(SessionQueueKey("default", "-", SESSION).last)
    assert kept is not None
    assert kept["ttl"] == (await item_of_head(hf, "a"))["ttl"]
    assert await queued_ids(hf) == ["a", "b"]


async def test_a_promoted_input_lasts_as_long_as_a_front_that_was_given_more_time(
    house: House,
) -> None:
    hf, other = house.open(), house.open()
    slow, stage = staged(house)
    async with house.worker(hf, ASKING) as worker:
        await hf.start(ASKING, id="front", session=SESSION, expires=days(1))
        await house.quiet(worker)
    hold = stage.hold(transaction)
    starting = asyncio.create_task(slow.start(ASKING, id="new", session=SESSION, on_busy="promote"))
    await hold.reached()
    await other.run("front").extend(days(40))
    hold.release()
    assert (await starting).id == "front"
    (signal_item,) = [item for item in await journal_items(hf, "front") if "#IN#" in item["SK"]]
    assert signal_item["ttl"] == (await item_of_head(hf, "front"))["ttl"]


# --- a pointer and the run to which it points -----------------------------------------------------


async def test_a_promoted_result_is_of_the_type_of_whoever_took_the_input(house: House) -> None:
    class Said(msgspec.Struct):
        text: str = ""

    typed, talk = Graph("typed", Said), Talk()

    @typed.node
    async def listens(state: Said, ctx: Any) -> Any:
        return {"text": (await ctx.wait(signal("said")))["text"]}

    hf = house.open()
    async with house.worker(hf, typed) as worker:
        await hf.start(typed, id="front", session=SESSION)
        await house.quiet(worker)
        same = await hf.start(typed, Said("yes"), id="b", session=SESSION, on_busy="promote")
        assert await same.result(timeout=60) == Said("yes")
        await hf.start(typed, id="second", session=SESSION)
        await house.quiet(worker)
        other = await hf.start(
            talk.graph, {"text": "no"}, id="c", session=SESSION, on_busy="promote"
        )
        assert await other.result(timeout=60) == {"text": "no"}


async def test_a_pointer_may_outlive_the_run_to_which_it_points(house: House) -> None:
    hf = house.open()
    asked: dict[str, Any] = {"id": "new", "session": SESSION, "on_busy": "promote"}
    async with house.worker(hf, ASKING) as worker:
        await hf.start(ASKING, id="front", session=SESSION, expires=days(1))
        await house.quiet(worker)
        await hf.start(ASKING, **asked)
        await house.quiet(worker)
    house.clock.advance(4 * 24 * 3600)
    run = await hf.start(ASKING, **asked)
    assert run.id == "front"
    with pytest.raises(RunNotFound):
        await run.result(timeout=60)
