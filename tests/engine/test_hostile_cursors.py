"""Cursors come back from strangers: whatever they are, the answer is a page or a typed error."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from holdfast import Holdfast, RunFilter
from holdfast.errors import ChangesOff, InvalidName, InvalidQuery
from tests import hostile
from tests.engine.hostile import ASKS
from tests.engine.support import House, chain

GRAPH = chain("g", 1, lambda number: {})
GENERATION = hostile.GENERATION


@pytest.fixture
async def started(house: House) -> Holdfast:
    hf = house.open()
    for number in range(3):
        await hf.start(GRAPH, id=f"doc-{number}")
        await hf.start(GRAPH, id=f"doc-{number}", tenant="other")
    return hf


@pytest.mark.parametrize("asked", ASKS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cursor=hostile.cursors())
@example(cursor="0000000000000#x")
@example(cursor="1700000000000#\ud800")
@example(cursor="1700000000000#" + "x" * 5_000)
@example(cursor=f"{GENERATION}.99999999.99999999")
@example(cursor=f"{GENERATION}.1.{GENERATION}.1.1")
async def test_any_cursor_is_one_or_is_refused(started: Holdfast, asked: str, cursor: Any) -> None:
    refused = None
    try:
        await ASKS[asked](started, cursor)
    except (InvalidQuery, InvalidName, ChangesOff) as error:
        refused = error
    if refused is not None:
        assert getattr(refused, "field", "after") in ("cursor", "after", "session", "user")
        assert len(str(refused)) < 500


async def test_a_cursor_of_another_tenant_shows_nothing_of_it(started: Holdfast) -> None:
    page = await started.list(tenant="other", limit=1)
    own = await started.list(cursor=page.cursor)
    assert all(entry.tenant == "default" for entry in own.runs)


async def test_a_cursor_with_other_digits_is_refused(started: Holdfast) -> None:
    for cursor in ("٣" * 13 + "#x", "1700000000000#" + "x" * 5_000, "1700000000000#\ud800"):
        with pytest.raises(InvalidQuery, match=re.escape("not a cursor of a list of runs")):
            await started.list(cursor=cursor)


async def test_a_cursor_before_the_time_asked_for_is_an_empty_page(started: Holdfast) -> None:
    since = (await started.run("doc-1").get()).created_at
    page = await started.list(RunFilter(since=since), cursor="0000000000000#x")
    assert (page.runs, page.cursor) == ([], None)
