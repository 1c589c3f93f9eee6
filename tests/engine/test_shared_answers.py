"""Answers that runs share: one asks for all, and nothing that happens to it keeps the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SeededIds
from holdfast.engine.effects.shared_answers import LEASE_SECONDS, SharedAnswers
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    ConditionFailed,
    InvalidResult,
    ModelUnavailable,
    OutcomeUnknown,
    StoreUnavailable,
)
from holdfast.records.blob_keys import answer_blob_of, run_blobs_of
from holdfast.records.keys import answer_key
from holdfast.storage import Delete, Put, Table, Units, Update
from holdfast.storage.writes import Write
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    StepClock,
    blob_keys,
    calls_of,
    incompressible,
    store_of,
    store_without_blobs,
    units_of,
)

DIGEST = bytes(range(16))
HOUR_MS = 3_600_000
DAY = 24 * 3600
ANSWER = {"text": "42", "usage": {"input_tokens": 7}}


class Model:
    """What is asked: it counts, and stands in front of its gate if that is not open."""

    def __init__(self, answer: Any = ANSWER, *, gated: bool = False) -> None:
        self.asked = 0
        self.answer = answer
        self.gate = Gate()
        if not gated:
            self.gate.open()

    async def __call__(self) -> Any:
        self.asked += 1
        await self.gate.pass_through()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def shared(hf: Holdfast) -> SharedAnswers:
    return SharedAnswers(hf._kernel)


def stalling(hf: Holdfast) -> SharedAnswers:
    """Return those of a process that stands still as soon as it has asked."""
    answers = shared(hf)

    async def renew(*_: object) -> None:
        pass

    answers._renew_lease = renew  # type: ignore[method-assign]
    return answers


async def ask(
    answers: SharedAnswers,
    model: Callable[[], Awaitable[Any]],
    *,
    tenant: str = "default",
    digest: bytes = DIGEST,
    keep_ms: int = HOUR_MS,
) -> tuple[Any, bool]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return await answers.get_or_ask(tenant, digest, model, keep_ms=keep_ms)


async def item_of(hf: Holdfast, tenant: str = "default") -> dict[str, Any] | None:
    return await store_of(hf).table.get(answer_key(tenant, DIGEST))


async def stepped(
    clock: StepClock, task: asyncio.Future[Any], *, seconds: float = 0.1, sleepers: int = 1
) -> Any:
    """Move the clock on in steps, each when so many sleep, until a task is done."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not task.done():
            asleep = asyncio.ensure_future(clock.asleep(sleepers))
            await asyncio.wait({asleep, task}, return_when=asyncio.FIRST_COMPLETED)
            asleep.cancel()
            if not task.done():
                clock.advance(seconds)
        return await task


# --- one asks for all -----------------------------------------------------------------------------


async def test_an_answer_is_asked_for_once_and_shared(either: House) -> None:
    one, other = either.open(), either.open()
    model = Model()
    assert await ask(shared(one), model) == (ANSWER, False)
    assert await ask(shared(one), model) == (ANSWER, True)
    assert await ask(shared(other), model) == (ANSWER, True)
    assert model.asked == 1


async def test_a_hit_costs_a_read_and_a_miss_two_writes_more(either: House) -> None:
    one, other = either.open(), either.open()
    await ask(shared(one), Model())
    assert calls_of(one, "answer") == {("answer", "get"): 1, ("answer", "write"): 2}
    assert units_of(one, "answer") == Units(read=0.5, write=2)
    await ask(shared(other), Model())
    assert calls_of(other, "answer") == {("answer", "get"): 1}
    assert units_of(other, "answer") == Units(read=0.5)


