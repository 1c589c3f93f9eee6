"""Fences and decisions of a review, in every order of their reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from holdfast.records.head import Head
from holdfast.records.journal import Content, fence_of, fence_write, is_fence, signal_write
from holdfast.records.keys import RunKey
from holdfast.records.review import DECISION_ID, EVERY_FENCE, ReviewKey
from holdfast.storage.writes import Put, Update, holds, item_after

GENERATION = "g"
KEY = ReviewKey(RunKey("default", "r"), GENERATION, "0" * 16)
HEAD = Head(
    key=KEY.run,
    graph="g",
    version=1,
    list_shards=1,
    status="waiting",
    generation=GENERATION,
    epoch=1,
    owner=None,
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


class Store:
    """A trail, and the place of the decision in the inbox."""

    def __init__(self) -> None:
        self.actions = 0
        self.item: Mapping[str, Any] | None = None
        self.acknowledged: set[int] = set()

    def apply(self, write: Put | Update) -> bool:
        if not holds(write.condition, dict(self.item) if self.item else None):
            return False
        self.item = item_after(write, dict(self.item) if self.item else None)
        return True


class Changer:
    """Appends an action, then writes its fence."""

    def __init__(self) -> None:
        self.position: int | None = None

    def step(self, store: Store) -> None:
        if self.position is None:
            self.position, store.actions = store.actions, store.actions + 1
            return
        write = fence_write(KEY.decision, self.position, ttl=10, token="t")
        if store.apply(write) or is_fence(store.item or {}):
            store.acknowledged.add(self.position)
            assert fence_of(store.item or {}) >= self.position


class Decider:
    """Reads the trail, then puts a decision; it may be told to look again."""

    def __init__(self, *, heeds: bool) -> None:
        self.heeds = heeds
        self.read: int | None = None

    def step(self, store: Store) -> None:
        if self.read is None:
            self.read = store.actions
            return
        before, below = store.item, self.read if self.heeds else EVERY_FENCE
        put = signal_write(
            HEAD,
            name=KEY.decision.sk.split("#")[3],
            id=DECISION_ID,
            content=Content(b""),
            plain_bytes=0,
            accepted_ms=0,
            token="t",
            fences_below=below,
        )
        assert put.key == KEY.decision
        decided = store.apply(put)
        stood = before is not None and not is_fence(before)
        if stood:
            assert not decided  # the first one counts
        elif self.heeds:
            # All that was acknowledged was read; and what was read is no reason to refuse.
            assert decided == (before is None or fence_of(before) < self.read)
            assert not decided or all(position < self.read for position in store.acknowledged)
        else:
            assert decided
        self.read = None


@given(some.lists(some.tuples(some.integers(0, 5), some.booleans()), max_size=40))
def test_a_decision_has_read_every_change_that_was_acknowledged(
    steps: list[tuple[int, bool]],
) -> None:
    store, stood = Store(), False
    changers = [Changer() for _ in range(3)]
    deciders = [Decider(heeds=True), Decider(heeds=True), Decider(heeds=False)]
    for number, again in steps:
        if number < 3:
            if again and changers[number].position in store.acknowledged:
                changers[number] = Changer()  # another change by the same person
            known = set(store.acknowledged)
            changers[number].step(store)
            if stood:
                assert store.acknowledged == known  # it came too late
        else:
            deciders[number - 3].step(store)
        stands = store.item is not None and not is_fence(store.item)
        assert stands or not stood  # no fence replaces a decision
        stood = stands
