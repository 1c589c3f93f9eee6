"""The search over segments in SQLite: what a question finds, and in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.documents.search import SegmentSearch, required_search
from holdfast.documents.search_opening import chosen_search
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.errors import InvalidName, InvalidQuery, InvalidRequest, SearchNotConfigured
from holdfast.model.segment_search import SegmentEntry, SegmentHit

PAGES = (
    "Invoice 2026-17 of Nordwind GmbH, Lübeck. Terms of payment: 30 days net.",
    "Positions: 4 bearings at 12.50 EUR each, 2 seals at 3 EUR each.",
    "The total amounts to 56.00 EUR, including 19 % of value added tax.",
    "Le café de la gare vend des crêpes. Les crêpes sont bonnes.",
    "東京都の文書です。合計金額は五千円です。",
)


@pytest.fixture(params=["memory", "file"])
async def search(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SegmentSearch]:
    path = ":memory:" if request.param == "memory" else str(tmp_path / "runs.db.search")
    opened = SqliteSegmentSearch(path)
    yield opened
    await opened.close()


async def add_pages(search: SegmentSearch, document: str = "doc", *, tenant: str = "t") -> None:
    entries = [SegmentEntry(number, text) for number, text in enumerate(PAGES, 1)]
    await search.add(tenant, "proj", document, "wf-1", entries)


def indices(hits: list[SegmentHit]) -> list[int]:
    return [hit.index for hit in hits]


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("what is the total amount of the invoice?", 3),
        ("Which company sent invoice 17?", 1),
        ("how much does a bearing cost", 2),
        ("bearing", 2),  # the text has the plural
        ("luebeck lubeck", 1),  # without the accent
        ("CRÊPE", 4),
        ("合計金額", 5),
        ("東京", 5),
        ("paym*", 1),
        ('"value added tax"', 3),
        ('"seals at" eur', 2),
        ("eur -seals", 3),
        ("2026-17", 1),
        ("what is it?", -1),
    ],
)
async def test_a_question_finds_the_segment(
    search: SegmentSearch, question: str, best: int
) -> None:
    await add_pages(search)
    hits = await search.search("t", question)
    assert (hits[0].index if hits else -1) == best


async def test_a_hit_tells_where_the_words_stand(search: SegmentSearch) -> None:
    entry = SegmentEntry(7, "Before.\nThe <b>total</b>\x00 amount\x02 is 5.", title="Page\tseven")
    await search.add("t", "proj", "doc", "wf", [entry])
    (hit,) = await search.search("t", "total amount")
    assert hit.snippet == "Before. The <b>total</b> amount is 5."
    assert [text for text, found in hit.parts() if found] == ["total", "amount"]
    assert "".join(text for text, _ in hit.parts()) == hit.snippet
    found = (hit.document, hit.project, hit.workflow, hit.index, hit.title)
    assert found == ("doc", "proj", "wf", 7, "Page seven")
    assert hit.score > 0
    assert SegmentHit.from_dict(hit.as_dict()) == hit


async def test_more_words_and_rarer_ones_come_first(search: SegmentSearch) -> None:
    texts = ["red", "red green", "red blue", "red red", "blue green red"]
    await search.add("t", "p", "d", "w", [SegmentEntry(n, t) for n, t in enumerate(texts, 1)])
    assert indices(await search.search("t", "blue green red"))[0] == 5
    assert indices(await search.search("t", "green blue"))[0] == 5
    assert set(indices(await search.search("t", "green"))) == {2, 5}


async def test_a_word_of_the_title_counts_more(search: SegmentSearch) -> None:
    entries = [SegmentEntry(1, "about leases"), SegmentEntry(2, "about other things", "Leases")]
    await search.add("t", "p", "d", "w", [*entries, SegmentEntry(3, "no"), SegmentEntry(4, "no")])
    assert indices(await search.search("t", "leases")) == [2, 1]


async def test_what_a_phrase_or_a_minus_says_must_hold(search: SegmentSearch) -> None:
    await add_pages(search)
    assert indices(await search.search("t", '"days net" bearings')) == [1]
    assert await search.search("t", '"net days"') == []
    assert indices(await search.search("t", 'eur -"value added"')) == [2]
    assert await search.search("t", "-seals") == []
    # The minus of a number is not an exclusion.
    assert indices(await search.search("t", "seals -2"))[0] == 2


@pytest.mark.parametrize(
    "text",
    [
        *('"', '""', "*", "-", "+", "NEAR(", "a AND", "NOT", "total OR", "body:total", "^total"),
        *("{body} : x", "(total", "'; DROP TABLE words; --", "\x00", "\ud800", "\x1f"),
        *("ⅷ", "\u0301", "-\u0301"),
    ],
)
async def test_no_text_is_an_error(search: SegmentSearch, text: str) -> None:
    await add_pages(search)
    for hit in await search.search("t", text):
        assert hit.snippet


async def test_only_the_tenant_the_project_and_the_document_are_searched(
    search: SegmentSearch,
) -> None:
    for tenant, project, document in (
        ("t", "p", "one"),
        ("t", "p", "two"),
        ("t", "q", "three"),
        ("u", "p", "one"),
    ):
        text = f"word {tenant} {project} {document}"
        await search.add(tenant, project, document, "w", [SegmentEntry(1, text)])

    async def found(tenant: str, **scope: str) -> set[str]:
        return {hit.document for hit in await search.search(tenant, "word", **scope)}

    assert await found("t") == {"one", "two", "three"}
    assert await found("t", project="p") == {"one", "two"}
    assert await found("t", document="three") == {"three"}
    assert await found("t", project="p", document="three") == set()
    assert await found("u") == {"one"}
    assert await found("v") == set()
    (hit,) = await search.search("u", "word")
    assert hit.snippet == "word u p one"


async def test_an_entry_is_replaced(search: SegmentSearch) -> None:
    for text in ("old words", "new words"):
        await search.add("t", "p", "d", "w", [SegmentEntry(1, text), SegmentEntry(2, "other")])
    assert [hit.snippet for hit in await search.search("t", "words")] == ["new words"]
    assert await search.search("t", "old") == []


async def test_a_newer_workflow_replaces_the_earlier_one(search: SegmentSearch) -> None:
    await search.add("t", "p", "d", "first", [SegmentEntry(1, "word one"), SegmentEntry(2, "word")])
    await search.add("t", "p", "d", "second", [SegmentEntry(1, "word two")])
    await search.add("t", "p", "d", "second", [SegmentEntry(2, "word three")])
    # A worker of the first one was late.
    await search.add("t", "p", "d", "first", [SegmentEntry(3, "word late")])
    found = {(hit.workflow, hit.index) for hit in await search.search("t", "word")}
    assert found == {("second", 1), ("second", 2)}


async def test_a_document_and_a_tenant_are_removed(search: SegmentSearch) -> None:
    await search.remove("t", "doc")
    await search.clear("t")
    await add_pages(search, "one")
    await add_pages(search, "two")
    await add_pages(search, "one", tenant="u")
    await search.remove("t", "one")
    assert {hit.document for hit in await search.search("t", "eur")} == {"two"}
    await search.clear("t")
    assert await search.search("t", "eur") == []
    assert {hit.document for hit in await search.search("u", "eur")} == {"one"}
    # Not a late worker: the document was processed again.
    await add_pages(search, "one")
    assert {hit.document for hit in await search.search("t", "eur")} == {"one"}


async def test_limits(search: SegmentSearch) -> None:
    entries = [SegmentEntry(number, "word") for number in range(1, 1001)]
    await search.add("t", "p", "d", "w", entries)
    assert len(await search.search("t", "word")) == 20
    assert len(await search.search("t", "word", limit=100)) == 100
    for limit in (0, 101, True, "5"):
        with pytest.raises(InvalidQuery, match="from 1 to 100"):
            await search.search("t", "word", limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidQuery, match="at most 1,000 characters"):
        await search.search("t", "x" * 1001)
    with pytest.raises(InvalidQuery, match="must be text"):
        await search.search("t", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="at most 1,000 entries"):
        await search.add("t", "p", "d", "w", [*entries, SegmentEntry(1001, "word")])
    for entry in (SegmentEntry(0, "x"), SegmentEntry(10**7, "x"), SegmentEntry(1, 5), "text"):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await search.add("t", "p", "d", "w", [entry])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["\ud800", "", "a/b", "x" * 200, "a\x00"])
async def test_a_name_that_cannot_be_one_is_refused(search: SegmentSearch, name: str) -> None:
    for scope in ({"project": name}, {"document": name}):
        with pytest.raises(InvalidName):
            await search.search("t", "word", **scope)
    with pytest.raises(InvalidName):
        await search.search(name, "word")
    with pytest.raises(InvalidName):
        await search.add("t", "p", "d", name, [SegmentEntry(1, "word")])


async def test_a_long_word_has_a_short_snippet(search: SegmentSearch) -> None:
    texts = ["start " + "x" * 150_000, "y" * 1000 + " needle " + "z" * 1000]
    await search.add("t", "p", "d", "w", [SegmentEntry(n, t) for n, t in enumerate(texts, 1)])
    for question, word in (("start", "start"), ("needle", "needle")):
        (hit,) = await search.search("t", question)
        assert len(hit.snippet) <= 300
        assert [text for text, found in hit.parts() if found] == [word]
    (hit,) = await search.search("t", "x" * 900 + "*")
    assert len(hit.snippet) <= 300
    # What follows the 200,000th character is not found.
    await search.add("t", "p", "d", "w", [SegmentEntry(1, "a " * 100_000 + "needle")])
    assert indices(await search.search("t", "needle")) == [2]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def index_mode(stored: Path) -> int | None:
    """Return the permissions of the index beside a store; None if there is none."""
    index = stored.with_name(f"{stored.name}.search")
    return index.stat().st_mode & 0o777 if index.exists() else None


async def test_a_store_has_the_search_beside_it(stored: Path) -> None:
    async with Holdfast(f"sqlite:///{stored}") as hf:
        search = required_search(hf.documents.search)
        assert await search.search("t", "total") == []
        assert index_mode(stored) is None
        await add_pages(search)
    assert index_mode(stored) == 0o600
    async with Holdfast(f"sqlite:///{stored}") as hf:
        assert indices(await required_search(hf.documents.search).search("t", "total")) == [3]
    async with Holdfast(f"sqlite:///{stored}", search=None) as hf:
        assert hf.documents.search is None


async def test_a_store_in_memory_has_a_search_of_its_own() -> None:
    async with Holdfast("sqlite://:memory:") as one, Holdfast("sqlite://:memory:") as other:
        await add_pages(required_search(one.documents.search))
        assert indices(await required_search(one.documents.search).search("t", "total")) == [3]
        assert await required_search(other.documents.search).search("t", "total") == []


def test_a_table_of_dynamodb_has_none_unless_it_is_given() -> None:
    assert chosen_search("default", "dynamodb://runs") is None
    with pytest.raises(SearchNotConfigured, match="HOLDFAST_SEARCH"):
        required_search(None)
    given = SqliteSegmentSearch(":memory:")
    assert chosen_search(given, "dynamodb://runs") is given
    with pytest.raises(InvalidRequest, match="search must be a SegmentSearch"):
        chosen_search("sqlite:///x", "dynamodb://runs")  # type: ignore[arg-type]
