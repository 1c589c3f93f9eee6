"""The four kinds of engine that the contract is run on, and in what each falls short of AWS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Clock, SystemIds
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.operations import TableEngine
from holdfast.storage.sqlite import MEMORY, SqliteEngine


@dataclass(frozen=True)
class Kind:
    """One kind of engine; `open` makes an engine on the same data each time, where data is kept."""

    name: str
    open: Callable[..., TableEngine]

    def has(self, feature: str) -> bool:
        """Return whether it does this as the service of today does."""
        return has(self.name, feature)


def has(kind: str, feature: str) -> bool:
    assert feature in FEATURES, feature
    return feature not in SHORTFALLS[kind]


FEATURES = {
    "empty_strings": "non-key attributes may be empty since May 2020",
    "large_transactions": "transactions hold up to 100 writes since September 2022, 10 in 2020",
    "prefixes": "a prefix is a prefix, not a LIKE that ignores case and knows wildcards",
    "typed_comparisons": "values of different types are neither equal nor in any order",
    "exact_sums": "sums are exact to 38 digits",
    "sparse_indexes": "an item without an index's sort key is not in it",
    "pages": "a page ends with the item that reaches 1,048,576 bytes",
    "isolation": "writes and transactions at the same time do not see each other's middle",
    "whole_updates": "an update that is refused changes nothing",
    "units": "reports the capacity units that the service would",
}

SHORTFALLS = {
    "sqlite_file": frozenset[str](),
    "sqlite_memory": frozenset[str](),
    # AWS's own build of January 2020, which knows nothing newer.
    "dynamodb_local": frozenset({"empty_strings", "large_transactions", "prefixes"}),
    "moto": frozenset(FEATURES) - {"empty_strings", "large_transactions", "prefixes"},
}
KINDS = tuple(SHORTFALLS)


def sqlite_file(folder: Path) -> Kind:
    path = str(folder / f"{SystemIds().new()}.db")
    return Kind("sqlite_file", lambda clock=None: SqliteEngine(path, clock=clock))


def sqlite_memory() -> Kind:
    return Kind("sqlite_memory", lambda clock=None: SqliteEngine(MEMORY, clock=clock))


def dynamodb_local(endpoint: str, table: str) -> Kind:
    return Kind("dynamodb_local", _dynamodb(endpoint, table))


def moto(endpoint: str, table: str) -> Kind:
    return Kind("moto", _dynamodb(endpoint, table))


def _dynamodb(endpoint: str, table: str) -> Callable[..., TableEngine]:
    def opened(clock: Clock | None = None) -> TableEngine:
        return DynamoEngine(table, region="us-east-1", endpoint=endpoint)

    return opened
