"""Segments: one write of one unit each, in order, and never a large item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import (
    DocumentWorkflowNotFound,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    SegmentNotFound,
)
from holdfast.records.document_keys import segment_key
from holdfast.storage.item import item_bytes
from tests.documents.support import begun
from tests.engine.support import House, blob_keys, store_of, store_without_blobs, units_of

ITEM_BYTES_MAX = 9 * 1024
ANALYSIS = [{"model": "haiku", "text": "A warranty card, filled in by hand.", "confidence": 0.875}]


async def stored_item(hf: Holdfast, index: int) -> dict[str, Any]:
    item = await store_of(hf).table.get(segment_key("default", "w", index))
    assert item is not None
    return item


async def test_a_segment_has_the_fields_of_the_source(either: House) -> None:
    hf = either.open()
    await begun(hf.documents, segments=3)
    put = await hf.documents.put_segment(
        "w", 2, s3_key="documents/x/2.json", image_uri="blob:2.png", image_analysis=ANALYSIS
    )
    assert await hf.documents.segment("w", 2) == put
    item = await stored_item(hf, 2)
    assert (item["PK"], item["SK"]) == ("WF#default#w", "SEG#0002")
    data = item["data"]
    assert (data["segment_index"], data["s3_key"]) == (2, "documents/x/2.json")
    assert data["image_uri"] == "blob:2.png"
    assert data["image_analysis"][0]["text"] == ANALYSIS[0]["text"]
    failed = await hf.documents.put_segment("w", 3, status="failed", error="not an image")
    assert (failed.status, failed.error, failed.image_analysis) == ("failed", "not an image", [])


async def test_a_segment_of_a_kilobyte_costs_one_unit_and_nothing_is_read(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await begun(documents, segments=100)
    text = "x" * 500
    await documents.put_segment("w", 1, s3_key="documents/x/1.json")  # reads what it may write
    before, reads = units_of(hf, "segment"), units_of(hf, "document").reads
    for index in range(2, 52):
        await documents.put_segment(
            "w", index, s3_key=f"documents/x/{index}.json", image_analysis=[{"text": text}]
        )
        assert item_bytes(await stored_item(hf, index)) <= 1024
    after = units_of(hf, "segment")
    assert after.writes - before.writes == 50
    assert after.reads == before.reads
    assert units_of(hf, "document").reads == reads


@pytest.mark.parametrize("size", [10, 900, 5_000, 8_000, 8_200, 9_000, 20_000, 2_000_000])
async def test_no_item_is_over_nine_kilobytes(hf: Holdfast, size: int) -> None:
    await begun(hf.documents, segments=1)
    analysis = [{"text": "é" * (size // 2)}, {"more": [1, 2.5, None, True, ""]}]
    put = await hf.documents.put_segment(
        "w",
        1,
        s3_key="k" * 2_048,
        image_uri="u" * 2_048,
        image_analysis=analysis,
        error="e" * 9_999,
    )
    assert put.image_analysis == analysis
    item = await stored_item(hf, 1)
    assert item_bytes(item) <= ITEM_BYTES_MAX
    assert (await hf.documents.segment("w", 1)).image_analysis == analysis
    (listed,) = (await hf.documents.segments("w")).segments
    if size >= 8_000:
        assert listed.image_analysis == []
        assert listed.preview is not None
        assert listed.preview.startswith('[{"text": "é')
        (key,) = await blob_keys(hf)
        assert key.startswith(await hf.documents.blob_prefix("d"))
    if size <= 900:
        assert listed.image_analysis == analysis
        assert await blob_keys(hf) == []


@pytest.mark.parametrize(
    "analysis",
    [
        [],
        [""],
        [{"": ""}],
        [1e300, -1e-300, 2**63 - 1, 0.1, 1.0, -0.0],
        [{"a": {"b": [[[[[[[[]]]]]]]]}}],
        ["\x00\x01", "日本語", "\U0001f600"],
        [None, True, False],
        [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["deep"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
    ],
)
async def test_values_of_json_come_back(either: House, analysis: list[Any]) -> None:
    hf = either.open()
    await begun(hf.documents, segments=1)
    await hf.documents.put_segment("w", 1, image_analysis=analysis)
    assert (await hf.documents.segment("w", 1)).image_analysis == analysis


async def test_segments_are_listed_in_order_also_beyond_9999(either: House) -> None:
    documents = either.open().documents
    await begun(documents, segments=1_000_001)
    indices = [1, 2, 9_998, 9_999, 10_000, 10_001, 99_999, 100_000, 1_000_000, 1_000_001]
    for index in reversed(indices):
        await documents.put_segment("w", index)
    found: list[int] = []
    after = 0
    while True:
        page = await documents.segments("w", after=after, limit=3)
        found += [segment.index for segment in page]
        if page.cursor is None:
            break
        after = page.cursor
    assert found == indices
    assert [each.index for each in await documents.segments("w", after=10_000)] == indices[5:]


async def test_a_later_write_replaces_an_earlier_one(either: House) -> None:
    documents = either.open().documents
    await begun(documents, segments=1)
    await documents.put_segment("w", 1, image_analysis=[{"text": "x" * 20_000}])
    await documents.put_segment("w", 1, image_analysis=[{"text": "short"}])
    assert (await documents.segment("w", 1)).image_analysis == [{"text": "short"}]
    await asyncio.gather(*(documents.put_segment("w", 1, s3_key=f"k{n}") for n in range(5)))
    assert (await documents.segment("w", 1)).image_analysis == []


async def test_the_number_of_segments_has_to_be_known(hf: Holdfast) -> None:
    await begun(hf.documents)
    with pytest.raises(InvalidRequest, match="total_segments"):
        await hf.documents.put_segment("w", 1)
    await hf.documents.update_workflow("w", total_segments=1)
    await hf.documents.put_segment("w", 1)
    with pytest.raises(InvalidRequest, match="at most"):
        await hf.documents.put_segment("w", 2)
    await hf.documents.update_workflow("w", total_segments=2)
    await hf.documents.put_segment("w", 2)


@pytest.mark.parametrize("index", [0, -1, 10**7, 10**30, True, 1.0, "1", None])
async def test_a_wrong_index_is_refused(hf: Holdfast, index: Any) -> None:
    await begun(hf.documents, segments=5)
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.put_segment("w", index)
    assert caught.value.field == "index"
    with pytest.raises(InvalidRequest):
        await hf.documents.segment("w", index)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"image_analysis": "text"}, "image_analysis"),
        ({"image_analysis": {"a": 1}}, "image_analysis"),
        ({"image_analysis": [object()]}, "image_analysis"),
        ({"image_analysis": [{1j: 1}]}, "image_analysis"),
        ({"s3_key": ""}, "s3_key"),
        ({"s3_key": "x" * 1_000_000}, "s3_key"),
        ({"image_uri": 7}, "image_uri"),
        ({"image_uri": "\ud800"}, "image_uri"),
        ({"status": "done"}, "status"),
        ({"error": 7}, "error"),
    ],
)
async def test_wrong_values_are_refused(hf: Holdfast, values: dict[str, Any], field: str) -> None:
    await begun(hf.documents, segments=1)
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.put_segment("w", 1, **values)
    assert caught.value.field == field
    with pytest.raises(SegmentNotFound):
        await hf.documents.segment("w", 1)


async def test_wrong_pages_are_refused(hf: Holdfast) -> None:
    await begun(hf.documents, segments=1)
    with pytest.raises(InvalidRequest):
        await hf.documents.segments("w", after=-1)
    with pytest.raises(InvalidQuery):
        await hf.documents.segments("w", limit=0)
    for name in ("a#b", "", "x" * 1_000_000, 7):
        with pytest.raises(InvalidName):
            await hf.documents.segments(name)  # type: ignore[arg-type]


async def test_a_missing_segment_and_a_missing_workflow_differ(hf: Holdfast) -> None:
    await begun(hf.documents, segments=5)
    with pytest.raises(SegmentNotFound, match="no segment 4, or not yet"):
        await hf.documents.segment("w", 4)
    for call in (
        hf.documents.segment("v", 1),
        hf.documents.segments("v"),
        hf.documents.put_segment("v", 1),
        hf.documents.segment("w", 1, tenant="acme"),
        hf.documents.put_segment("w", 1, tenant="acme"),
    ):
        with pytest.raises(DocumentWorkflowNotFound):
            await call


async def test_a_large_analysis_without_a_bucket_is_refused(clock: Any) -> None:
    store = store_without_blobs(clock)
    async with Holdfast("sqlite://:memory:", store=store, clock=clock) as hf:
        await begun(hf.documents, segments=1)
        await hf.documents.put_segment("w", 1, image_analysis=["small"])
        with pytest.raises(InvalidRequest, match="bucket"):
            await hf.documents.put_segment("w", 1, image_analysis=["x" * 20_000])
