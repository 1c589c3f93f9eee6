"""`client.documents`: uploads that go on, and every route in the library's types."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import Client
from holdfast.errors import (
    DocumentNotFound,
    FileRejected,
    FileTooLarge,
    IdTaken,
    InvalidQuery,
    InvalidRequest,
    NotRetryable,
    ProjectNotFound,
    SegmentNotFound,
    StoredFileNotFound,
    Unauthenticated,
)
from holdfast.model.segment_search import SegmentEntry
from holdfast.server import ServerOptions, asgi
from tests.server.pipeline_graphs import DOCUMENT_GRAPHS

PDF = b"%PDF-1.7\n" + random.Random(3).randbytes(9 * 1024**2)


class Cuts(httpx.AsyncBaseTransport):
    """A network that cuts some requests with pieces, before or after the server has seen them."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.fates: list[str] = []
        self.pieces = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "PATCH":
            return await self._inner.handle_async_request(request)
        self.pieces += 1
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "before":
            raise httpx.WriteError("cut")
        if fate == "refused":
            return httpx.Response(401, request=request)
        response = await self._inner.handle_async_request(request)
        if fate == "after":
            await response.aread()
            raise httpx.ReadError("cut")
        return response


@pytest.fixture
async def cuts(hf: Holdfast) -> AsyncIterator[Cuts]:
    app = asgi(
        hf, DOCUMENT_GRAPHS, options=ServerOptions(file_bytes_max=16 * 1024**2), worker=False
    )
    async with app.lifespan():
        yield Cuts(httpx.ASGITransport(app))


@pytest.fixture
async def client(cuts: Cuts) -> AsyncIterator[Client]:
    async with Client("http://localhost", transport=cuts, timeout=30) as opened:
        await opened.documents.projects.create("Contracts", id="p")
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.pdf"
    path.write_bytes(PDF)
    return path


async def test_projects_are_those_of_the_library(client: Client, hf: Holdfast) -> None:
    projects = client.documents.projects
    made = await projects.create("Letters", language="de", retention_days=7)
    assert made == await hf.documents.projects.get(made.id) == await projects.get(made.id)
    with pytest.raises(IdTaken):
        await projects.create("Other", id="p")
    changed = await projects.update(made.id, retention_days=None, name="Mail")
    assert (changed.retention_days, changed.name, changed.language) == (None, "Mail", "de")
    assert {each.id for each in await projects.list()} == {"p", made.id}
    await projects.delete(made.id)
    with pytest.raises(ProjectNotFound):
        await projects.get(made.id)


async def test_a_file_is_sent_in_pieces(
    client: Client, cuts: Cuts, hf: Holdfast, path: Path, tmp_path: Path
) -> None:
    done = await client.documents.add(path, project="p")
    assert (done.status, done.offset, cuts.pieces) == ("processed", len(PDF), 3)
    document = await client.documents.get(done.document)
    assert document == await hf.documents.get(done.document)
    assert [each.id for each in await client.documents.list("p")] == [done.document]
    target = tmp_path / "copy.pdf"
    await client.documents.download(done.document, target)
    assert target.read_bytes() == PDF


