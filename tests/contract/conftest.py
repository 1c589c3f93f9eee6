"""A table of every kind, empty for each test by virtue of a partition of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.clock import SystemIds
from holdfast.storage.meter import Meter
from holdfast.storage.table import Table
from tests.contract import kinds
from tests.contract.kinds import KINDS, Kind

TABLE = "contract"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a kind of engine is known not to do: ``@pytest.mark.needs(feature)``."""
    left_out = [item for item in items if not _is_for_its_kind(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_for_its_kind(item: pytest.Item) -> bool:
    kind = (
        item.callspec.params.get("kind")
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else None
    )
    features = [feature for mark in item.iter_markers("needs") for feature in mark.args]
    return kind is None or all(kinds.has(kind, feature) for feature in features)


@pytest.fixture(scope="session")
def _tables_made() -> set[str]:
    return set()


@pytest.fixture(params=KINDS)
async def kind(request: pytest.FixtureRequest, tmp_path: Path, _tables_made: set[str]) -> Kind:
    match request.param:
        case "sqlite_file":
            return kinds.sqlite_file(tmp_path)
        case "sqlite_memory":
            return kinds.sqlite_memory()
        case "dynamodb_local":
            made = kinds.dynamodb_local(request.getfixturevalue("dynamodb_local"), TABLE)
        case _:
            made = kinds.moto(request.getfixturevalue("moto_server"), TABLE)
    if made.name not in _tables_made:
        engine = made.open()
        await engine.create()
        await engine.close()
        _tables_made.add(made.name)
    return made


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def table(kind: Kind, meter: Meter) -> AsyncIterator[Table]:
    table = Table(kind.open(), meter)
    async with asyncio.timeout(60):
        yield table
    await table.close()


@pytest.fixture
def pk() -> str:
    """A partition that no other test uses."""
    return SystemIds().new()
