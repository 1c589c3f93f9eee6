"""Random operations on all engines at once: the same results, errors, pages and capacity units.

What is drawn keeps within what every engine does as the service does (see `kinds.FEATURES`); the
rest is in `test_table.py`, engine by engine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast.clock import SystemIds
from holdfast.errors import ConditionFailed, InvalidRequest, TransactionCancelled
from holdfast.storage.layout import Key
from holdfast.storage.meter import Meter
from holdfast.storage.ranges import ALL, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.table import Table
from holdfast.storage.units import NO_UNITS, Units, read_units
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Delete,
    Equals,
    Greater,
    Less,
    Present,
    Put,
    TransactionWrite,
    Update,
)
from tests.contract import kinds
from tests.contract.kinds import Kind

IDS = SystemIds()
SORT_KEYS = ("a", "b", "b1", "b2", "c")

numbers = st.one_of(
    st.integers(-1000, 1000),
    st.decimals(-100, 100, places=2).map(lambda n: n if n else Decimal(0)),
)
texts = st.sampled_from(["x", "yy", "zé", "世界"])
# Sizes on both sides of where a further unit begins: 1 KB and 4 KB.
long_texts = st.sampled_from([900, 1100, 3900, 4200, 9000]).map(lambda size: "x" * size)
values = {
    "n": numbers,
    "m": numbers,
    "text": st.one_of(texts, long_texts),
    "raw": st.sampled_from([b"\x00", b"\xff\x00", b"raw" * 500]),
    "tags": st.sets(st.sampled_from("pqr"), min_size=1).map(frozenset),
    "status": st.one_of(texts, long_texts),
    "show": st.fixed_dictionaries({"a": st.one_of(numbers, st.lists(texts, max_size=2))}),
    "flag": st.booleans(),
    "nothing": st.none(),
}
attributes = st.fixed_dictionaries({}, optional=values)
sort_keys = st.sampled_from(SORT_KEYS)
# An item is in an index with both of its keys or not at all.
places = st.sampled_from(["", "1", "2"])

simple_conditions = st.one_of(
    st.sampled_from(["PK", *values]).map(Absent),
    st.sampled_from(["PK", *values]).map(Present),
    # Not "nothing": moto takes what is not there for equal to None.
    st.sampled_from(sorted(values.keys() - {"nothing"})).flatmap(
        lambda name: st.builds(Equals, st.just(name), values[name])
    ),
    st.sampled_from(["n", "m"]).flatmap(lambda name: st.builds(Less, st.just(name), numbers)),
    st.sampled_from(["n", "m"]).flatmap(lambda name: st.builds(Greater, st.just(name), numbers)),
    st.builds(Less, st.just("text"), texts),
    st.builds(Greater, st.just("text"), texts),
)
conditions = st.one_of(
    st.none(),
    simple_conditions,
    st.lists(simple_conditions, min_size=1, max_size=3).map(tuple).map(AllOf),
    st.lists(simple_conditions, min_size=1, max_size=3).map(tuple).map(AnyOf),
)
tokens = st.sampled_from([None, "t1", "t2"])
ranges = st.one_of(
    st.just(ALL),
    sort_keys.map(At),
    sort_keys.map(Prefix),
    sort_keys.map(From),
    sort_keys.map(UpTo),
    st.tuples(sort_keys, sort_keys).map(sorted).map(lambda ends: Between(*ends)),
)
returnings = st.sampled_from(["nothing", "old", "new"])


@dataclass(frozen=True)
class Outcome:
    """What one engine made of an operation."""

    value: Any
    error: str | None
    units: Units
    obstacle: Any = None


@dataclass(frozen=True)
class Engine:
    kind: Kind
    table: Table
    meter: Meter


class Agreement(RuleBasedStateMachine):
    """Runs each operation on every engine and compares what comes back."""

    kinds: tuple[Kind, ...]
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.pk = IDS.new()
        self.engines: list[Engine] = []
        for kind in self.kinds:
            meter = Meter()
            self.engines.append(Engine(kind, Table(kind.open(), meter), meter))

    def teardown(self) -> None:
        try:
            self.read_everything()
        finally:
            self.loop.run_until_complete(self._close())

    async def _close(self) -> None:
        for engine in self.engines:
            await engine.table.close()

    # --- operations ---------------------------------------------------------------------------

    def item(self, sk: str, attributes: dict[str, Any], place: str) -> dict[str, Any]:
        return {"PK": self.pk, "SK": sk, **attributes, **self.placed(sk, place)}

    def placed(self, sk: str, place: str) -> dict[str, str]:
        if not place:
            return {}
        # Distinct for each item: the order among equal index keys is nobody's promise.
        index_sk = f"{place}#{sk}"
        partition = f"index-{self.pk}"
        return {
            "GSI1PK": partition, "GSI1SK": index_sk, "GSI2PK": partition, "GSI2SK": index_sk,
        }  # fmt: skip

    def put(self, sk: str, drawn: Any) -> Put:
        attributes, place, condition, token = drawn
        return Put(self.item(sk, attributes, place), condition, token)

    def update(self, sk: str, drawn: Any) -> Update | None:
        attributes, choices, place, condition, token = drawn
        parts: dict[str, Any] = {"set": {}, "set_if_absent": {}, "add": {}, "remove": []}
        for (name, value), choice in zip(attributes.items(), choices, strict=False):
            if choice == "remove":
                parts["remove"].append(name)
            elif choice == "add" and name in ("n", "m", "tags"):
                parts["add"][name] = value
            else:
                parts["set_if_absent" if choice == "set_if_absent" else "set"][name] = value
        parts["set"] |= self.placed(sk, place)
        if place == "" and "set_if_absent" in choices:
            parts["remove"] += ["GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK"]
        parts["remove"] = tuple(parts["remove"])
        if not any(parts.values()) and token is None:
            return None
        return Update(key=Key(self.pk, sk), condition=condition, token=token, **parts)

    puts = st.tuples(attributes, places, conditions, tokens)
    updates = st.tuples(
        attributes,
        st.lists(
            st.sampled_from(["set", "set_if_absent", "add", "remove"]), min_size=9, max_size=9
        ),
        places,
        conditions,
        tokens,
    )

    @rule(sk=sort_keys, drawn=puts, returning=returnings)
    def put_item(self, sk: str, drawn: Any, returning: Any) -> None:
        write = self.put(sk, drawn)
        self.agree(lambda table: table.write(write, returning=returning))

    @rule(sk=sort_keys, drawn=updates, returning=returnings)
    def update_item(self, sk: str, drawn: Any, returning: Any) -> None:
        write = self.update(sk, drawn)
        if write is not None:
            self.agree(lambda table: table.write(write, returning=returning))

    @rule(sk=sort_keys, condition=conditions, returning=returnings)
    def delete_item(self, sk: str, condition: Condition | None, returning: Any) -> None:
        write = Delete(Key(self.pk, sk), condition)
        self.agree(lambda table: table.write(write, returning=returning))

    @rule(
        drawn=st.lists(
            st.tuples(
                sort_keys, st.sampled_from(["put", "update", "delete", "check"]), puts, updates
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda one: one[0],
        )
    )
    def transact(self, drawn: Any) -> None:
        writes: list[TransactionWrite] = []
        for sk, kind, put, update in drawn:
            key, condition = Key(self.pk, sk), put[2]
            made: TransactionWrite | None
            if kind == "put":
                made = self.put(sk, put)
            elif kind == "update":
                made = self.update(sk, update)
            elif kind == "delete":
                made = Delete(key, condition)
            else:
                made = Check(key, condition) if condition is not None else None
            if made is not None:
                writes.append(made)
        if writes:
            self.agree(lambda table: table.transact(writes), local=transaction_on_local)

    @rule(
        drawn=st.dictionaries(
            sort_keys, st.one_of(st.none(), st.tuples(attributes, places)), max_size=5
        )
    )
    def write_many(self, drawn: dict[str, Any]) -> None:
        standing = {item["SK"] for item in self.standing()}
        writes = [
            Delete(Key(self.pk, sk)) if one is None else Put(self.item(sk, *one))
            for sk, one in drawn.items()
        ]
        absent = sum(one is None and sk not in standing for sk, one in drawn.items())
        self.agree(
            lambda table: table.write_many(writes),
            local=lambda units: batch_on_local(units, absent),
        )

    @rule(sk=sort_keys, eventual=st.booleans())
    def get(self, sk: str, eventual: bool) -> None:
        self.agree(lambda table: table.get(Key(self.pk, sk), eventual=eventual))

    @rule(sks=st.lists(sort_keys, max_size=6), eventual=st.booleans())
    def get_many(self, sks: list[str], eventual: bool) -> None:
        standing = {item["SK"] for item in self.standing()}
        absent = len(set(sks) - standing)
        self.agree(
            lambda table: table.get_many([Key(self.pk, sk) for sk in sks], eventual=eventual),
            local=lambda units: batch_get_on_local(units, absent * (0.5 if eventual else 1)),
        )

    @rule(
        where=ranges,
        index=st.sampled_from([None, "GSI1", "GSI2"]),
        limit=st.sampled_from([None, 1, 2, 10]),
        forward=st.booleans(),
        eventual=st.booleans(),
    )
    def query(
        self, where: Range, index: str | None, limit: int | None, forward: bool, eventual: bool
    ) -> None:
        partition = f"index-{self.pk}" if index else self.pk
        if index and isinstance(where, At | Prefix | From | UpTo):
            where = type(where)(f"1#{where.sk}")

        empty_pages: dict[Table, int] = {}

        async def pages(table: Table) -> list[list[Any]]:
            found: list[list[Any]] = []
            cursor = None
            while True:
                page = await table.query(
                    partition, where, index=index, limit=limit, cursor=cursor,
                    forward=forward, eventual=eventual,
                )  # fmt: skip
                found.append(page.items)
                cursor = page.cursor
                if cursor is None:
                    break
            empty_pages[table] = found.count([])
            # Whether the last full page is known to be the last is nobody's promise.
            return found[:-1] if len(found) > 1 and not found[-1] else found

        half = eventual or index is not None
        self.agree(
            pages,
            local=lambda units: query_on_local(
                units, empty_pages[self.engines[0].table] * (0.5 if half else 1), index
            ),
        )

    # --- comparing ----------------------------------------------------------------------------

    def standing(self) -> list[Any]:
        return self.loop.run_until_complete(self.engines[0].table.query(self.pk)).items

    def read_everything(self) -> None:
        empty = not self.standing()
        self.agree(
            lambda table: all_of(table.query_all(self.pk)),
            local=lambda units: query_on_local(units, 1 if empty else 0, None),
        )

    def agree(
        self,
        operation: Callable[[Table], Awaitable[Any]],
        *,
        local: Callable[[Units], Units] = lambda units: units,
    ) -> None:
        """Run it everywhere; `local` says what DynamoDB Local makes of the true units."""

        async def everywhere() -> list[Outcome]:
            return list(await asyncio.gather(*(outcome(e, operation) for e in self.engines)))

        outcomes = self.loop.run_until_complete(everywhere())
        expected = outcomes[0]
        for engine, found in zip(self.engines, outcomes, strict=True):
            name = engine.kind.name
            assert (found.error, typed(found.obstacle), typed(found.value)) == (
                expected.error,
                typed(expected.obstacle),
                typed(expected.value),
            ), f"{name} disagrees with {self.engines[0].kind.name}"
            if not engine.kind.has("units"):
                continue
            units = expected.units
            if name == "dynamodb_local":
                units = units if expected.error else local(units)
                units += refusal_on_local(expected)
            assert found.units == units or math.isnan(units.write), f"{name}'s units"


def typed(value: Any) -> Any:
    """Return the value with the types of all its parts: Python takes True for 1."""
    match value:
        case dict():
            return {name: typed(part) for name, part in value.items()}
        case list() | tuple():
            return [typed(part) for part in value]
        case frozenset():
            return frozenset(typed(part) for part in value)
        case _:
            return (type(value).__name__, value)


async def all_of(items: Any) -> list[Any]:
    return [item async for item in items]


async def outcome(engine: Engine, operation: Callable[[Table], Awaitable[Any]]) -> Outcome:
    engine.meter.reset()
    value: Any = None
    error: str | None = None
    obstacle: Any = None
    try:
        value = await operation(engine.table)
    except ConditionFailed as failed:
        error, obstacle = failed.code, failed.item
    except TransactionCancelled as cancelled:
        error, obstacle = cancelled.code, (cancelled.failed, cancelled.items)
    except InvalidRequest as invalid:
        error = invalid.code
    return Outcome(value, error, engine.meter.report().units, obstacle)


# --- where DynamoDB Local's units are not those of the service ------------------------------

UNCOMPARED = Units(write=math.nan)


def transaction_on_local(_: Units) -> Units:
    """It counts four units a KB instead of two, indexes too, and merges writes of equal cost."""
    return UNCOMPARED


def refusal_on_local(outcome: Outcome) -> Units:
    """It does not say what stood in the way of a single write, so our engine reads it."""
    if outcome.error != ConditionFailed.code:
        return NO_UNITS
    return read_units(outcome.obstacle, eventual=False)


def query_on_local(units: Units, empty: float, index: str | None) -> Units:
    """It counts nothing for a page on which it found nothing."""
    if index:
        return Units(index_read=units.index_read - empty)
    return Units(read=units.read - empty)


def batch_on_local(units: Units, absent: int) -> Units:
    """It counts two units for the deletion, in a batch, of what is not there."""
    return Units(write=units.write + absent, index_write=units.index_write)


def batch_get_on_local(units: Units, absent: float) -> Units:
    """It counts nothing for an item, of a batch, that is not there."""
    return Units(read=units.read - absent)


@pytest.fixture
def every_kind(tmp_path: Path, dynamodb_local: str, moto_server: str) -> Iterable[tuple[Kind, ...]]:
    return (
        kinds.sqlite_memory(),
        kinds.sqlite_file(tmp_path),
        kinds.dynamodb_local(dynamodb_local, "agreement"),
        kinds.moto(moto_server, "agreement"),
    )


async def create(all_kinds: Iterable[Kind]) -> None:
    for kind in all_kinds:
        engine = kind.open()
        await engine.create()
        await engine.close()


def test_all_engines_agree(every_kind: tuple[Kind, ...]) -> None:
    with asyncio.Runner() as runner:
        runner.run(create(every_kind))
        loop = runner.get_loop()
        machine = type("Machine", (Agreement,), {"kinds": every_kind, "loop": loop})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=60,
                stateful_step_count=25,
                deadline=None,
                # Without shrinking, which would take many minutes over real servers.
                phases=[Phase.explicit, Phase.reuse, Phase.generate],
                report_multiple_bugs=False,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