async def test_a_hundred_at_once_over_two_instances_ask_once(either: House) -> None:
    one, other = either.open(), either.open()
    first, second = shared(one), shared(other)
    model = Model(gated=True)
    leading = [asyncio.create_task(ask(first, model)) for _ in range(50)]
    await model.gate.waited_at(1)
    following = [asyncio.create_task(ask(second, model)) for _ in range(50)]
    await either.clock.asleep(2)  # the lease's renewal, and one who stands for fifty
    model.gate.open()
    got = await asyncio.gather(*leading)
    got += await stepped(either.clock, asyncio.gather(*following))
    assert model.asked == 1
    assert [others for _, others in got] == [False, *[True] * 99]
    assert all(value == ANSWER for value, _ in got)
    # Nobody waits for its turn with the store.
    assert calls_of(one, "answer") == {("answer", "get"): 1, ("answer", "write"): 2}
    assert set(calls_of(other, "answer")) == {("answer", "get")}


async def test_no_two_are_given_the_same_object(house: House) -> None:
    answers = shared(house.open())
    model = Model({"list": []}, gated=True)
    tasks = [asyncio.create_task(ask(answers, model)) for _ in range(3)]
    await model.gate.waited_at(1)
    model.gate.open()
    got = [value for value, _ in await asyncio.gather(*tasks)]
    got[0]["list"].append(1)
    got[1]["list"].append(2)
    assert [value["list"] for value in got] == [[1], [2], []]


async def test_tenants_and_questions_share_nothing(house: House) -> None:
    answers = shared(house.open())
    model = Model(gated=True)
    tasks = [
        asyncio.create_task(ask(answers, model)),
        asyncio.create_task(ask(answers, model, tenant="acme")),
        asyncio.create_task(ask(answers, model, digest=b"another")),
    ]
    await model.gate.waited_at(3)
    model.gate.open()
    assert [others for _, others in await asyncio.gather(*tasks)] == [False] * 3


async def test_followers_wait_longer_and_longer_up_to_a_second(house: House) -> None:
    one, other = house.open(), house.open()
    model = Model(gated=True)
    patient = SharedAnswers(one._kernel, lease_seconds=1_000)
    leading = asyncio.create_task(ask(patient, model))
    await model.gate.waited_at(1)
    following = asyncio.create_task(ask(shared(other), model))
    begun = house.clock.monotonic()
    for reads in range(1, 20):
        await house.clock.asleep(2)
        assert calls_of(other, "answer")[("answer", "get")] == reads
        due_ms = min(due for due, _, woken in house.clock._sleepers if not woken.done())
        house.clock.advance((due_ms - house.clock.now_ms()) / 1000 + 0.001)
    # Doubling from 25 ms on, six pauses are 1.6 seconds; the others a second each, give or take.
    assert 8 < house.clock.monotonic() - begun < 22
    model.gate.open()
    await leading
    assert await stepped(house.clock, following) == (ANSWER, True)


# --- how long an answer lasts ---------------------------------------------------------------------


async def test_an_answer_expires_to_the_millisecond(either: House) -> None:
    one, other = either.open(), either.open()
    model = Model()
    await ask(shared(one), model, keep_ms=5_000)
    item = await item_of(one)
    assert item is not None
    assert item["ttl"] * 1000 == item["until_ms"] == either.clock.now_ms() + 5_000
    either.clock.advance(4.999)
    assert (await ask(shared(other), model))[1]
    either.clock.advance(0.001)
    assert await ask(shared(other), model) == (ANSWER, False)
    assert model.asked == 2


# --- the one who asks fails -----------------------------------------------------------------------


async def test_an_error_is_its_own_callers_and_the_next_one_asks(either: House) -> None:
    one, other = either.open(), either.open()
    answers = shared(one)
    broken, working = Model(ModelUnavailable("busy"), gated=True), Model()
    leading = asyncio.create_task(ask(answers, broken))
    await broken.gate.waited_at(1)
    local = [asyncio.create_task(ask(answers, working)) for _ in range(3)]
    distant = asyncio.create_task(ask(shared(other), working))
    await either.clock.asleep(2)
    broken.gate.open()
    with pytest.raises(ModelUnavailable):
        await leading
    # No clock has to move for those of the same process.
    assert [others for _, others in await asyncio.gather(*local)] == [False, True, True]
    assert (await stepped(either.clock, distant))[1]
    assert (broken.asked, working.asked) == (1, 1)
    assert either.clock.monotonic() < 1


