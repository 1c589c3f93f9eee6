"""The synchronous core: durable, metered, exact at the edges of Unicode."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import (
    ConditionFailed,
    InvalidWrite,
    OutcomeUnknown,
    StoreFull,
    TransactionCancelled,
)
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.operations import TransactItems, WriteItem, WriteItems
from holdfast.storage.ranges import Prefix
from holdfast.storage.sqlite.writer import SqliteWriter
from holdfast.storage.table import Table
from holdfast.storage.units import Units
from holdfast.storage.validation import validate_write
from holdfast.storage.writes import (
    Absent,
    Check,
    Delete,
    Equals,
    Present,
    Put,
    TransactionWrite,
    Update,
)

Opened = Callable[..., Table]
NEW = Absent("PK")


@pytest.fixture
def core(path: str, clock: ManualClock) -> Iterator[SqliteWriter]:
    core = SqliteWriter(path, layout=LAYOUT, clock=clock)
    yield core
    core.close()


def put(sk: str, size: int = 0, **attributes: object) -> Put:
    write = Put({"PK": "p", "SK": sk, "text": "x" * size, **attributes}, NEW)
    admitted = validate_write(write, LAYOUT)
    assert isinstance(admitted, Put)
    return admitted


def test_a_commit_is_synced(core: SqliteWriter) -> None:
    assert core.connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert core.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_batch_answers_each_operation_for_itself(core: SqliteWriter) -> None:
    answers = core.apply(
        [
            WriteItem(put("a", n=1), "new"),
            WriteItem(put("a"), "nothing"),
            TransactItems((put("b"), Check(Key("p", "none"), Present("PK")))),
            WriteItems((Put({"PK": "p", "SK": "c"}), Delete(Key("p", "none")))),
            WriteItem(Update(key=Key("p", "a"), add={"n": 1}), "new"),
            WriteItem(Update(key=Key("p", "a"), add={"text": 1}), "new"),
        ]
    )
    item = {"PK": "p", "SK": "a", "text": "", "n": 1}
    errors = [type(answer.error) for answer in answers]
    none = type(None)
    assert errors == [none, ConditionFailed, TransactionCancelled, none, none, InvalidWrite]
    assert answers[0].value == item
    # Within a batch each sees what the ones before it did.
    assert answers[4].value == {**item, "n": 2}
    rows = core.connection.execute("SELECT sk FROM items ORDER BY sk").fetchall()
    assert rows == [("a",), ("c",)]


def test_a_batch_is_one_commit(core: SqliteWriter) -> None:
    statements: list[str] = []
    core.connection.set_trace_callback(statements.append)
    core.apply([WriteItem(put(f"{n}"), "nothing") for n in range(50)])
    assert statements.count("COMMIT") == 1
    assert sum(statement.startswith("INSERT") for statement in statements) == 50


def test_an_operation_that_breaks_fails_alone(
    core: SqliteWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_on(write: TransactionWrite, standing: object) -> object:
        if write.key.sk == "bad":
            raise ZeroDivisionError
        return dict(write.item) if isinstance(write, Put) else None

    monkeypatch.setattr("holdfast.storage.sqlite.writer.item_after", break_on)
    good, bad = Put({"PK": "p", "SK": "good"}), Put({"PK": "p", "SK": "bad"})
    answers = core.apply([WriteItem(write, "nothing") for write in (good, bad, good)])
    assert [type(answer.error) for answer in answers] == [
        type(None),
        ZeroDivisionError,
        type(None),
    ]
    assert core.connection.execute("SELECT sk FROM items").fetchall() == [("good",)]


class CommitFails:
    """A cursor whose next commit fails as a full or a broken disk makes it fail."""

    def __init__(self, cursor: sqlite3.Cursor, code: int) -> None:
        self._cursor = cursor
        self._code = code

    def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._cursor.execute(statement, *parameters)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown),  # it may be found in the log after a crash
        (sqlite3.SQLITE_FULL, StoreFull),
    ],
)
def test_a_commit_that_fails_fails_all(
    core: SqliteWriter, code: int, error: type[Exception]
) -> None:
    cursor = core._cursor
    core._cursor = CommitFails(cursor, code)  # type: ignore[assignment]
    answers = core.apply([WriteItem(put("a"), "nothing"), WriteItem(put("b"), "nothing")])
    assert [type(answer.error) for answer in answers] == [error, error]
    assert answers[0].error is not answers[1].error
    core._cursor = cursor
    assert core.connection.execute("SELECT sk FROM items").fetchall() == []
    (answer,) = core.apply([WriteItem(put("a"), "nothing")])
    assert answer.error is None


@pytest.mark.parametrize(
    ("operations", "units"),
    [
        ([WriteItem(put("a", 1500), "nothing")], Units(write=2)),
        ([TransactItems((put("a", 1500), put("b")))], Units(write=6)),
        ([TransactItems((put("a", GSI1PK="g", GSI1SK="1"),))], Units(write=2, index_write=1)),
        ([TransactItems((Check(Key("p", "standing"), Present("PK")),))], Units(write=6)),
        # Cancelled: what stood in the way counts, and one for each of the others.
        ([TransactItems((put("standing"), put("b")))], Units(write=8)),
        ([WriteItem(put("standing"), "nothing")], Units(write=3)),
        ([WriteItem(Delete(Key("p", "standing")), "nothing")], Units(write=3)),
        ([WriteItem(Delete(Key("p", "none")), "nothing")], Units(write=1)),
        ([WriteItem(Delete(Key("p", "none"), Equals("n", 1)), "nothing")], Units(write=1)),
        ([WriteItems((Put({"PK": "p", "SK": "standing"}), Delete(Key("p", "n"))))], Units(write=4)),
    ],
)
def test_what_an_operation_costs(
    core: SqliteWriter, operations: list[WriteItem], units: Units
) -> None:
    core.apply([WriteItem(put("standing", 2500), "nothing")])
    (answer,) = core.apply(operations)
    assert answer.units == units


@pytest.mark.parametrize("edge", ["\ud7ff", "\U0010ffff", "a\U0010ffff\U0010ffff", "\x00", "\x7f"])
async def test_a_prefix_ends_where_it_ends(opened: Opened, edge: str) -> None:
    table = opened()
    inside = [edge, f"{edge}\x00", f"{edge}x", f"{edge}\U0010ffff", f"{edge}\U0010ffffx"]
    outside = [
        "\x01",
        "a",
        "b",
        "\ud7fe\U0010ffff",
        "\ue000",
        "\U0010fffe\U0010ffff",
        "a\U0010ffff",
    ]
    outside = [sk for sk in outside if not sk.startswith(edge)]
    await table.write_many(Put({"PK": "p", "SK": sk}) for sk in {*inside, *outside})
    found = [item["SK"] for item in (await table.query("p", Prefix(edge))).items]
    assert found == sorted(inside, key=str.encode)
