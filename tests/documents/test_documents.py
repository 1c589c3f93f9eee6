"""Documents: added, listed, kept as long as their project says, with their blobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.documents.documents import Documents
from holdfast.errors import (
    DocumentNotFound,
    DocumentWorkflowNotFound,
    IdTaken,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    ProjectNotFound,
)
from holdfast.model.document import Document, DocumentPlace, DocumentWorkflow
from holdfast.model.durations import days
from holdfast.storage import Key, backup_store, restore_store
from tests.documents.support import FILE, added, begun
from tests.engine.support import House, StepClock, blob_keys, store_of

DAY_SECONDS = 24 * 3600


async def test_a_document_has_the_fields_of_the_source(either: House) -> None:
    hf = either.open()
    made = await added(hf.documents)
    assert (made.project, made.kind, made.file_type) == ("p", "DOC", "application/pdf")
    assert (made.workflow, made.expires_at, made.file_bytes) == (None, None, None)
    assert await hf.documents.get("d") == made
    item = await store_of(hf).table.get(Key("PROJ#default#p", "DOC#d"))
    assert item is not None
    assert item["data"] == FILE
    assert Document.from_dict(made.as_dict()) == made
    workflow = await hf.documents.begin("d")
    assert DocumentWorkflow.from_dict(workflow.as_dict()) == workflow


async def test_adding_it_again_is_the_same_document_unless_the_values_differ(
    either: House,
) -> None:
    documents = either.open().documents
    made = await added(documents)
    assert await documents.add("p", id="d", **FILE) == made
    await documents.projects.create("Others", id="q")
    for values in (
        {**FILE, "file_name": "other.pdf"},
        {**FILE, "web": True},
        {**FILE, "file_bytes": 5},
    ):
        with pytest.raises(IdTaken):
            await documents.add("p", id="d", **values)
    with pytest.raises(IdTaken):
        await documents.add("q", id="d", **FILE)


async def test_writers_that_add_the_same_document_at_once_add_it_once(either: House) -> None:
    opened = [either.open() for _ in range(3)]
    await opened[0].documents.projects.create("Contracts", id="p")
    made = await asyncio.gather(
        *(hf.documents.add("p", id="d", **FILE) for hf in opened for _ in range(2))
    )
    assert len({document.as_dict()["created_at"] for document in made}) == 1
    assert len((await opened[0].documents.list("p")).documents) == 1


async def test_documents_are_listed_page_by_page(either: House) -> None:
    documents = either.open().documents
    await documents.projects.create("Contracts", id="p")
    made: list[str] = []
    for _ in range(12):
        either.clock.advance(1)
        made.append((await documents.add("p", **FILE)).id)
    await documents.begin(made[0], id="w")
    found: list[Document] = []
    cursor: str | None = None
    while True:
        page = await documents.list("p", limit=5, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            break
    assert [each.id for each in found] == made  # generated ids have the order of time
    assert [each.workflow for each in found] == ["w", *[None] * 11]
    with pytest.raises(InvalidQuery):
        await documents.list("p", cursor="x")


async def test_tenants_do_not_see_each_other(either: House) -> None:
    documents = either.open().documents
    await begun(documents, segments=1)
    for call in (
        documents.get("d", tenant="acme"),
        documents.delete("d", tenant="acme"),
        documents.begin("d", tenant="acme"),
        documents.blob_prefix("d", tenant="acme"),
    ):
        with pytest.raises(DocumentNotFound):
            await call
    with pytest.raises(ProjectNotFound):
        await documents.list("p", tenant="acme")
    with pytest.raises(ProjectNotFound):
        await documents.add("p", tenant="acme", **FILE)
    place = documents.place("e", tenant="acme")
    with pytest.raises(InvalidRequest, match="tenant 'default'"):
        await documents.add("p", place=place, **FILE)


# --- blobs ----------------------------------------------------------------------------------------


async def test_blobs_may_be_stored_before_the_document_is_added(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await documents.projects.create("Contracts", id="p")
    place = documents.place()
    await store_of(hf).blobs.put(b"%PDF", key=f"{place.prefix}file/part-1")
    made = await documents.add("p", place=place, **FILE)
    assert made.id == place.id
    assert await documents.blob_prefix(made.id) == place.prefix
    assert await documents.add("p", place=place, **FILE) == made
    await documents.delete(made.id)
    assert await blob_keys(hf) == []


@pytest.mark.parametrize(
    "place",
    [
        "p",
        DocumentPlace("d", "g", "documents/default/d/g/"),
        DocumentPlace("d", "01890af2-0000-7000-8000-000000000000", "keep-10d/default/d/g/"),
        DocumentPlace(
            "d",
            "01890af2-0000-7000-8000-000000000000",
            "documents/default/e/01890af2-0000-7000-8000-000000000000/",
        ),
    ],
)
async def test_a_forged_place_is_refused(hf: Holdfast, place: Any) -> None:
    await hf.documents.projects.create("Contracts", id="p")
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.add("p", place=place, **FILE)
    assert caught.value.field == "place"


async def sweep(hf: Holdfast) -> tuple[int, int]:
    """Return how many owners of blobs were kept, and how many blobs were deleted."""
    last = [progress async for progress in hf.sweep_blobs(older_than=days(1))][-1]
    return last.kept, last.deleted


async def test_a_sweep_deletes_the_blobs_of_documents_that_are_gone(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    kept = await added(documents, id="kept")
    prefix = await documents.blob_prefix(kept.id)
    await store_of(hf).blobs.put(b"kept", key=f"{prefix}file/1")
    never = documents.place()
    await store_of(hf).blobs.put(b"never added", key=f"{never.prefix}file/1")
    await documents.add("p", id="gone", **FILE)
    gone = await documents.blob_prefix("gone")
    await documents.delete("gone")
    await store_of(hf).blobs.put(b"late", key=f"{gone}file/1")  # a pipeline that was still at work
    assert await sweep(hf) == (0, 0)  # all of them are young
    either.clock.advance(2 * DAY_SECONDS)
    assert await sweep(hf) == (1, 2)
    assert await blob_keys(hf) == [f"{prefix}file/1"]
    # Added again, it has another prefix.
    await documents.delete("kept")
    await documents.add("p", id="kept", **FILE)
    assert await documents.blob_prefix("kept") != prefix


async def test_a_backup_has_the_documents_and_their_blobs(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    async with Holdfast(url) as hf:
        await begun(hf.documents, segments=1)
        await hf.documents.put_segment("w", 1, image_analysis=[{"text": "x" * 20_000}])
        before = await hf.documents.workflow("w")
    await asyncio.to_thread(backup_store, url, str(tmp_path / "backup"))
    await asyncio.to_thread(restore_store, str(tmp_path / "backup"), copy)
    async with Holdfast(copy) as hf:
        assert await hf.documents.workflow("w") == before
        assert (await hf.documents.segment("w", 1)).image_analysis == [{"text": "x" * 20_000}]
        assert (await hf.documents.counts())["in_progress"] == 1


# --- lifetimes ------------------------------------------------------------------------------------


async def store_expiring(documents: Documents) -> None:
    await documents.projects.create("Contracts", id="p", retention_days=10)
    await documents.add("p", id="d", **FILE)
    await documents.begin("d", id="w")
    await documents.set_status("w", "in_progress", total_segments=2)
    await documents.put_segment("w", 1, image_analysis=["small"])


async def test_documents_expire_as_their_project_says(house: House, clock: StepClock) -> None:
    hf = house.open()
    documents = hf.documents
    await store_expiring(documents)
    document = await documents.get("d")
    assert document.expires_at is not None
    lifetime = document.expires_at - document.created_at
    assert timedelta(days=10) < lifetime <= timedelta(days=11)
    clock.advance(lifetime.total_seconds() - 1)
    assert (await documents.segment("w", 1)).image_analysis == ["small"]
    assert (await documents.counts())["in_progress"] == 1
    clock.advance(1)
    for call in (documents.get("d"), documents.begin("d"), documents.delete("d")):
        with pytest.raises(DocumentNotFound):
            await call
    for late in (
        documents.workflow("w"),
        documents.steps("w"),
        documents.segment("w", 1),
        documents.set_status("w", "completed"),
    ):
        with pytest.raises(DocumentWorkflowNotFound):
            await late
    assert (await documents.list("p")).documents == []
    assert (await documents.workflows(project="p")).workflows == []
    assert (await documents.in_progress()).workflows == []
    assert (await documents.counts())["in_progress"] == 0
    # The store deletes them later; the id can be used at once.
    await documents.add("p", id="d", **FILE)
    assert (await documents.workflows(document="d")).workflows == []
    await documents.begin("d", id="w")
    assert (await documents.counts())["pending"] == 1


async def test_every_item_of_an_expiring_document_has_the_same_ttl(either: House) -> None:
    hf = either.open()
    await store_expiring(hf.documents)
    table = store_of(hf).table
    keys = [
        Key("PROJ#default#p", "DOC#d"),
        Key("DOC#default#d", "META"),
        Key("DOC#default#d", "WF#w"),
        Key("PROJ#default#p", "WF#w"),
        Key("WF#default#w", "STEP"),
        Key("WF#default#w", "SEG#0001"),
    ]
    items = [await table.get(key) for key in keys]
    ends = {(item or {}).get("expires_ms") for item in items}
    assert len(ends) == 1
    (expires_ms,) = ends
    assert expires_ms is not None
    for item in items:
        assert item is not None
        assert item["ttl"] * 1000 == expires_ms + 2 * DAY_SECONDS * 1000
    project = await table.get(Key("PROJ#default#p", "META"))
    assert project is not None
    assert "ttl" not in project


async def test_connections_end_by_themselves(either: House) -> None:
    documents = either.open().documents
    await begun(documents)
    made = await documents.connect("w", "c1", data={"channel": "a", "n": 1.5, "empty": ""})
    await documents.connect("w", "c2", ttl=60)
    assert await documents.connections("w") == [made, *(await documents.connections("w"))[1:]]
    either.clock.advance(60)
    assert [each.id for each in await documents.connections("w")] == ["c1"]
    await documents.disconnect("w", "c1")
    await documents.disconnect("w", "c1")
    assert await documents.connections("w") == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"connection_id": "a#b"}, "connection_id"),
        ({"connection_id": ""}, "connection_id"),
        ({"connection_id": "c", "data": ["x"]}, "data"),
        ({"connection_id": "c", "data": {"x": "y" * 5_000}}, "data"),
        ({"connection_id": "c", "ttl": 0}, "ttl"),
        ({"connection_id": "c", "ttl": days(8)}, "ttl"),
    ],
)
async def test_wrong_connections_are_refused(
    hf: Holdfast, values: dict[str, Any], field: str
) -> None:
    await begun(hf.documents)
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.connect("w", **values)
    assert caught.value.field == field


# --- hostile input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "a#b", "a/b", "..", ".a", " a", "a" * 129, "é" * 100, None, 7]
)
async def test_a_wrong_name_is_refused_everywhere(hf: Holdfast, name: Any) -> None:
    documents = hf.documents
    await begun(documents, segments=1)
    calls: list[Any] = [
        documents.get(name),
        documents.delete(name),
        documents.begin(name),
        documents.blob_prefix(name),
        documents.add(name, **FILE),
        documents.list(name),
        documents.workflow(name),
        documents.set_status(name, "failed"),
        documents.update_workflow(name),
        documents.begin_again(name),
        documents.steps(name),
        documents.start_step(name, "transcribe"),
        documents.end_step(name, "transcribe"),
        documents.put_segment(name, 1),
        documents.segment(name, 1),
        documents.segments(name),
        documents.connect(name, "c"),
        documents.disconnect(name, "c"),
        documents.connections(name),
        documents.projects.get(name),
    ]
    if name is not None:
        calls += [
            documents.begin("d", id=name),
            documents.add("p", id=name, **FILE),
            documents.workflows(document=name),
            documents.get("d", tenant=name),
        ]
    for call in calls:
        with pytest.raises(InvalidName):
            await call


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({**FILE, "file_uri": ""}, "file_uri"),
        ({**FILE, "file_uri": "x" * 1_000_000}, "file_uri"),
        ({**FILE, "file_name": ""}, "file_name"),
        ({**FILE, "file_name": "x" * 1_000_000}, "file_name"),
        ({**FILE, "file_name": None}, "file_name"),
        ({**FILE, "file_type": "\udfff"}, "file_type"),
        ({**FILE, "file_bytes": -1}, "file_bytes"),
        ({**FILE, "file_bytes": 1.5}, "file_bytes"),
    ],
)
async def test_wrong_files_are_refused(hf: Holdfast, values: dict[str, Any], field: str) -> None:
    await hf.documents.projects.create("Contracts", id="p")
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.add("p", **values)
    assert caught.value.field == field
    assert (await hf.documents.list("p")).documents == []


async def test_names_of_files_may_be_anything_that_people_write(either: House) -> None:
    documents = either.open().documents
    await documents.projects.create("Ärger / 日本 #1", id="日本 1")
    made = await documents.add(
        "日本 1", id="ü x", **{**FILE, "file_name": "a#b/../\\%~ '\";--<script>\n.pdf"}
    )
    assert await documents.get("ü x") == made
    await documents.begin("ü x", id="wörk flow")
    await documents.set_status("wörk flow", "in_progress", total_segments=1)
    await documents.put_segment("wörk flow", 1, image_analysis=[{"text": "x" * 20_000}])
    assert [each.id for each in await documents.in_progress()] == ["wörk flow"]
    assert len((await documents.segment("wörk flow", 1)).image_analysis) == 1
    await documents.delete("ü x")