async def test_whoever_is_cancelled_makes_room_for_the_next(either: House) -> None:
    one, other = either.open(), either.open()
    answers = shared(one)
    stuck, working = Model(gated=True), Model()
    leading = asyncio.create_task(ask(answers, stuck))
    await stuck.gate.waited_at(1)
    local = asyncio.create_task(ask(answers, working))
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    assert await local == (ANSWER, False)
    assert (await ask(shared(other), working))[1]
    assert working.asked == 1


async def test_one_who_waits_may_be_cancelled_and_the_others_go_on(house: House) -> None:
    one, other = house.open(), house.open()
    model, unused = Model(gated=True), Model()
    leading = asyncio.create_task(ask(shared(one), model))
    await model.gate.waited_at(1)
    answers = shared(other)
    first, second, third = (asyncio.create_task(ask(answers, unused)) for _ in range(3))
    await house.clock.asleep(2)
    for cancelled in (second, first):  # the first is the one that asks the store
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    model.gate.open()
    assert await leading == (ANSWER, False)
    assert await stepped(house.clock, third) == (ANSWER, True)
    assert unused.asked == 0


async def test_an_answer_that_cannot_be_kept_is_its_askers_trouble(house: House) -> None:
    hf = house.open()
    with pytest.raises(InvalidResult):
        await ask(shared(hf), Model(object()))
    assert await item_of(hf) is None


# --- leases ---------------------------------------------------------------------------------------


async def test_a_lease_is_renewed_as_long_as_the_call_takes(either: House) -> None:
    one, other = either.open(), either.open()
    slow, unused = Model(gated=True), Model()
    leading = asyncio.create_task(ask(shared(one), slow))
    await slow.gate.waited_at(1)
    for _ in range(9):
        await either.clock.asleep(1)
        either.clock.advance(LEASE_SECONDS / 3)
    await either.clock.asleep(1)
    following = asyncio.create_task(ask(shared(other), unused))
    await either.clock.asleep(2)
    slow.gate.open()
    assert await leading == (ANSWER, False)
    assert await stepped(either.clock, following) == (ANSWER, True)
    assert unused.asked == 0
    assert either.clock.sleeping == 0  # nobody renews what is no lease any more
    # Nine renewals, beside the lease and the answer.
    assert calls_of(one, "answer")[("answer", "write")] == 11


async def dead(hf: Holdfast) -> None:
    """Take the lease, and never be heard of again."""
    await shared(hf)._take_lease(answer_key("default", DIGEST), instead_of=None)


async def test_the_lease_of_the_dead_lapses_and_one_takes_over(either: House) -> None:
    await dead(either.open())
    begun = either.clock.monotonic()
    model = Model(gated=True)
    tasks = [asyncio.create_task(ask(shared(either.open()), model)) for _ in range(3)]
    asked = asyncio.create_task(model.gate.waited_at(1))
    await stepped(either.clock, asked, seconds=0.05, sleepers=3)
    assert either.clock.monotonic() - begun == pytest.approx(LEASE_SECONDS, abs=0.05)
    model.gate.open()
    got = await stepped(either.clock, asyncio.gather(*tasks))
    assert model.asked == 1
    assert sorted(others for _, others in got) == [False, True, True]


