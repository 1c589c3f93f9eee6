"""Deletion: everything goes, from wherever a process died, and nothing comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.documents.documents import Documents
from holdfast.errors import (
    DocumentNotFound,
    DocumentWorkflowNotFound,
    IdTaken,
    ProjectNotFound,
    RunNotFound,
)
from holdfast.records.document_keys import counts_partition, segment_key, steps_key
from holdfast.storage import Put
from tests.documents.support import FILE, Killed, Town, added, begun
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    House,
    StepClock,
    blob_keys,
    incompressible,
    store_of,
)

FENCE_SECONDS = 3 * 24 * 3600
SETTINGS_AND_COUNTS = {"SETTINGS", "COUNTS#default"}


async def filled(documents: Documents, *, document: str = "d") -> None:
    """Store a document with two workflows, segments, blobs and a connection."""
    await added(documents, id=document)
    for number in range(2):
        workflow = f"{document}-w{number}"
        await documents.begin(document, id=workflow)
        await documents.set_status(workflow, "in_progress", total_segments=3)
        await documents.start_step(workflow, "segment_prep")
        await documents.put_segment(workflow, 1, image_analysis=[{"text": "x" * 20_000}])
        await documents.put_segment(workflow, 3, image_analysis=["small"])
        await documents.connect(workflow, "c1")
    await documents.set_status(f"{document}-w1", "completed")


async def is_gone(documents: Documents, document: str = "d") -> None:
    """Check that nothing shows the document any more."""
    with pytest.raises(DocumentNotFound):
        await documents.get(document)
    with pytest.raises(DocumentNotFound):
        await documents.begin(document)
    with pytest.raises(DocumentNotFound):
        await documents.workflows(document=document)
    for number in range(2):
        workflow = f"{document}-w{number}"
        for call in (
            documents.workflow(workflow),
            documents.steps(workflow),
            documents.segments(workflow),
            documents.segment(workflow, 1),
            documents.set_status(workflow, "failed"),
            documents.begin_again(workflow),
            documents.put_segment(workflow, 1),
            documents.start_step(workflow, "transcribe"),
            documents.connect(workflow, "c2"),
        ):
            with pytest.raises(DocumentWorkflowNotFound):
                await call
        assert await documents.connections(workflow) == []
    assert sum((await documents.counts()).values()) == 0
    assert (await documents.in_progress()).workflows == []
    assert (await documents.in_progress(status="completed")).workflows == []


async def test_nothing_of_a_document_is_left(either: House) -> None:
    hf = either.open()
    await filled(hf.documents)
    assert len(await blob_keys(hf)) == 2
    await hf.documents.delete("d")
    await is_gone(hf.documents)
    assert await blob_keys(hf) == []
    assert (await hf.documents.list("p")).documents == []
    assert (await hf.documents.workflows(project="p")).workflows == []
    with pytest.raises(DocumentNotFound):
        await hf.documents.delete("d")
    table = store_of(hf).table
    for index in (1, 2, 3):
        item = await table.get(segment_key("default", "d-w0", index))
        assert item is not None
        assert set(item) <= {"PK", "SK", "deleting_ms", "expires_ms", "ttl"}


async def test_other_documents_stay(either: House) -> None:
    hf = either.open()
    await filled(hf.documents)
    await filled(hf.documents, document="e")
    await hf.documents.delete("d")
    assert [each.id for each in await hf.documents.list("p")] == ["e"]
    assert len((await hf.documents.segments("e-w0")).segments) == 2
    assert (await hf.documents.segment("e-w0", 1)).image_analysis[0]["text"] == "x" * 20_000
    assert [each.id for each in await hf.documents.workflows(project="p")] == ["e-w0", "e-w1"]
    assert await hf.documents.counts() == {
        "pending": 0,
        "in_progress": 1,
        "completed": 1,
        "failed": 0,
    }


async def test_a_project_is_deleted_with_its_documents(either: House) -> None:
    hf = either.open()
    for document in ("d", "e", "f"):
        await filled(hf.documents, document=document)
    await hf.documents.projects.create("Others", id="q")
    await hf.documents.add("q", id="g", **FILE)
    await hf.documents.projects.delete("p")
    for document in ("d", "e", "f"):
        await is_gone(hf.documents, document)
    with pytest.raises(ProjectNotFound):
        await hf.documents.projects.get("p")
    with pytest.raises(ProjectNotFound):
        await hf.documents.list("p")
    with pytest.raises(ProjectNotFound):
        await hf.documents.add("p", **FILE)
    assert [each.id for each in await hf.documents.projects.list()] == ["q"]
    assert (await hf.documents.get("g")).project == "q"
    assert await blob_keys(hf) == []


async def deleting_document(documents: Documents) -> None:
    await documents.delete("d")


async def deleting_project(documents: Documents) -> None:
    await documents.projects.delete("p")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("delete", [deleting_document, deleting_project])
async def test_a_process_may_die_at_any_write(
    town: Town, delete: Callable[[Documents], Awaitable[None]], before: bool
) -> None:
    first, _ = town.process()
    for lives in range(1, 40):
        await filled(first.documents)
        hf, engine = town.process()
        engine.writes_left, engine.before = lives, before
        try:
            await delete(hf.documents)
        except Killed:
            survived = False
        else:
            survived = True
        other, _ = town.process()
        with suppress(DocumentNotFound, ProjectNotFound):  # then nothing was left to do
            await delete(other.documents)
        await is_gone(other.documents)
        assert town.blobs.contents == {}
        left = {key for key in town.stored_keys() if key.pk not in SETTINGS_AND_COUNTS}
        if delete is deleting_document:
            left.discard(("PROJ#default#p", "META"))  # type: ignore[arg-type]
        assert {key.pk for key in left} == {"WF#default#d-w0", "WF#default#d-w1"}
        town.clock.advance(FENCE_SECONDS)
        if survived:
            assert lives > 8
            return
    pytest.fail("a delete took more than 40 writes")


async def test_a_marked_document_is_not_shown_and_takes_nothing(town: Town) -> None:
    """The first write decides: after it, a document is as good as deleted."""
    first, _ = town.process()
    await filled(first.documents)
    hf, engine = town.process()
    engine.writes_left = 1
    with pytest.raises(Killed):
        await hf.documents.delete("d")
    with pytest.raises(DocumentNotFound):
        await first.documents.get("d")
    with pytest.raises(DocumentNotFound):
        await first.documents.begin("d")
    assert (await first.documents.list("p")).documents == []
    with pytest.raises(IdTaken, match="deleted"):
        await first.documents.add("p", id="d", **FILE)
    await first.documents.delete("d")
    again = await first.documents.add("p", id="d", **FILE)
    assert again.workflow is None
    assert (await first.documents.workflows(document="d")).workflows == []


async def test_late_writers_bring_nothing_back(either: House) -> None:
    """A pipeline that is still at work has read everything before the delete."""
    pipeline, other = either.open(), either.open()
    await filled(pipeline.documents)
    assert (await pipeline.documents.segment("d-w0", 3)).image_analysis == ["small"]
    await other.documents.delete("d")
    for index in (1, 2, 3):  # 2 was never written before
        with pytest.raises(DocumentWorkflowNotFound):
            await pipeline.documents.put_segment("d-w0", index, image_analysis=["late"])
    await is_gone(pipeline.documents)
    table = store_of(other).table
    assert "data" not in (await table.get(segment_key("default", "d-w0", 2)) or {})
    # Until the fences are gone the id is not used again.
    await pipeline.documents.add("p", id="d", **FILE)
    with pytest.raises(IdTaken):
        await pipeline.documents.begin("d", id="d-w0")
    either.clock.advance(FENCE_SECONDS)
    await pipeline.documents.begin("d", id="d-w0")


async def test_writers_and_a_delete_at_once_leave_nothing(house: House) -> None:
    one, other = house.open(), house.open()
    await begun(one.documents, segments=50)

    async def write() -> None:
        for index in range(1, 51):
            await one.documents.put_segment("w", index)
            await one.documents.progress_step("w", "segment_analyzer", done=index)

    await one.documents.start_step("w", "segment_analyzer")
    results = await asyncio.gather(
        write(), other.documents.delete("d"), one.documents.begin("d"), return_exceptions=True
    )
    assert isinstance(results[0], DocumentWorkflowNotFound)
    assert results[1] is None
    await _nothing_is_shown(one)


async def _nothing_is_shown(hf: Holdfast) -> None:
    table = store_of(hf).table
    for index in range(1, 51):
        item = await table.get(segment_key("default", "w", index))
        assert item is not None
        assert "data" not in item
    steps = await table.get(steps_key("default", "w"))
    assert steps is not None
    assert "GSI1PK" not in steps
    counts = [item async for item in table.query_all(counts_partition("default"))]
    assert sum(item.get("in_progress", 0) + item.get("pending", 0) for item in counts) == 0


async def test_two_deletes_at_once_delete_once(either: House) -> None:
    one, other = either.open(), either.open()
    await filled(one.documents)
    results = await asyncio.gather(
        one.documents.delete("d"), other.documents.delete("d"), return_exceptions=True
    )
    assert all(each is None or isinstance(each, DocumentNotFound) for each in results)
    await is_gone(one.documents)


async def test_a_segment_that_another_program_wrote_is_deleted_too(hf: Holdfast) -> None:
    await begun(hf.documents, segments=1)
    key = segment_key("default", "w", 20_000)
    await store_of(hf).table.write(Put({"PK": key.pk, "SK": key.sk, "data": {}}))
    await hf.documents.delete("d")
    assert await store_of(hf).table.get(key) is None


# --- search and runs ------------------------------------------------------------------------------


async def patiently(call: Coroutine[Any, Any, None], clock: StepClock) -> None:
    """Carry out a call, and move the clock on while it waits for workers."""
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not task.done():
            if clock.sleeping:
                clock.advance(0.05)
            await clock.sleep(0)
    await task


class Search:
    """Notes which documents it was asked to forget, and can fail."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, str]] = []
        self.error: Exception | None = None

    async def remove(self, tenant: str, document: str) -> None:
        if self.error is not None:
            raise self.error
        self.removed.append((tenant, document))

    async def close(self) -> None: ...


