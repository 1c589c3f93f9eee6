"""A process dies at any operation on the store, and another one finishes the upload: once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import ManualClock
from holdfast.documents.pipelines import start_pipelines
from holdfast.documents.uploads import DocumentUploads
from holdfast.errors import OutcomeUnknown, UploadNotFound
from holdfast.model.upload import UploadSweep
from holdfast.records.document_file import FILE_PART_BYTES
from holdfast.storage import Blobs, Table
from tests.documents.intake_fake import FakeDocuments, FakePipelines, intake
from tests.server.pipeline_graphs import DOCUMENT_GRAPHS

PDF = b"%PDF-1.7\n" + random.Random(7).randbytes(FILE_PART_BYTES + 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as opened:
        yield opened


class Died(BaseException):
    """The process is gone: nothing catches it."""


class Fate:
    """Lets the process die before or after one of its operations on the store."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.after = False
        self._dead = False
        for kind, name in ((Table, "_perform"), (Blobs, "_call_engine")):
            patch.setattr(kind, name, self._wrapped(getattr(kind, name)))

    def _wrapped(self, method: Any) -> Any:
        async def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._dead:
                raise Died  # what runs on the way out reaches nothing
            if self.left is None:
                return await method(owner, *args, **kwargs)
            self.left -= 1
            if self.left >= 0:
                return await method(owner, *args, **kwargs)
            if self.after:
                await method(owner, *args, **kwargs)
            self._dead = True
            raise Died

        return call

    def strike(self, at: int, *, after: bool) -> None:
        self.left, self.after, self._dead = at, after, False

    def relent(self) -> bool:
        """Let the store work again; return whether the process died."""
        died = self._dead
        self.left, self._dead = None, False
        return died


@pytest.mark.parametrize("after", [False, True])
async def test_a_death_at_any_operation_loses_and_repeats_nothing(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    fate = Fate(monkeypatch)
    for at in range(200):
        documents, pipelines = FakeDocuments(), FakePipelines()
        files, doomed = intake(hf, documents, pipelines=pipelines)
        _, other = intake(hf, documents, pipelines=pipelines)
        id = f"u-{at}"
        fate.strike(at, after=after)
        with suppress(Died):
            await doomed.create("p", name="a.pdf", length=len(PDF), id=id)
            await doomed.append(id, PDF, offset=0)
        died = fate.relent()
        await continued(other, id)
        assert len(documents.added) == len(documents.begun) == 1, at
        assert set(pipelines.started) == set(documents.begun), at
        (added,) = documents.added.values()
        assert b"".join([part async for part in files.read(added["file_uri"])]) == PDF, at
        if not died:
            assert at > 10
            return
    pytest.fail("the upload never came to its end")


def part_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "parts" in str(path)]


async def continued(uploads: DocumentUploads, id: str) -> None:
    """Go on as a client does: it asks where the upload stands, and sends the rest."""
    try:
        found = await uploads.get(id)
    except UploadNotFound:
        found = await uploads.create("p", name="a.pdf", length=len(PDF), id=id)
    if found.status == "open":
        found = await uploads.append(id, PDF[found.offset :], offset=found.offset)
    assert found.status == "processed"


@pytest.mark.parametrize("after", [False, True])
async def test_a_death_loses_and_repeats_no_document_workflow_or_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The same with the real table of documents, and real runs."""
    async with (
        Holdfast(f"sqlite:///{tmp_path}/real.db") as doomed,
        Holdfast(f"sqlite:///{tmp_path}/real.db") as other,
    ):
        for each in (doomed, other):
            start_pipelines(each, DOCUMENT_GRAPHS)
        fate = Fate(monkeypatch)
        for at in range(200):
            project = (await other.documents.projects.create("Contracts", id=f"p-{at}")).id
            asked: dict[str, Any] = {"name": "a.pdf", "length": 100, "id": f"u-{at}"}
            fate.strike(at, after=after)
            with suppress(Died):
                await doomed.documents.uploads.create(project, **asked)
                await doomed.documents.uploads.append(asked["id"], PDF[:100], offset=0)
            died = fate.relent()
            uploads = other.documents.uploads
            found = await uploads.create(project, **asked)
            if found.status == "open":
                piece = PDF[found.offset : 100]
                found = await uploads.append(found.id, piece, offset=found.offset)
            found = await uploads.finish(found.id)
            assert found.status == "processed", at
            (document,) = (await other.documents.list(project)).documents
            (workflow,) = (await other.documents.workflows(project=project)).workflows
            assert (document.workflow, workflow.document) == (workflow.id, document.id)
            assert workflow.execution_arn == f"doc-{workflow.id}"
            run = await other.run(f"doc-{workflow.id}").get()
            assert run.graph == "documents", at
            if not died:
                assert at > 10
                assert len((await other.list(limit=1000)).runs) == at + 1
                return
        pytest.fail("the upload never came to its end")


async def test_a_sweep_finishes_what_a_dead_process_left(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, pipelines = FakeDocuments(), FakePipelines()
    _, doomed = intake(hf, documents, pipelines=pipelines)
    _, other = intake(hf, documents, pipelines=pipelines)
    made = await doomed.create("p", name="a.pdf", length=100)

    async def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(pipelines, "start", die)
        with pytest.raises(Died):
            await doomed.append(made.id, PDF[:100], offset=0)
    assert await other.sweep() == UploadSweep()  # the process may only be slow
    clock.advance(61)
    assert await other.sweep() == UploadSweep(finished=1)
    assert pipelines.started == [made.workflow]
    assert await other.sweep() == UploadSweep()


@pytest.mark.parametrize("after", [False, True])
async def test_a_removal_that_was_cut_goes_on(
    hf: Holdfast,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    after: bool,
) -> None:
    fate = Fate(monkeypatch)
    for at in range(30):
        documents, pipelines = FakeDocuments(), FakePipelines()
        _, doomed = intake(hf, documents, pipelines=pipelines)
        made = await doomed.create("p", name="a.pdf", length=len(PDF))
        await doomed.append(made.id, PDF[: FILE_PART_BYTES + 5], offset=0)
        clock.advance(24 * 3600)
        fate.strike(at, after=after)
        with suppress(Died):
            await doomed.sweep()
        died = fate.relent()
        await doomed.sweep()
        with pytest.raises(UploadNotFound):
            await doomed.get(made.id)
        assert not part_files(tmp_path)
        if not died:
            assert at > 4
            return
    pytest.fail("the sweep never came to its end")


async def test_a_lost_answer_counts_a_part_once(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, pipelines = FakeDocuments(), FakePipelines()
    files, uploads = intake(hf, documents, pipelines=pipelines)
    transact, lost = Table.transact, 0

    async def losing(table: Table, writes: Any) -> None:
        nonlocal lost
        await transact(table, writes)
        lost += 1
        if lost <= 1:
            raise OutcomeUnknown

    monkeypatch.setattr(Table, "transact", losing)
    monkeypatch.setattr(hf.clock, "sleep", no_sleep)
    made = await uploads.create("p", name="a.pdf", length=len(PDF))
    done = await uploads.append(made.id, PDF, offset=0)
    assert (done.status, lost) == ("processed", 2)
    (added,) = documents.added.values()
    assert b"".join([part async for part in files.read(added["file_uri"])]) == PDF


async def no_sleep(seconds: float) -> None:
    """Wait for nothing."""