async def test_a_leader_that_stalls_past_its_lease_keeps_its_answer_to_itself(
    either: House,
) -> None:
    one, other = either.open(), either.open()
    stalled, working = Model({"text": "late"}, gated=True), Model()
    answers = stalling(one)
    leading = asyncio.create_task(ask(answers, stalled))
    await stalled.gate.waited_at(1)
    either.clock.advance(LEASE_SECONDS)
    assert await ask(shared(other), working) == (ANSWER, False)
    stalled.gate.open()
    assert await leading == ({"text": "late"}, False)
    assert await ask(shared(other), Model()) == (ANSWER, True)


async def test_a_stalled_leader_that_fails_takes_nothing_from_its_successor(
    house: House,
) -> None:
    one, other = house.open(), house.open()
    stalled, working = Model(ModelUnavailable("late"), gated=True), Model(gated=True)
    answers = stalling(one)
    leading = asyncio.create_task(ask(answers, stalled))
    await stalled.gate.waited_at(1)
    house.clock.advance(LEASE_SECONDS)
    successor = asyncio.create_task(ask(shared(other), working))
    await working.gate.waited_at(1)
    stalled.gate.open()
    with pytest.raises(ModelUnavailable):
        await leading
    item = await item_of(one)
    assert item is not None
    assert item["state"] == "leased"
    working.gate.open()
    assert await successor == (ANSWER, False)
    assert (await ask(shared(one), Model()))[1]


# --- large answers --------------------------------------------------------------------------------


async def test_a_large_answer_lies_beside_the_table(either: House) -> None:
    one, other = either.open(), either.open()
    large = {"data": incompressible(1, 2_000_000)}
    await ask(shared(one), Model(large))
    (key,) = await blob_keys(one)
    assert key.startswith(f"keep-10d/default/answers/{DIGEST.hex()}/")
    assert run_blobs_of(key) is None
    assert await ask(shared(other), Model()) == (large, True)


async def test_the_blob_of_an_answer_outlives_it(house: House) -> None:
    hf = house.open()
    await ask(shared(hf), Model({"data": incompressible(1, 20_000)}), keep_ms=30 * DAY * 1000)
    assert (await blob_keys(hf))[0].startswith("keep-40d/")


async def test_a_blob_goes_when_its_answer_is_replaced(either: House) -> None:
    hf = either.open()
    await ask(shared(hf), Model({"data": incompressible(1, 20_000)}), keep_ms=1_000)
    old = await blob_keys(hf)
    either.clock.advance(1)
    await ask(shared(hf), Model({"data": incompressible(2, 20_000)}))
    new = await blob_keys(hf)
    assert len(old) == len(new) == 1
    assert old != new


async def test_an_answer_that_was_got_too_late_leaves_no_blob(house: House) -> None:
    one, other = house.open(), house.open()
    stalled = Model({"data": incompressible(1, 20_000)}, gated=True)
    answers = stalling(one)
    leading = asyncio.create_task(ask(answers, stalled))
    await stalled.gate.waited_at(1)
    house.clock.advance(LEASE_SECONDS)
    await ask(shared(other), Model())
    stalled.gate.open()
    await leading
    assert await blob_keys(one) == []


async def test_an_answer_whose_blob_is_gone_is_asked_for_again(either: House) -> None:
    hf = either.open()
    large = {"data": incompressible(1, 20_000)}
    await ask(shared(hf), Model(large))
    await store_of(hf).blobs.delete((await blob_keys(hf))[0])
    assert await ask(shared(hf), Model()) == (ANSWER, False)
    assert await ask(shared(hf), Model()) == (ANSWER, True)


async def test_an_answer_of_a_form_that_nobody_here_reads_is_asked_for_again(house: House) -> None:
    hf = house.open()
    await ask(shared(hf), Model())
    await store_of(hf).table.write(
        Update(key=answer_key("default", DIGEST), set={"data": b"\x09?"})
    )
    assert await ask(shared(hf), Model()) == (ANSWER, False)