async def test_the_search_forgets_what_is_deleted(hf: Holdfast) -> None:
    search = Search()
    hf.documents.search = search
    await filled(hf.documents)
    search.error = OSError("the file of the search is locked")
    with pytest.raises(OSError, match="locked"):
        await hf.documents.delete("d")
    search.error = None
    await hf.documents.delete("d")
    assert search.removed == [("default", "d")]
    with pytest.raises(DocumentNotFound):
        await hf.documents.get("d")


async def test_the_runs_of_a_workflow_are_cancelled_and_their_data_deleted(
    house: House,
) -> None:
    hf = house.open()
    child = Graph("child", dict)
    parent = Graph("documents", dict)

    @child.node
    async def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"text": incompressible(1, 50_000).hex()}

    @parent.node
    async def read(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"found": len((await ctx.run(child, {}))["text"])}

    await begun(hf.documents)
    worker = house.worker(hf, parent, child)
    async with worker:
        run = await hf.start(parent, {}, id="run-1")
        await hf.documents.update_workflow("w", execution_arn="run-1")
        await house.patiently_quiet(worker)
        assert (await run.get()).status == "finished"
    assert await blob_keys(hf) != []
    await patiently(hf.documents.delete("d"), house.clock)
    assert await blob_keys(hf) == []
    with pytest.raises(RunNotFound):
        await hf.run("run-1").history()


async def test_a_waiting_run_is_cancelled(house: House) -> None:
    hf = house.open()
    graph = Graph("documents", dict)

    @graph.node
    async def wait(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        await ctx.wait(signal("never"))
        return {}

    await begun(hf.documents)
    worker = house.worker(hf, graph)
    async with worker:
        run = await hf.start(graph, {}, id="w")  # the run of a workflow may have its id
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await patiently(hf.documents.delete("d"), house.clock)
        assert (await run.get()).status == "cancelled"
