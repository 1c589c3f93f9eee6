"""The search index is built again from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from holdfast import Holdfast
from holdfast.documents import reindexing
from holdfast.documents.reindexing import ReindexProgress, reindex
from holdfast.documents.search import required_search
from holdfast.documents.segment_text import segment_entry
from holdfast.errors import DocumentNotFound, InvalidRequest, SearchNotConfigured
from holdfast.model.document import DocumentWorkflow
from holdfast.model.segment_search import SegmentEntry
from tests.hostile import documents as hostile_documents


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    async with Holdfast("sqlite://:memory:") as opened:
        await opened.documents.projects.create("Contracts", id="contracts")
        yield opened


async def add_document(hf: Holdfast, id: str, **given: Any) -> DocumentWorkflow:
    await hf.documents.add(
        "contracts", id=id, file_uri="s3://in/a.pdf", file_name="a.pdf", file_type="text/plain"
    )
    return await process(hf, id, **given)


async def process(hf: Holdfast, id: str, *, word: str, segments: int = 1) -> DocumentWorkflow:
    documents = hf.documents
    workflow = await documents.begin(id)
    await documents.set_status(workflow.id, "in_progress", total_segments=max(segments, 1))
    for index in range(1, segments + 1):
        uri = await documents.files.put_blob(
            msgspec.json.encode({"title": "", "text": f"{word} {index}"}),
            name=f"{workflow.id}/{index}.json",
            document=id,
        )
        await documents.put_segment(workflow.id, index, s3_key=uri)
    return workflow


async def built(hf: Holdfast, **given: Any) -> ReindexProgress:
    return [progress async for progress in reindex(hf.documents, tenant="default", **given)][-1]


async def found(hf: Holdfast, word: str) -> list[tuple[str, str, int]]:
    hits = await required_search(hf.documents.search).search("default", word, limit=100)
    return sorted((hit.document, hit.workflow, hit.index) for hit in hits)


async def test_what_the_store_has_is_found_and_nothing_else(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindexing, "_PAGE", 2)
    for number in range(3):
        await hf.documents.projects.create("Other", id=f"other-{number}")
    workflows = [await add_document(hf, f"d{n}", word="word", segments=n) for n in range(5)]
    gone = [SegmentEntry(1, "word")]
    await required_search(hf.documents.search).add("default", "contracts", "gone", "w", gone)
    await required_search(hf.documents.search).add("other", "contracts", "d1", "w", gone)
    assert await built(hf) == ReindexProgress(documents=5, segments=10)
    assert await found(hf, "word") == [
        (f"d{n}", workflows[n].id, index) for n in range(5) for index in range(1, n + 1)
    ]
    assert len(await required_search(hf.documents.search).search("other", "word")) == 1


async def test_the_newest_workflow_that_has_segments_is_indexed(hf: Holdfast) -> None:
    first = await add_document(hf, "doc", word="first")
    await process(hf, "doc", word="second", segments=0)
    await built(hf)
    assert await found(hf, "first") == [("doc", first.id, 1)]
    third = await process(hf, "doc", word="third")
    assert await built(hf, document="doc") == ReindexProgress(documents=1, segments=1)
    assert await found(hf, "first third") == [("doc", third.id, 1)]


async def test_a_workflow_that_is_begun_meanwhile_is_not_replaced(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_document(hf, "doc", word="first")
    read_blob = hf.documents.files.read_blob

    async def read_slowly(uri: str, *, tenant: str | None = None) -> bytes:
        content = await read_blob(uri, tenant=tenant)
        if not begun:
            begun.append(await hf.documents.begin("doc"))
            place = ("default", "contracts", "doc", begun[0].id)
            await required_search(hf.documents.search).add(*place, [SegmentEntry(1, "second")])
        return content

    begun: list[DocumentWorkflow] = []
    monkeypatch.setattr(hf.documents.files, "read_blob", read_slowly)
    await built(hf)
    assert await found(hf, "first second") == [("doc", begun[0].id, 1)]


async def test_a_search_and_the_document_must_exist(hf: Holdfast) -> None:
    with pytest.raises(DocumentNotFound):
        await built(hf, document="nothing")
    async with Holdfast("sqlite://:memory:", search=None) as without:
        with pytest.raises(SearchNotConfigured):
            await built(without)


def test_titles_texts_and_tables_are_searched() -> None:
    content = {
        "title": "Prices",
        "text": "All of them.",
        "tables": [{"rows": [["bearing", 12.5], ["seal", None, True, {"x": 1}]]}, "no table"],
    }
    entry = segment_entry(3, msgspec.json.encode(content))
    assert (entry.index, entry.title) == (3, "Prices")
    assert entry.text.split("\n") == ["All of them.", "bearing 12.5", "seal True"]


@settings(deadline=None)
@given(content=hostile_documents())
def test_any_content_is_an_entry_or_an_invalid_request(content: bytes) -> None:
    try:
        entry = segment_entry(1, content)
    except InvalidRequest:
        return
    assert isinstance(entry.text + entry.title, str)
