"""Fair slots: a flood leaves some to others, and a reserved slot is started or given back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.runs.local_workers import LocalWorkers, reserve_slot
from holdfast.engine.worker.slots import Slots, may_take
from holdfast.errors import ConditionFailed, JournalDamaged
from holdfast.records.keys import RunKey

counts = st.integers(1, 2_000)


def flooded(count: int, floods: int) -> Slots:
    """Return slots of which that many tenants, in turn, have taken what they may."""
    slots = Slots(count)
    tenants = [f"flood-{number}" for number in range(floods)]
    while any(slots.admits(tenant) for tenant in tenants):
        for tenant in tenants:
            if slots.admits(tenant):
                slots.take(tenant)
    return slots


@given(st.integers(0, 2_000), st.integers(0, 2_000))
def test_the_more_is_free_and_the_less_is_held_the_sooner_one_may(held: int, free: int) -> None:
    if may_take(held, free):
        assert free > 0
        assert may_take(held, free + 1)
        assert held == 0 or may_take(held - 1, free)
    elif free:
        assert held >= 7


@given(counts, st.integers(1, 5))
def test_floods_leave_slots_to_those_who_hold_none(count: int, floods: int) -> None:
    slots = flooded(count, floods)
    assert slots.free == (count - slots.taken) >= 0
    # Each may hold up to seven times what is free, of which the last one has taken one.
    assert slots.taken <= 7 * floods * (slots.free + 1)
    if count > 7 * floods:
        assert slots.free >= 1
        assert slots.admits("somebody else")


def test_one_flood_leaves_an_eighth_and_two_leave_a_fifteenth() -> None:
    assert [flooded(800, floods).free for floods in (1, 2)] == [100, 800 // 15]
    assert [flooded(count, 1).free for count in (1, 7, 8, 15, 100)] == [0, 0, 1, 1, 12]


@given(counts, st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=200))
def test_what_is_given_back_can_be_taken_again(count: int, steps: list[tuple[bool, str]]) -> None:
    slots, held = Slots(count), Counter[str]()
    for takes, tenant in steps:
        assert slots.admits(tenant) == may_take(held[tenant], count - held.total())
        if takes and slots.admits(tenant):
            slots.take(tenant)
            held[tenant] += 1
        elif not takes and held[tenant]:
            slots.release(tenant)
            held[tenant] -= 1
        assert (slots.taken, slots.free) == (held.total(), count - held.total())


def test_to_ask_for_a_slot_changes_nothing() -> None:
    slots = Slots(1)
    slots.take("a")
    assert not slots.admits("b")
    assert not slots.refused
    slots.mark_refused()
    assert slots.needs_poll(freed=True)
    assert not slots.needs_poll(freed=False)


class _Row:
    """As much of a run's row as a handover looks at."""

    def __init__(self, owner: str | None, reason: str | None = None) -> None:
        self.owner = owner
        self.reason = reason
        self.index_key = "place"


class _Workers:
    """Workers with one slot, or without any; they note what is asked of them."""

    def __init__(self, *, free: bool = True) -> None:
        self.owner = "w1"
        self.calls: list[Any] = []
        self._free = free

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> _Workers | None:
        return self if self._free else None

    def start_run(self, head: _Row, loaded: object = None) -> None:
        self.calls.append("start")

    def release(self, *, maybe_claimed: bool = False) -> None:
        self.calls.append(("release", maybe_claimed))

    def offer(self, place: str) -> None:
        self.calls.append(("offer", place))


def handed_over(workers: _Workers, row: _Row | None, error: Exception | None = None) -> list[Any]:
    """Return what the workers are asked to do when a block starts a run, and then raises."""
    local: LocalWorkers = workers  # type: ignore[assignment]
    with reserve_slot(
        local, RunKey("default", "run"), "g", None, unwritten=(ConditionFailed,)
    ) as slot:
        if row is not None:
            slot.start_run(row)  # type: ignore[arg-type]
        if error is not None:
            raise error
    return workers.calls


def test_a_run_gets_the_slot_that_was_reserved_for_it() -> None:
    assert handed_over(_Workers(), _Row("w1")) == ["start"]
    assert handed_over(_Workers(free=False), _Row(None)) == [("offer", "place")]


def test_a_slot_that_no_run_was_started_in_is_given_back() -> None:
    assert handed_over(_Workers(), None) == [("release", False)]
    assert handed_over(_Workers(), _Row(None, "queued")) == [("release", False)]


@pytest.mark.parametrize(
    ("error", "maybe_claimed"), [(ConditionFailed("no"), False), (JournalDamaged("no"), True)]
)
def test_a_slot_is_given_back_whatever_is_raised(error: Exception, maybe_claimed: bool) -> None:
    workers = _Workers()
    with pytest.raises(type(error)):
        handed_over(workers, None, error)
    assert workers.calls == [("release", maybe_claimed)]
    started = _Workers()
    with pytest.raises(type(error)):
        handed_over(started, _Row("w1"), error)
    assert started.calls == ["start"]