async def test_a_state_that_a_newer_release_wrote_lets_each_ask_alone(house: House) -> None:
    hf = house.open()
    await ask(shared(hf), Model())
    key = answer_key("default", DIGEST)
    await store_of(hf).table.write(Update(key=key, set={"state": "streaming"}))
    assert await ask(shared(hf), Model()) == (ANSWER, False)
    item = await item_of(hf)
    assert item is not None
    assert item["state"] == "streaming"


def without_blobs(clock: StepClock) -> tuple[Kernel, Kernel]:
    store = store_without_blobs(clock)
    return Kernel(store, clock, SeededIds(1, clock)), Kernel(store, clock, SeededIds(2, clock))


async def test_without_blobs_what_fits_an_item_is_shared(clock: StepClock) -> None:
    one, other = without_blobs(clock)
    large = {"data": incompressible(1, 300_000)}
    await ask(SharedAnswers(one), Model(large))
    assert await ask(SharedAnswers(other), Model()) == (large, True)


async def test_without_blobs_what_does_not_fit_keeps_nobody_waiting(clock: StepClock) -> None:
    one, other = without_blobs(clock)
    huge = {"data": incompressible(1, 500_000)}
    answers = SharedAnswers(one)
    first = Model(huge, gated=True)
    leading = asyncio.create_task(ask(answers, first))
    await first.gate.waited_at(1)
    beside = asyncio.create_task(ask(answers, Model()))
    await clock.sleep(0)
    first.gate.open()
    assert await leading == (huge, False)
    assert await beside == (huge, True)  # in one process they share it nevertheless
    # Those elsewhere ask side by side, and not one after the other.
    second = Model(huge, gated=True)
    third = SharedAnswers(other)
    tasks = [asyncio.create_task(ask(x, second)) for x in (third, SharedAnswers(one))]
    await second.gate.waited_at(2)
    second.gate.open()
    assert await asyncio.gather(*tasks) == [(huge, False)] * 2
    # The next answer may be smaller.
    clock.advance(LEASE_SECONDS)
    assert await ask(third, Model()) == (ANSWER, False)
    assert await ask(third, Model()) == (ANSWER, True)


# --- the sweep ------------------------------------------------------------------------------------


async def test_the_sweep_frees_what_no_item_names_any_more(either: House) -> None:
    hf = either.open()
    answers = shared(hf)
    large = {"data": incompressible(1, 20_000)}
    await ask(answers, Model(large), keep_ms=30 * DAY * 1000)
    await ask(answers, Model(large), digest=b"over", keep_ms=1_000)
    await ask(answers, Model(large), digest=b"gone", keep_ms=30 * DAY * 1000)
    await store_of(hf).table.write(Delete(answer_key("default", b"gone")))
    assert [step async for step in hf.sweep_blobs()][-1].young == 3
    either.clock.advance(3 * DAY)
    counted = [step async for step in hf.sweep_blobs(dry_run=True)][-1]
    assert (counted.kept, counted.freed, counted.deleted, counted.foreign) == (1, 2, 2, 0)
    assert len(await blob_keys(hf)) == 3
    assert [step async for step in hf.sweep_blobs()][-1] == counted
    (left,) = await blob_keys(hf)
    found = answer_blob_of(left)
    assert found is not None
    assert (found.tenant, found.key, found.blob_key) == (
        "default",
        answer_key("default", DIGEST),
        left,
    )
    assert await ask(answers, Model()) == (large, True)


# --- a store that fails ---------------------------------------------------------------------------


