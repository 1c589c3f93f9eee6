"""Fair slots: a flood leaves some to others, and nobody who holds none is kept waiting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.worker.slots import Slots, may_take

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
