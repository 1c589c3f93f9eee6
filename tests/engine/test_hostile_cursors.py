"""Cursors come back from strangers: whatever they are, the answer is a page or a typed error."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import InvalidQuery
from tests.engine.support import House, chain

GRAPH = chain("g", 1, lambda number: {})
GENERATION = "018bcfe5-6800-7000-8000-000000000000"
NUMBERS = st.sampled_from(["0", "1", "7", "99999999", "999999999", "-1", "+1", "٣", "²", "1e3", ""])
ANY = st.text(st.characters(exclude_categories=()), max_size=60)
LIST = [
    "0000000000000#x", "9999999999999#x", "1700000000000#", "#x", "1700000000000", "٣" * 13 + "#x",
    "170000000000²#x", "1700000000000#" + "x" * 5_000, "1700000000000#\ud800", "1700000000000#\0",
    "1700000000000#a#b", "1700000000000#~", "1700000000000# ", "1700000000000#\U0010ffff",
    "x" * 100_000,
]  # fmt: skip
CURSORS: st.SearchStrategy[Any] = (
    ANY
    | st.sampled_from(LIST)
    | st.builds("{}#{}".format, st.text("0123456789٣", min_size=12, max_size=14), ANY)
    | st.lists(st.just(GENERATION) | NUMBERS | ANY, min_size=1, max_size=6).map(".".join)
    | st.none()
    | st.integers()
    | st.binary()
    | st.lists(st.integers())
)
Ask = Callable[[Holdfast, Any], Awaitable[object]]


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


ASKS: dict[str, Ask] = {
    "list": lambda hf, cursor: hf.list(cursor=cursor),
    "list of some": lambda hf, cursor: hf.list(cursor=cursor, status="failed", limit=1),
    "history": lambda hf, cursor: hf.history("doc-1", cursor=cursor),
    "events": lambda hf, cursor: all_of(hf.events("doc-1", after=cursor, follow=False)),
    "tokens": lambda hf, cursor: all_of(hf.tokens("doc-1", after=cursor, follow=False)),
    "cancel_all": lambda hf, cursor: all_of(
        hf.cancel_all(everything=True, dry_run=True, cursor=cursor)
    ),
    "retry_all": lambda hf, cursor: all_of(
        hf.retry_all(everything=True, dry_run=True, cursor=cursor)
    ),
}


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
@given(cursor=CURSORS)
@example(cursor="0000000000000#x")
@example(cursor="1700000000000#\ud800")
@example(cursor="1700000000000#" + "x" * 5_000)
@example(cursor=f"{GENERATION}.99999999.99999999")
@example(cursor=f"{GENERATION}.1.{GENERATION}.1.1")
async def test_any_cursor_is_one_or_is_refused(started: Holdfast, asked: str, cursor: Any) -> None:
    refused = None
    try:
        await ASKS[asked](started, cursor)
    except InvalidQuery as error:
        refused = error
    if refused is not None:
        assert refused.field in ("cursor", "after")
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
    since = (await started.get("doc-1")).created_at
    page = await started.list(since=since, cursor="0000000000000#x")
    assert (page.runs, page.cursor) == ([], None)