class Failing:
    """A table whose writes of some state are carried out, or not, and whose answers are lost."""

    def __init__(self, table: Table, state: str, times: int, *, carried_out: bool) -> None:
        self._table = table
        self._state = state
        self.times = times
        self._carried_out = carried_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def write(self, write: Write, **options: Any) -> Any:
        concerns = isinstance(write, Put) and write.item["state"] == self._state
        if not concerns or not self.times:
            return await self._table.write(write, **options)
        self.times -= 1
        if self._carried_out:
            await self._table.write(write, **options)
            raise OutcomeUnknown("the answer was lost")
        raise StoreUnavailable("not now")


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("state", ["leased", "answered"])
async def test_a_lost_answer_of_the_store_is_no_second_call(
    either: House, state: str, carried_out: bool
) -> None:
    one, other = either.open(), either.open()
    model, answers = Model(), shared(one)
    failing = Failing(answers._table, state, 2, carried_out=carried_out)
    answers._table = failing  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, model))
    assert await stepped(either.clock, task) == (ANSWER, False)
    assert failing.times == 0
    assert (await ask(shared(other), model))[1]
    assert model.asked == 1


async def test_an_answer_that_was_paid_is_given_though_it_cannot_be_shared(house: House) -> None:
    hf = house.open()
    answers = shared(hf)
    answers._table = Failing(answers._table, "answered", 10_000, carried_out=False)  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, Model()))
    assert await stepped(house.clock, task, seconds=1) == (ANSWER, False)
    assert await item_of(hf) is None


async def test_one_who_is_cancelled_while_it_takes_the_lease_makes_room(house: House) -> None:
    hf = house.open()
    answers, unused = shared(hf), Model()
    answers._table = Failing(answers._table, "leased", 1, carried_out=True)  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, unused))
    await house.clock.asleep(1)
    assert await item_of(hf) is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unused.asked == 0
    assert await item_of(hf) is None


class Reluctant:
    """A table that deletes only once it is let."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.gate = Gate()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def write(self, write: Write, **options: Any) -> Any:
        if isinstance(write, Delete):
            await self.gate.pass_through()
        return await self._table.write(write, **options)


async def test_one_who_is_cancelled_twice_makes_room_nevertheless(house: House) -> None:
    hf = house.open()
    answers, stuck = shared(hf), Model(gated=True)
    answers._table = table = Reluctant(answers._table)  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, stuck))
    await stuck.gate.waited_at(1)
    task.cancel()
    await table.gate.waited_at(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    following = asyncio.create_task(ask(answers, Model()))
    await house.clock.asleep(1)
    table.gate.open()
    assert await stepped(house.clock, following) == (ANSWER, False)
    assert house.clock.monotonic() < LEASE_SECONDS


async def test_a_lease_that_lapsed_before_it_was_known_to_be_ours_is_none(house: House) -> None:
    hf = house.open()
    answers, model = shared(hf), Model()
    answers._table = Failing(answers._table, "leased", 1, carried_out=True)  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, model))
    await house.clock.asleep(1)
    house.clock.advance(LEASE_SECONDS)
    assert await task == (ANSWER, False)
    # Sent twice, taken anew, and answered: somebody else could have asked meanwhile.
    assert calls_of(hf, "answer") == {("answer", "get"): 2, ("answer", "write"): 4}


async def test_a_lease_is_renewed_by_when_it_was_taken_and_not_by_when_that_was_known(
    house: House,
) -> None:
    hf = house.open()
    answers, slow = shared(hf), Model(gated=True)
    answers._table = Failing(answers._table, "leased", 1, carried_out=True)  # type: ignore[assignment]
    task = asyncio.create_task(ask(answers, slow))
    await house.clock.asleep(1)
    until_ms = house.clock.now_ms() + round(LEASE_SECONDS * 1000)
    house.clock.advance(9)
    await slow.gate.waited_at(1)
    await house.clock.asleep(1)
    house.clock.advance(1)
    await house.clock.asleep(1)
    item = await item_of(hf)
    assert item is not None
    assert item["until_ms"] == until_ms + 10_000
    slow.gate.open()
    await task


async def test_an_error_of_the_one_who_asks_is_not_taken_for_one_of_the_store(
    house: House,
) -> None:
    hf = house.open()
    model = Model(ConditionFailed("of its own"))
    with pytest.raises(ConditionFailed, match="of its own"):
        await ask(shared(hf), model)
    assert model.asked == 1
