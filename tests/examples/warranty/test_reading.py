"""Readers: text and PDF files on this machine, and Textract."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pypdf import PdfReader, PdfWriter

from holdfast import Context, workflow
from holdfast.clock import SystemClock
from holdfast.errors import RunFailed
from holdfast.testing import TestKit
from warranty import make_documents, reading
from warranty.application import SAMPLES
from warranty.folder import DocumentFolder
from warranty.make_documents import LOCKED_PASSWORD, locked, pdf_of
from warranty.reading import (
    LocalReader,
    Reader,
    Readers,
    Reading,
    TextractReader,
    UnreadableDocument,
    pdf_pages,
)


class Local:
    """A folder of documents, and what its reader says about one."""

    def __init__(self, path: Path) -> None:
        self.folder = DocumentFolder(path / "documents")
        self.passwords = path / "passwords.txt"

    def read(self, key: str, data: bytes) -> Reading:
        reader = LocalReader(self.folder, self.passwords)
        return reader._read_file(key, self.folder.save(data))


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


def test_the_samples_are_what_the_script_makes() -> None:
    for name, text in (
        ("washing-machine.pdf", make_documents.WASHER),
        ("compressor.pdf", make_documents.COMPRESSOR),
    ):
        assert (SAMPLES / name).read_bytes() == pdf_of(text)


@pytest.mark.parametrize("name", ["washing-machine.pdf", "compressor.pdf"])
def test_a_strict_reader_opens_the_samples(name: str) -> None:
    reader = PdfReader(SAMPLES / name, strict=True)
    assert len(reader.pages) == 1
    assert "Serial number: " in reader.pages[0].extract_text()


def test_text_is_read_as_it_is(local: Local) -> None:
    found = local.read("a/kettle.TXT", "\ufeffGarantie für Käthe".encode())
    assert found == Reading("Garantie für Käthe", 1, "local")


def test_a_pdf_has_the_text_of_all_pages(local: Local) -> None:
    writer = PdfWriter()
    for text in ("first", "second (page) \\ here"):
        writer.append(io.BytesIO(pdf_of(text)))
    written = io.BytesIO()
    writer.write(written)
    found = local.read("two.pdf", written.getvalue())
    assert (found.text.split("\n"), found.pages) == (["first", "second (page) \\ here"], 2)


def test_a_locked_pdf_needs_its_password(local: Local) -> None:
    data = locked(pdf_of("secret"), LOCKED_PASSWORD)
    with pytest.raises(UnreadableDocument, match="is locked: add its password"):
        local.read("locked.pdf", data)
    local.passwords.write_text(f"other\n{LOCKED_PASSWORD}\n")
    assert local.read("locked.pdf", data).text == "secret"


@pytest.mark.parametrize(
    ("key", "data", "why"),
    [
        ("a.pdf", b"%PDF-1.4 and then nothing", "is damaged"),
        ("a.pdf", pdf_of("x")[:200], "is damaged"),
        ("a.pdf", b"\x00" * 5_000, "is damaged"),
        ("a.pdf", pdf_of(""), "has no text; a scan needs Textract"),
        ("a.txt", b"  \n ", "has no text"),
        ("a.txt", b"\xff\xfe\x00", "must be UTF-8"),
        ("a.exe", b"MZ", "must be a PDF or a text file, got '.exe'"),
        ("a", b"text", "must be a PDF or a text file, got ''"),
        ("a.txt", b"x" * 100_001, "more than 100,000 characters"),
    ],
)
def test_what_cannot_be_read(local: Local, key: str, data: bytes, why: str) -> None:
    with pytest.raises(UnreadableDocument, match=why):
        local.read(key, data)


def test_documents_are_bounded(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 10)
    with pytest.raises(UnreadableDocument, match="more than 10 bytes, got 11"):
        local.read("a.txt", b"x" * 11)
    monkeypatch.setattr(reading, "PAGES_MAX", 0)
    with pytest.raises(UnreadableDocument, match="more than 0 pages, got 1"):
        pdf_pages(pdf_of("x"), key="a.pdf", passwords=[])


@pytest.mark.parametrize("version", ["../../etc/passwd", "", "A" * 32, "0" * 31])
def test_a_version_is_no_path(local: Local, version: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        local.folder.load("a.txt", version)


def test_a_stored_document_that_was_changed_is_noticed(local: Local, tmp_path: Path) -> None:
    version = local.folder.save(b"before")
    (tmp_path / "documents" / version).write_bytes(b"after")
    with pytest.raises(ValueError, match="was changed or damaged"):
        local.folder.load("a.txt", version)


# --- Textract -------------------------------------------------------------------------------------


async def read_by(reader: Reader, bucket: str, key: str, version: str) -> Any:
    @workflow
    async def read(ctx: Context) -> Reading:
        return await reader.read(ctx, bucket, key, version)

    async with TestKit(read) as kit:
        run = await kit.hf.start(read)
        await kit.skip("1m")
        return await run.result(timeout=5), (await run.history()).entries


@pytest.fixture
def bucket(moto_server: str) -> Iterator[str]:
    s3: Any = boto3.client("s3", endpoint_url=moto_server)
    s3.create_bucket(Bucket="scans")
    for key in ("a/photo.png", "a/long.pdf"):
        s3.put_object(Bucket="scans", Key=key, Body=b"scan")
    yield "scans"
    for key in ("a/photo.png", "a/long.pdf"):
        s3.delete_object(Bucket="scans", Key=key)
    s3.delete_bucket(Bucket="scans")


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("a/photo.png", ["detect_text#1"]),
        ("a/long.pdf", ["start_text_detection#1", "collect_text#1"]),
    ],
)
async def test_textract_is_called_and_recorded(
    bucket: str, moto_server: str, key: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Moto reads nothing: it answers with lines that it makes up, or without any.
    monkeypatch.setattr(reading, "_checked_text", lambda text, key: text)
    client: Any = boto3.client("textract", endpoint_url=moto_server)
    found, entries = await read_by(TextractReader(lambda: client), bucket, key, "etag-x")
    assert found.by == "textract"
    assert [entry.details["call"] for entry in entries if entry.kind == "call"] == calls


class HurriedClock(SystemClock):
    """A clock on which nothing has to wait."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Textract:
    """What Textract answers for a PDF of two pages, in two parts, after two looks too early."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.started: list[dict[str, Any]] = []
        self.looks = 0

    def start_document_text_detection(self, **asked: Any) -> Any:
        self.started.append(asked)
        return {"JobId": "job-1"}

    def get_document_text_detection(self, JobId: str, NextToken: str = "") -> Any:  # noqa: N803
        self.looks += 1
        if self.looks <= 2:
            return {"JobStatus": "IN_PROGRESS"}
        if self.fails:
            return {"JobStatus": "FAILED", "StatusMessage": "not a PDF"}
        line = {"BlockType": "LINE", "Text": "second" if NextToken else "first"}
        blocks = [{"BlockType": "PAGE"}, line, {"BlockType": "WORD", "Text": "word"}]
        more = {} if NextToken else {"NextToken": "more"}
        return {"JobStatus": "SUCCEEDED", "Blocks": blocks, **more}


async def test_a_job_of_textract_is_started_once_and_awaited() -> None:
    client, clock = Textract(), HurriedClock()
    reader = TextractReader(lambda: client, clock=clock)
    found, entries = await read_by(reader, "scans", "long.pdf", "v7")
    assert found == Reading("first\nsecond", 2, "textract", 0.003)
    assert clock.slept == [2.0, 2.0]
    (started,) = client.started
    assert started["DocumentLocation"] == {
        "S3Object": {"Bucket": "scans", "Name": "long.pdf", "Version": "v7"}
    }
    assert len(started["ClientRequestToken"]) == 64
    recorded = [entry.details["call"] for entry in entries if entry.kind == "call"]
    assert recorded == ["start_text_detection#1", "collect_text#1"]


@pytest.mark.parametrize(
    ("key", "why"), [("long.pdf", "not a PDF"), ("notes.txt", "must be one of .jpeg, .jpg")]
)
async def test_a_document_that_textract_cannot_read(key: str, why: str) -> None:
    client = Textract(fails=True)
    reader = TextractReader(lambda: client, clock=HurriedClock())
    with pytest.raises(RunFailed, match=why):
        await read_by(reader, "scans", key, "v7")


async def test_the_bucket_decides_who_reads(local: Local) -> None:
    class Other:
        async def read(self, ctx: Context, bucket: str, key: str, version: str) -> Reading:
            return Reading(f"{bucket} by textract", 1, "textract")

    readers = Readers(LocalReader(local.folder, local.passwords), Other())
    version = local.folder.save(b"local text")
    assert (await read_by(readers, "local", "a.txt", version))[0].text == "local text"
    assert (await read_by(readers, "scans", "a.pdf", "v"))[0].text == "scans by textract"