async def test_an_upload_goes_on_after_cuts(
    client: Client, cuts: Cuts, hf: Holdfast, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts.fates = ["before", "after", "before", "", "after"]
    done = await client.documents.add(path, project="p", id="mail-7")
    assert (done.status, done.offset) == ("processed", len(PDF))
    assert cuts.pieces == 5
    (document,) = (await hf.documents.list("p")).documents
    content = [part async for part in hf.documents.files.read(document.file_uri)]
    assert b"".join(content) == PDF
    assert await client.documents.add(path, project="p", id="mail-7") == done


async def test_a_later_call_goes_on_where_the_first_was_cut(
    client: Client, cuts: Cuts, path: Path
) -> None:
    cuts.fates = ["", "refused"]
    with pytest.raises(Unauthenticated):
        await client.documents.add(path, project="p", id="mail-7")
    cuts.pieces = 0
    done = await client.documents.add(path, project="p", id="mail-7")
    assert (done.status, done.offset, cuts.pieces) == ("processed", len(PDF), 2)


async def test_what_the_server_does_not_accept(
    client: Client, tmp_path: Path, hf: Holdfast
) -> None:
    program = tmp_path / "a.pdf"
    program.write_bytes(b"MZ" + bytes(5000))
    with pytest.raises(FileRejected):
        await client.documents.add(program, project="p")
    program.write_bytes(bytes(17 * 1024**2))
    with pytest.raises(FileTooLarge):
        await client.documents.add(program, project="p")
    program.write_bytes(PDF[:100])
    with pytest.raises(ProjectNotFound):
        await client.documents.add(program, project="none")
    with pytest.raises(FileNotFoundError):
        await client.documents.add(tmp_path / "none", project="p")
    with pytest.raises(InvalidRequest, match="id must be"):
        await client.documents.add(program, project="p", id="a b")
    for name in ("", " "):
        with pytest.raises(InvalidRequest, match="name must not be empty"):
            await client.documents.add(program, project="p", name=name)
    assert (await hf.documents.list("p")).documents == []


async def test_addresses_are_added(client: Client) -> None:
    made = await client.documents.add_address("p", "https://example.com/", id="w")
    assert await client.documents.add_address("p", "https://example.com/", id="w") == made
    assert (await client.documents.get(made.document)).kind == "WEB"
    with pytest.raises(InvalidRequest, match="permitted"):
        await client.documents.add_uri("p", "s3://other/key")
    with pytest.raises(StoredFileNotFound):
        await client.documents.download(made.document, "/nowhere-to-be-found")


async def test_workflows_steps_and_segments(client: Client, hf: Holdfast, path: Path) -> None:
    documents = client.documents
    done = await documents.add(path, project="p")
    workflow = await documents.workflow(done.workflow)
    assert workflow == await hf.documents.workflow(done.workflow)
    assert (await documents.counts())["pending"] == 1
    by: list[dict[str, Any]] = [
        {"project": "p"},
        {"document": done.document},
        {"status": "pending"},
    ]
    for given in by:
        assert [each.id for each in await documents.workflows(**given)] == [done.workflow]
    assert [each.id for each in await documents.workflows()] == []
    with pytest.raises(InvalidQuery):
        await documents.workflows(project="p", document="d")
    assert [*await documents.steps(done.workflow)] == [*await hf.documents.steps(done.workflow)]

    await hf.documents.update_workflow(done.workflow, total_segments=2)
    prefix = await hf.documents.blob_prefix(done.document)
    content = await hf.documents.files.put_blob(b'{"text": "x"}', name="1", prefix=prefix)
    image = await hf.documents.files.put_blob(b"\x89PNG\r\n\x1a\n", name="i", prefix=prefix)
    await hf.documents.put_segment(done.workflow, 1, s3_key=content, image_uri=image)
    assert [each.index for each in await documents.segments(done.workflow)] == [1]
    found = await documents.segment(done.workflow, 1)
    assert found == await hf.documents.segment(done.workflow, 1)
    assert await documents.content(done.workflow, 1) == b'{"text": "x"}'
    assert await documents.image(done.workflow, 1) == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(SegmentNotFound):
        await documents.segment(done.workflow, 2)
    with pytest.raises(InvalidRequest):
        await documents.segment(done.workflow, 0)

    again = await documents.process(done.document, id="again")
    assert again.workflow != done.workflow
    with pytest.raises(NotRetryable):
        await documents.retry(done.workflow)
    await documents.delete(done.document)
    with pytest.raises(DocumentNotFound):
        await documents.get(done.document)


async def test_segments_are_found(client: Client, hf: Holdfast) -> None:
    assert hf.documents.search is not None
    await hf.documents.search.add(
        "default", "p", "d", "w", [SegmentEntry(1, "The total is 120 EUR.")]
    )
    (hit,) = await client.documents.search("what is the total?", project="p")
    assert (hit.document, hit.index) == ("d", 1)
    assert any(is_found for _, is_found in hit.parts())
