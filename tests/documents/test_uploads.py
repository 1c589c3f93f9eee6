"""Uploads: bytes count once they are durable, and a complete one becomes a document once."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.clock import ManualClock
from holdfast.documents.checksums import Checksum, parsed_checksum
from holdfast.errors import (
    AlreadyExists,
    ChecksumMismatch,
    DocumentNotFound,
    FileRejected,
    FileTooLarge,
    InvalidName,
    InvalidRequest,
    ProjectNotFound,
    UnknownGraph,
    UploadConflict,
    UploadGone,
    UploadInterrupted,
    UploadNotFound,
    UploadsBusy,
)
from holdfast.model.upload import UploadSweep
from holdfast.records.document_file import FILE_PART_BYTES
from holdfast.records.upload import UPLOADS
from tests.documents.intake_fake import FakeDocuments, FakePipelines, intake

PART = FILE_PART_BYTES
PDF = b"%PDF-1.7\n" + random.Random(7).randbytes(PART + 1000)
DAY = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as opened:
        yield opened


class World:
    """One store, what was added, and the uploads of two processes."""

    def __init__(self, hf: Holdfast, tmp_path: Path) -> None:
        self.hf, self.path = hf, tmp_path
        self.documents, self.pipelines = FakeDocuments(), FakePipelines()
        self.files, self.one = intake(hf, self.documents, pipelines=self.pipelines)
        _, self.two = intake(hf, self.documents, pipelines=self.pipelines)

    async def content(self) -> bytes:
        (added,) = self.documents.added.values()
        return b"".join([part async for part in self.files.read(added["file_uri"])])

    def blobs(self) -> int:
        return sum(path.is_file() and "parts" in str(path) for path in self.path.rglob("*"))

    async def items(self) -> list[str]:
        table = self.hf._services.kernel.store.table  # pyright: ignore[reportPrivateUsage]
        page = await table.query(UPLOADS, index="GSI1")
        return [item["GSI1SK"] for item in page.items]

    def assert_done_once(self, data: bytes = PDF) -> None:
        assert len(self.documents.added) == len(self.documents.begun) == 1
        assert set(self.pipelines.started) == set(self.documents.begun)


@pytest.fixture
def world(hf: Holdfast, tmp_path: Path) -> World:
    return World(hf, tmp_path)


async def cut_after(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
    raise UploadInterrupted


async def test_an_upload_in_one_piece_becomes_a_document(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF), file_type="text/plain")
    assert (made.status, made.offset, world.documents.added) == ("open", 0, {})
    done = await world.one.append(made.id, PDF, offset=0)
    assert (done.status, done.offset, done.file_type) == (
        "processed",
        len(PDF),
        "application/pdf",
    )
    world.assert_done_once()
    assert await world.content() == PDF
    assert world.documents.added[done.document]["file_bytes"] == len(PDF)
    assert world.documents.begun == {done.workflow: done.document}
    assert await world.items() == []


async def test_two_processes_take_turns(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    offset = 0
    for turn, start in enumerate(range(0, len(PDF), 1_000_000)):
        uploads = world.two if turn % 2 else world.one
        piece = PDF[start : start + 1_000_000]
        offset = (await uploads.append(made.id, piece, offset=offset)).offset
        assert (await world.one.get(made.id)).offset == offset
    world.assert_done_once()
    assert await world.content() == PDF


async def test_what_has_come_before_a_cut_counts(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    with pytest.raises(UploadInterrupted):
        await world.one.append(made.id, cut_after(PDF[: PART + 10]), offset=0)
    assert (await world.two.get(made.id)).offset == PART + 10
    await world.two.append(made.id, PDF[PART + 10 :], offset=PART + 10)
    assert await world.content() == PDF


@pytest.mark.parametrize("offset", [1, 9, 11, -1, 10**30])
async def test_another_offset_is_refused(world: World, offset: int) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    await world.one.append(made.id, PDF[:10], offset=0)
    with pytest.raises(UploadConflict, match="continues at byte 10"):
        await world.two.append(made.id, b"x", offset=offset)
    assert (await world.one.get(made.id)).offset == 10


async def test_of_two_requests_at_once_one_counts(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    first_is_in, second_is_done = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        first_is_in.set()
        await second_is_done.wait()
        yield PDF

    first = asyncio.create_task(world.one.append(made.id, slow(), offset=0))
    await first_is_in.wait()
    await world.two.append(made.id, PDF[:1000], offset=0)
    second_is_done.set()
    with pytest.raises(UploadConflict, match="another request"):
        await first
    assert (await world.one.get(made.id)).offset == 1000
    assert world.blobs() == 1
    await world.one.append(made.id, PDF[1000:], offset=1000)
    assert await world.content() == PDF


async def test_many_requests_at_once_store_the_file_once(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    each = [uploads.append(made.id, PDF, offset=0) for uploads in (world.one, world.two) * 4]
    outcomes = await asyncio.gather(*each, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {UploadConflict, type(made)}
    if all(isinstance(outcome, UploadConflict) for outcome in outcomes):
        found = await world.one.get(made.id)
        await world.one.append(made.id, PDF[found.offset :], offset=found.offset)
    world.assert_done_once()
    assert await world.content() == PDF


async def test_a_repeated_last_piece_is_answered_again(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    done = await world.one.append(made.id, PDF, offset=0)
    assert await world.two.append(made.id, b"", offset=len(PDF)) == done
    assert await world.two.get(made.id) == done
    with pytest.raises(UploadConflict):
        await world.two.append(made.id, PDF, offset=0)
    world.assert_done_once()


async def test_more_than_was_announced_is_refused(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    with pytest.raises(FileTooLarge):
        await world.one.append(made.id, PDF[:101], offset=0)
    assert (await world.one.get(made.id)).offset == 0
    await world.one.append(made.id, PDF[:100], offset=0)
    world.assert_done_once()


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
async def test_a_wrong_checksum_stores_nothing(world: World, algorithm: str) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    right = Checksum(algorithm, hashlib.new(algorithm, PDF).digest())
    with pytest.raises(ChecksumMismatch):
        await world.one.append(made.id, PDF[:-1] + b"x", offset=0, checksum=right)
    assert ((await world.one.get(made.id)).offset, world.blobs()) == (0, 0)
    with pytest.raises(UploadInterrupted):
        await world.one.append(made.id, cut_after(PDF[:-1]), offset=0, checksum=right)
    assert ((await world.one.get(made.id)).offset, world.blobs()) == (0, 0)
    await world.one.append(made.id, PDF, offset=0, checksum=right)
    assert await world.content() == PDF


@pytest.mark.parametrize(
    "text", ["", "sha1", "sha1 ", "md5 AAAA", "sha1 AAAA", "sha256 *", "sha1 " + "A" * 4096]
)
def test_a_checksum_that_is_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="checksum must be"):
        parsed_checksum(text)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.pdf", b"MZ\x90\x00" + bytes(5000)),
        ("a.txt", PDF[:5000]),
        ("a.exe", b"MZ\x90\x00" + bytes(5000)),
        ("a.txt", b"a\0b" * 2000),
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>" * 200),
        ("pdf", PDF[:5000]),
        ("a.pdf", b"%"),
    ],
)
async def test_a_file_of_another_type_is_rejected(world: World, name: str, data: bytes) -> None:
    made = await world.one.create("p", name=name, length=len(data))
    with pytest.raises(FileRejected):
        await world.one.append(made.id, data, offset=0)
    found = await world.two.get(made.id)
    assert found.status == "rejected"
    assert found.error
    with pytest.raises(FileRejected):
        await world.two.append(made.id, data, offset=0)
    assert (world.blobs(), world.documents.added, world.pipelines.started) == (0, {}, [])
    assert await world.items() == []


async def test_a_bad_type_in_tiny_pieces_is_rejected_at_the_end(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=6)
    for offset in range(5):
        await world.one.append(made.id, b"x", offset=offset)
    with pytest.raises(FileRejected):
        await world.one.append(made.id, b"x", offset=5)
    assert world.blobs() == 0


async def test_what_is_refused_before_anything_is_stored(world: World) -> None:
    with pytest.raises(ProjectNotFound):
        await world.one.create("none", name="a.pdf", length=1)
    with pytest.raises(UnknownGraph):
        await world.one.create("q", name="a.pdf", length=1)
    with pytest.raises(UnknownGraph):
        await world.one.add_source("q", address="https://example.com/")
    with pytest.raises(FileTooLarge):
        await world.one.create("p", name="a.pdf", length=1024**3 + 1)
    with pytest.raises(FileRejected, match="empty"):
        await world.one.create("p", name="a.pdf", length=0)
    for length in (-1, 1.5, "5", None, True):
        with pytest.raises(InvalidRequest):
            await world.one.create("p", name="a.pdf", length=length)  # pyright: ignore[reportArgumentType]
    for id in ("", "a#b", "a/b", "x" * 129):
        with pytest.raises(InvalidName):
            await world.one.create("p", name="a.pdf", length=1, id=id)
    for kind in ("a\r\nb", "ü", "x" * 256):
        with pytest.raises(InvalidRequest):
            await world.one.create("p", name="a.pdf", length=1, file_type=kind)
    assert await world.items() == []


async def test_the_id_is_the_idempotency_key(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100, id="mail-7")
    assert await world.two.create("p", name="a.pdf", length=100, id="mail-7") == made
    with pytest.raises(AlreadyExists, match="the id was used before"):
        await world.two.create("p", name="a.pdf", length=99, id="mail-7")
    await world.one.append("mail-7", PDF[:100], offset=0)
    again = await world.two.create("p", name="a.pdf", length=100, id="mail-7")
    assert (again.status, again.document) == ("processed", made.document)


async def test_another_tenant_has_no_such_upload(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    for call in (
        world.one.get(made.id, tenant="eve"),
        world.one.append(made.id, PDF[:100], offset=0, tenant="eve"),
        world.one.terminate(made.id, tenant="eve"),
        world.one.finish(made.id, tenant="eve"),
    ):
        with pytest.raises(UploadNotFound):
            await call


async def test_a_terminated_upload_leaves_nothing(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    await world.one.append(made.id, PDF[: PART + 5], offset=0)
    assert world.blobs() == 2
    await world.two.terminate(made.id)
    assert (world.blobs(), await world.items()) == (0, [])
    with pytest.raises(UploadNotFound):
        await world.one.get(made.id)


async def test_a_request_that_is_terminated_stores_nothing_more(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    is_in, is_gone = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        is_in.set()
        await is_gone.wait()
        yield PDF

    sending = asyncio.create_task(world.one.append(made.id, slow(), offset=0))
    await is_in.wait()
    await world.two.terminate(made.id)
    is_gone.set()
    with pytest.raises(UploadConflict):
        await sending
    assert (world.blobs(), await world.items(), world.documents.added) == (0, [], {})


async def test_a_complete_upload_is_not_terminated(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    await world.one.append(made.id, PDF[:100], offset=0)
    with pytest.raises(UploadConflict, match="delete the document"):
        await world.one.terminate(made.id)


async def test_an_expired_upload_is_gone_and_swept(world: World, clock: ManualClock) -> None:
    made = await world.one.create("p", name="a.pdf", length=len(PDF))
    await world.one.append(made.id, PDF[: PART + 5], offset=0)
    assert await world.two.sweep() == UploadSweep()
    clock.advance(DAY)
    with pytest.raises(UploadGone):
        await world.one.append(made.id, PDF[PART + 5 :], offset=PART + 5)
    with pytest.raises(UploadGone):
        await world.one.get(made.id)
    assert await world.two.sweep() == UploadSweep(removed=1)
    assert (world.blobs(), await world.items()) == (0, [])
    with pytest.raises(UploadNotFound):
        await world.one.get(made.id)


async def test_too_many_at_a_time_are_refused(world: World) -> None:
    world.one.receives_max = 1
    made = [await world.one.create("p", name="a.pdf", length=100) for _ in range(2)]
    is_in, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        is_in.set()
        await may_end.wait()
        yield PDF[:100]

    sending = asyncio.create_task(world.one.append(made[0].id, slow(), offset=0))
    await is_in.wait()
    with pytest.raises(UploadsBusy):
        await world.one.append(made[1].id, PDF[:100], offset=0)
    may_end.set()
    await sending
    await world.one.append(made[1].id, PDF[:100], offset=0)


async def test_a_local_file_goes_on_where_it_was_cut(world: World, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(PDF)
    made = await world.one.create("p", name="a.pdf", length=len(PDF), id="folder-1")
    await world.one.append(made.id, PDF[:500], offset=0)
    done = await world.two.add_path("p", path, id="folder-1")
    assert (done.status, done.document) == ("processed", made.document)
    assert await world.content() == PDF
    assert await world.two.add_path("p", path, id="folder-1") == done
    world.assert_done_once()


async def test_a_web_page_becomes_a_document(world: World) -> None:
    done = await world.one.add_source("p", address="https://example.com/a?b=c", id="w")
    assert done.status == "processed"
    (added,) = world.documents.added.values()
    assert (added["file_uri"], added["web"]) == ("https://example.com/a?b=c", True)
    assert await world.two.add_source("p", address="https://example.com/a?b=c", id="w") == done
    world.assert_done_once()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://user:secret@example.com/",
        "https://",
        "https://exa mple.com",
        "https://example.com/\n",
        "https://[::1",
        "https://example.com:99999/",
        "https://example.com/" + "x" * 2048,
        5,
    ],
)
async def test_an_address_that_is_none(world: World, address: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await world.one.add_source("p", address=address)
    assert "secret" not in str(raised.value)


async def test_an_object_of_another_bucket_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="a bucket of 3 to 63 characters"):
        await world.one.add_source("p", uri="s3://x/key")
    with pytest.raises(InvalidRequest, match=r"ServerOptions\(document_buckets=…\)"):
        await world.one.add_source("p", uri="s3://other/key")
    for uri in ("s3://other/key", "blob:documents/default/x", "/etc/passwd"):
        with pytest.raises(InvalidRequest):
            await world.one.add_source("p", uri=uri)
    with pytest.raises(InvalidRequest, match="either"):
        await world.one.add_source("p")


async def test_a_document_is_processed_again(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    first = await world.one.append(made.id, PDF[:100], offset=0)
    again = await world.one.process_again(first.document, id="again")
    assert (again.document, again.status) == (first.document, "processed")
    assert again.workflow != first.workflow
    assert await world.two.process_again(first.document, id="again") == again
    assert world.documents.begun == dict.fromkeys((first.workflow, again.workflow), first.document)
    assert world.blobs() == 1
    with pytest.raises(DocumentNotFound):
        await world.one.process_again("none")


async def test_a_project_that_is_deleted_meanwhile_rejects_the_upload(world: World) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    del world.documents.projects.known["p"]
    with pytest.raises(FileRejected, match="no project"):
        await world.one.append(made.id, PDF[:100], offset=0)
    assert (world.blobs(), await world.items()) == (0, [])


async def test_an_unknown_pipeline_leaves_a_complete_upload_for_another_process(
    world: World, clock: ManualClock
) -> None:
    made = await world.one.create("p", name="a.pdf", length=100)
    world.documents.projects.known["p"] = "unknown"
    with pytest.raises(UnknownGraph):
        await world.one.append(made.id, PDF[:100], offset=0)
    assert (await world.one.get(made.id)).status == "complete"
    clock.advance(61)
    assert await world.one.sweep() == UploadSweep(failed=1)
    assert await world.one.sweep() == UploadSweep()  # it waits longer each time
    world.documents.projects.known["p"] = "documents"
    clock.advance(200)
    assert await world.two.sweep() == UploadSweep(finished=1)
    world.assert_done_once()


@pytest.mark.parametrize("parts", [1, 3])
async def test_the_cost_follows_the_parts(world: World, parts: int) -> None:
    data = PDF[:9] + bytes(parts * PART - 9)
    world.hf.meter.reset()
    made = await world.one.create("p", name="a.pdf", length=len(data))
    await world.one.append(made.id, data, offset=0)
    rows = world.hf.meter.report().rows
    assert sum(row.units.write + row.units.index_write for row in rows) == 8 + 5 * parts
    assert sum(row.units.blob_puts for row in rows) == parts + 1
