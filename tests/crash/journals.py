"""What stands in the store about runs and workers, read past the product."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.model.event import Event, Fenced, NodeFinished
from holdfast.records.codec import unpack_events
from holdfast.records.index_keys import REAPED, WORKERS
from holdfast.records.journal import content_of
from holdfast.records.keys import RunKey, is_inbox, journal_position, journal_range, worker_key
from holdfast.storage import Key, Store


class Record(NamedTuple):
    """One record of a journal."""

    position: int
    epoch: int
    events: list[Event]


async def head_of(store: Store, run: str) -> dict[str, Any]:
    """Return a run's row as it is stored."""
    head = await store.table.get(RunKey("default", run).head)
    assert head is not None, run
    return head


async def journal_of(store: Store, run: str) -> list[Record]:
    """Return a run's records in their order."""
    key = RunKey("default", run)
    generation = (await head_of(store, run))["generation"]
    records: list[Record] = []
    async for item in store.table.query_all(key.pk, journal_range(generation)):
        if is_inbox(item["SK"]):
            continue
        content = content_of(item)
        data = await store.blobs.get(content.blob) if content.blob else content.data
        events = unpack_events(data or b"")
        records.append(Record(journal_position(item["SK"]), item["epoch"], events))
    return records


def fences_of(journal: list[Record]) -> list[Fenced]:
    return [event for record in journal for event in record.events if isinstance(event, Fenced)]


def visits_of(journal: list[Record]) -> dict[int, Record]:
    """Return the record of each node that returned, by its visit."""
    found: dict[int, Record] = {}
    for record in journal:
        for event in record.events:
            if isinstance(event, NodeFinished):
                assert event.visit not in found, f"visit {event.visit} is recorded twice"
                found[event.visit] = record
    return found


def finished_in(journal: list[Record]) -> set[tuple[str, int]]:
    """Return branch and visit of each node that returned."""
    events = [event for record in journal for event in record.events]
    found = [(e.branch, e.visit) for e in events if isinstance(e, NodeFinished)]
    assert len(found) == len(set(found)), f"a visit is recorded twice: {found}"
    return set(found)


def check_history(journal: list[Record]) -> None:
    """Fail unless it is one history: no gap, and nothing of an owner that was fenced off."""
    assert [record.position for record in journal] == list(range(1, len(journal) + 1))
    least = 0
    for record in journal:
        for event in record.events:
            if isinstance(event, Fenced):
                assert event.epoch == record.epoch > least, journal
                least = event.epoch
        assert record.epoch >= least, journal


async def workers_of(store: Store, pid: int) -> list[dict[str, Any]]:
    """Return the rows of the workers that a process was, the oldest first."""
    found: list[dict[str, Any]] = []
    for partition in (WORKERS, REAPED):
        async for entry in store.table.query_all(partition, index="GSI1"):
            row = await store.table.get(Key(entry["PK"], entry["SK"]))
            if row is not None and row["pid"] == pid:
                found.append(row)
    return sorted(found, key=lambda row: row["since_ms"])


def worker_in(row: dict[str, Any]) -> str:
    """Return the name of the worker whose row it is."""
    return row["PK"].removeprefix(worker_key("").pk)
