"""Tickets and numbers, without a store: who is in front stays there, however late a write comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.wait import ChildWait, ResolutionWait, Wait
from holdfast.records.head import Head
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.records.session_queue import (
    SessionQueue,
    Ticket,
    enter_queue_writes,
    front_ticket,
    is_live_ticket,
    leave_queue_write,
    next_recheck_ms,
    next_ticket_number,
    promotable_signal,
    session_queue_of,
)
from holdfast.storage import Key
from holdfast.storage.writes import TransactionWrite, holds, item_after

KEY = SessionQueueKey("acme", "-", "chat-7")
NOW_MS = 1_700_000_000_000
TTL = NOW_MS // 1000 + 1000


def head(id: str = "a", **fields: Any) -> Head:
    row = Head(
        key=RunKey("acme", id),
        graph="g",
        version=1,
        list_shards=1,
        status="running",
        generation=f"generation of {id}",
        epoch=1,
        owner=None,
        input_hash=b"",
        input=b"",
        first="n",
        node="n",
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
        starts_ms=NOW_MS,
        expires_ms=NOW_MS + 500_000,
        ttl=TTL,
        kept="keep-10d",
        session="chat-7",
    )
    return msgspec.structs.replace(row, **fields)


class Partition:
    """The items of a session queue, written as a table would."""

    def __init__(self) -> None:
        self.items: dict[Key, dict[str, Any]] = {}

    def read(self) -> SessionQueue:
        return session_queue_of(self.items[key] for key in sorted(self.items))

    def transact(self, writes: Sequence[TransactionWrite]) -> bool:
        if not all(holds(write.condition, self.items.get(write.key)) for write in writes):
            return False
        for write in writes:
            after = item_after(write, self.items.get(write.key))
            if after is None:
                self.items.pop(write.key, None)
            else:
                self.items[write.key] = after
        return True


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "write", "leave"]), st.integers(0, 5)), max_size=60
)


@given(STEPS)
def test_whoever_is_in_front_stays_there_until_it_leaves(steps: list[tuple[str, int]]) -> None:
    """Starters read and write at any time; what they write may be carried out again, and late."""
    table = Partition()
    read: dict[int, SessionQueue] = {}
    sent: list[Sequence[TransactionWrite]] = []
    made = 0
    in_front: Ticket | None = None
    for step, who in steps:
        if step == "read":
            read[who] = table.read()
        elif step == "write" and who in read:
            made += 1
            run = head(str(made), ticket=next_ticket_number(read[who]))
            sent.append(enter_queue_writes(read[who], run, KEY, now_ms=NOW_MS, token=str(made)))
        elif step == "leave" and table.read().tickets:
            tickets = table.read().tickets
            leaving = tickets[who % len(tickets)]
            table.transact([leave_queue_write(KEY, leaving.number, leaving.generation)])
            if leaving == in_front:
                in_front = None
        if sent:
            table.transact(sent[who % len(sent)])
        now_in_front = front_ticket(table.read(), NOW_MS)
        assert in_front is None or now_in_front == in_front
        in_front = now_in_front
    numbers = [ticket.number for ticket in table.read().tickets]
    assert numbers == sorted(set(numbers))
    assert all(number <= table.read().last for number in numbers)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(-2, 2)), max_size=6))
def test_in_front_is_the_lowest_whose_time_is_not_over(given: list[tuple[int, int]]) -> None:
    now = NOW_MS // 1000
    tickets = tuple(Ticket(n, str(n), "g", now + more) for n, more in given)
    found = front_ticket(SessionQueue(99, TTL, tickets), NOW_MS)
    standing = [n for n, more in given if more >= 0]
    assert (None if found is None else found.number) == min(standing, default=None)


def test_the_counting_is_kept_as_long_as_any_ticket() -> None:
    table = Partition()
    for number, ttl in enumerate((TTL + 50, TTL), start=1):
        run = head(str(number), ticket=number, ttl=ttl)
        assert table.transact(enter_queue_writes(table.read(), run, KEY, now_ms=NOW_MS, token="t"))
    assert (table.read().last, table.read().ttl) == (2, TTL + 50)


def test_a_ticket_whose_time_is_over_makes_room() -> None:
    table = Partition()
    old = head("old", ticket=1, ttl=NOW_MS // 1000 - 1)
    table.transact(enter_queue_writes(table.read(), old, KEY, now_ms=NOW_MS, token="t"))
    del table.items[KEY.last]  # the broom took it, and not yet the ticket
    assert next_ticket_number(table.read()) == 2
    new = head("new", ticket=1)
    assert table.transact(
        enter_queue_writes(SessionQueue(0, 0, ()), new, KEY, now_ms=NOW_MS, token="t")
    )
    # Who left so late does not take the newcomer's place away.
    assert not table.transact([leave_queue_write(KEY, 1, old.generation)])


def test_a_row_of_another_life_does_not_stand_for_a_ticket() -> None:
    ticket = Ticket(1, "a", "this", TTL)
    row = {"generation": "this", "ttl": TTL}
    assert is_live_ticket(ticket, row, NOW_MS)
    assert not is_live_ticket(ticket, None, NOW_MS)
    assert not is_live_ticket(ticket, {**row, "generation": "other"}, NOW_MS)
    assert not is_live_ticket(ticket, {**row, "ttl": NOW_MS // 1000 - 1}, NOW_MS)


@given(st.integers(0, 10**9), st.integers(-(10**7), 10**7))
def test_a_queued_run_asks_within_a_minute_to_an_hour(waited: int, scheduled: int) -> None:
    now = NOW_MS + waited
    pause = next_recheck_ms(head(starts_ms=NOW_MS + scheduled), now) - now
    assert 60_000 <= pause <= 3_600_000
    assert pause <= max(waited, 60_000)


def test_the_longest_wait_is_answered_that_still_takes_an_answer() -> None:
    waits = (
        Wait(visit=1, key="sleep#1", since_ms=1, deadline_ms=NOW_MS + 1),
        Wait(visit=1, key="late#1", signal="late", since_ms=2, deadline_ms=NOW_MS),
        Wait(visit=1, key="stale#1", signal="stale", since_ms=3, stale_ms=NOW_MS - 1),
        Wait(visit=1, key="second#1", signal="second", since_ms=5),
        Wait(visit=1, key="first#1", signal="first", since_ms=4, deadline_ms=NOW_MS + 1),
    )
    waiting = head(status="waiting", waits=waits)
    assert promotable_signal(waiting, "new", NOW_MS) == "first"
    for other in (
        {"owner": "w"},
        {"status": "running"},
        {"waits": waits[:3]},
        {"expires_ms": NOW_MS},
    ):
        assert promotable_signal(msgspec.structs.replace(waiting, **other), "new", NOW_MS) is None


def test_no_start_stands_for_what_only_a_child_or_a_person_can_say() -> None:
    kinds = (ChildWait("other"), ResolutionWait("0" * 16))
    waits = tuple(Wait.of(kind, visit=1, branch="", since_ms=1) for kind in kinds)
    waiting = head(status="waiting", waits=waits)
    assert promotable_signal(waiting, "new", NOW_MS) is None
