"""The simulated truth means what the SQLite core means: same values, errors, units and pages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import ConditionFailed, TransactionCancelled
from holdfast.storage.cursors import position_of
from holdfast.storage.item import Item
from holdfast.storage.layout import LAYOUT, Index, Key
from holdfast.storage.operations import (
    GetItem,
    GetItems,
    Operation,
    Page,
    QueryItems,
    Reply,
    Returning,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.ranges import ALL, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.sqlite.reader import SqliteReader
from holdfast.storage.sqlite.writer import SqliteWriter
from holdfast.storage.validation import validate_batch, validate_transaction, validate_write
from holdfast.storage.writes import (
    Absent,
    Check,
    Condition,
    Delete,
    Equals,
    Greater,
    Present,
    Put,
    Update,
)
from tests.simulation.truth import Truth

KEY = Key("p", "s")


class _Draw:
    """Draws operations on so few keys that they meet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def operation(self) -> Operation:
        kind = self._random.choice(["write"] * 6 + ["transact", "batch", "get", "gets"] + ["q"] * 4)
        match kind:
            case "write":
                kinds: list[Returning] = ["nothing", "old", "new"]
                returning = self._random.choice(kinds)
                return WriteItem(validate_write(self._write(), LAYOUT), returning)
            case "transact":
                writes = {write.key: write for write in [self._write() for _ in range(3)]}
                check = Check(self._key(), self._condition() or Present("PK"))
                writes.setdefault(check.key, check)  # type: ignore[arg-type]
                return TransactItems(validate_transaction(list(writes.values()), LAYOUT))
            case "batch":
                batch: dict[Key, Put | Delete] = {}
                for _ in range(3):
                    put = Put(self._item())
                    batch[put.key] = put if self._random.random() < 0.7 else Delete(put.key)
                return WriteItems(validate_batch(list(batch.values()), LAYOUT))
            case "get":
                return GetItem(self._key(), self._random.random() < 0.5)
            case "gets":
                return GetItems(tuple({self._key(): None, self._key(): None}), False)
            case _:
                return self._query()

    def _query(self) -> QueryItems:
        index: Index | None = self._random.choice([None, *LAYOUT.indexes])
        sk = self._random.choice("abc")
        where: list[Range] = [ALL, At(sk), Prefix(sk), From(sk), UpTo(sk), Between("a", sk)]
        return QueryItems(
            pk=self._random.choice("pq"),
            range=self._random.choice(where),
            index=index,
            limit=self._random.choice([None, 1, 2, 3]),
            after=None,
            forward=self._random.random() < 0.5,
            eventual=index is not None,
        )

    def _key(self) -> Key:
        return Key(
            self._random.choice("pq"), self._random.choice(["a", "ab", "ab\u00e9", "b", "c"])
        )

    def _item(self) -> Item:
        key = self._key()
        return {"PK": key.pk, "SK": key.sk, **self._attributes()}

    def _attributes(self) -> Item:
        choices: dict[str, list[Any]] = {
            "n": [1, 2, -30],
            "status": ["ready", "done"],
            "show": [{"title": "x", "tags": ["a", "b"]}],
            "big": ["x" * 3000],
            "ttl": [1_700_000_000],
            "GSI1PK": ["p", "q"],
            "GSI1SK": ["a", "b"],
            "GSI2PK": ["p", "q"],
            "GSI2SK": ["a", "bb"],
        }
        return {
            name: self._random.choice(values)
            for name, values in choices.items()
            if self._random.random() < 0.4
        }

    def _condition(self) -> Condition | None:
        conditions: list[Condition | None] = [
            *[None] * 4,
            Absent("PK"),
            Present("PK"),
            Equals("status", "ready"),
            Greater("n", 1),
        ]
        return self._random.choice(conditions)

    def _write(self) -> Put | Update | Delete:
        match self._random.choice("PPUUD"):
            case "P":
                return Put(self._item(), self._condition())
            case "U":
                removed = ("GSI1PK",) if self._random.random() < 0.2 else ()
                attributes = self._attributes()
                for name in (*removed, "n"):
                    attributes.pop(name, None)
                # Sometimes to what is no number, which is refused.
                add = {self._random.choice(["n", "n", "count"]): 1}
                return Update(
                    key=self._key(),
                    set=attributes,
                    add=add,
                    remove=removed,
                    condition=self._condition(),
                )
            case _:
                return Delete(self._key(), self._condition())


class _Both:
    """The truth and the SQLite core, side by side."""

    def __init__(self) -> None:
        self.truth = Truth()
        self._core = SqliteWriter(":memory:", layout=LAYOUT, clock=ManualClock())
        self._reader = SqliteReader(self._core.connection, ":memory:")

    def close(self) -> None:
        self._core.close()

    def compare(self, operation: Operation) -> Reply:
        if isinstance(operation, GetItem | GetItems | QueryItems):
            theirs, ours = self._reader.read(operation), self.truth.read(operation)
        else:
            (theirs,) = self._core.apply([operation])
            ours, _ = self.truth.apply(operation, at=0, at_ms=0)
        assert _told(ours) == _told(theirs), operation
        return ours


def _told(answer: Reply) -> tuple[Any, ...]:
    error = answer.error
    details: Any = None
    if isinstance(error, ConditionFailed):
        details = error.item
    elif isinstance(error, TransactionCancelled):
        details = (error.failed, error.items)
    return answer.value, answer.units, type(error), str(error), details


@pytest.mark.parametrize("seed", range(10))
def test_the_truth_agrees_with_the_sqlite_core(seed: int) -> None:
    both = _Both()
    draw = _Draw(seed)
    refused = paged = 0
    for _ in range(500):
        operation = draw.operation()
        answer = both.compare(operation)
        refused += answer.error is not None
        while isinstance(operation, QueryItems) and answer.value.cursor is not None:
            page: Page = answer.value
            assert page.cursor is not None
            operation = QueryItems(
                pk=operation.pk,
                range=operation.range,
                index=operation.index,
                limit=operation.limit,
                after=position_of(page.cursor, operation.pk, operation.index),
                forward=operation.forward,
                eventual=operation.eventual,
            )
            answer = both.compare(operation)
            paged += 1
    both.close()
    assert refused > 20
    assert paged > 20


def test_nobody_can_change_the_truth_through_an_answer() -> None:
    truth = Truth()
    item = {"PK": "p", "SK": "s", "show": {"tags": ["a"]}, "list": [1, [2]]}
    write = WriteItem(validate_write(Put(item), LAYOUT), "new")
    answers = [truth.apply(write, at=0, at_ms=0)[0].value]
    answers.append(truth.read(GetItem(KEY, False)).value)
    refused, _ = truth.apply(WriteItem(Put(item, Absent("PK")), "nothing"), at=0, at_ms=0)
    assert isinstance(refused.error, ConditionFailed)
    answers.append(dict(refused.error.item or {}))
    for answer in answers:
        assert answer == item
        answer["show"]["tags"].append("b")
        answer["list"][1].append(3)
    item["show"] = {}
    assert truth.item(KEY) == {"PK": "p", "SK": "s", "show": {"tags": ["a"]}, "list": [1, [2]]}


def test_the_past_can_be_read() -> None:
    truth = Truth(memory_seconds=60)
    for second in range(10):
        item = {"PK": "p", "SK": "s", "n": second, "GSI1PK": "due", "GSI1SK": f"{second}"}
        truth.apply(WriteItem(Put(item), "nothing"), at=second, at_ms=second * 1000)
    truth.apply(WriteItem(Delete(KEY), "nothing"), at=10, at_ms=10_000)
    index = LAYOUT.index("GSI1")
    query = QueryItems(
        pk="due", range=ALL, index=index, limit=None, after=None, forward=True, eventual=True
    )
    for moment, n in [(-1.0, None), (0, 0), (3.5, 3), (9, 9), (10, None)]:
        answer = truth.read(GetItem(KEY, True), lambda place, moment=moment: moment)
        assert (answer.value or {}).get("n") == n
        page = truth.read(query, lambda place, moment=moment: moment).value
        assert [entry["GSI1SK"] for entry in page.items] == ([] if n is None else [str(n)])
    # Each entry for itself: what moved can be seen twice, as in an index that lags.
    page = truth.read(query, lambda place: 4.0 if place[0] == "4" else 3.0).value
    assert [entry["GSI1SK"] for entry in page.items] == ["3", "4"]


def test_the_feed_tells_what_changed() -> None:
    truth = Truth()
    for n in (1, 1, 2):
        put = Put({"PK": "p", "SK": "s", "n": n})
        truth.apply(WriteItem(put, "nothing"), at=n, at_ms=n * 1000)
    truth.apply(WriteItem(Delete(KEY), "nothing"), at=3, at_ms=3000, expired=True)
    first = truth.read_changes(None, 2)
    rest = truth.read_changes(first.position, 10)
    told = [
        (change.old and change.old["n"], change.new and change.new["n"], change.expired)
        for change in first.changes + rest.changes
    ]
    assert told == [(None, 1, False), (1, 2, False), (2, None, True)]
    assert truth.read_changes("latest", 10).changes == []
