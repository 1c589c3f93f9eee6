"""Files of documents: streamed in and out in parts, verified, and never half there."""

from __future__ import annotations

import hashlib
import os
import random
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.documents.file_parts import PartBuffer
from holdfast.documents.files import DocumentFiles, validated_file_name
from holdfast.documents.outside_files import OutsideFiles, s3_uri
from holdfast.errors import (
    BlobDamaged,
    FileTooLarge,
    InvalidRequest,
    StoredFileNotFound,
)
from holdfast.records.document_file import FILE_PART_BYTES
from tests.documents.intake_fake import FakeDocuments, intake

PART = FILE_PART_BYTES


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
def files(hf: Holdfast) -> DocumentFiles:
    return intake(hf, FakeDocuments())[0]


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def read_all(files: DocumentFiles, uri: str) -> bytes:
    return b"".join([part async for part in files.read(uri)])


def blob_paths(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file() and "parts" in str(path)]


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART + 5])
async def test_a_file_comes_back_as_it_was_put(files: DocumentFiles, size: int) -> None:
    data = content(size)
    chunks = [data[start : start + 100_003] for start in range(0, size, 100_003)]
    file = await files.put(chunks, name="a.pdf")
    assert (file.bytes, file.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert await read_all(files, file.uri) == data
    assert await files.get(file.uri) == file


async def test_no_part_is_larger_than_four_megabytes(files: DocumentFiles, tmp_path: Path) -> None:
    file = await files.put(content(2 * PART + 5), name="a.pdf")
    assert [len(part) async for part in files.read(file.uri)] == [PART, PART, 5]
    assert sorted(path.stat().st_size for path in blob_paths(tmp_path)) == [5, PART, PART]


async def test_memory_does_not_grow_with_the_file(files: DocumentFiles) -> None:
    async def many() -> AsyncGenerator[bytes, None]:
        chunk = bytes(1024**2)
        for _ in range(48):
            yield chunk

    tracemalloc.start()
    try:
        file = await files.put(many(), name="zeros.txt")
        async for _ in files.read(file.uri):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.bytes == 48 * 1024**2
    assert peak < 6 * PART


async def test_a_file_that_is_too_large_leaves_nothing(
    files: DocumentFiles, tmp_path: Path
) -> None:
    with pytest.raises(FileTooLarge, match="at most 5,000,000 bytes"):
        await files.put([content(PART), content(PART)], name="a.pdf", bytes_max=5_000_000)
    assert blob_paths(tmp_path) == []


async def test_an_interrupted_put_leaves_nothing(files: DocumentFiles, tmp_path: Path) -> None:
    async def cut() -> AsyncGenerator[bytes, None]:
        yield content(PART + 1)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await files.put(cut(), name="a.pdf")
    assert blob_paths(tmp_path) == []


@pytest.mark.parametrize("how", ["changed", "short", "missing"])
async def test_a_damaged_part_is_noticed(files: DocumentFiles, tmp_path: Path, how: str) -> None:
    file = await files.put(content(PART + 10), name="a.pdf")
    small = min(blob_paths(tmp_path), key=lambda path: path.stat().st_size)
    if how == "missing":
        small.unlink()
    else:
        small.write_bytes(bytes(10) if how == "changed" else b"1")
    with pytest.raises(BlobDamaged):
        await read_all(files, file.uri)
    target = tmp_path / "out.pdf"
    target.write_bytes(b"before")
    with pytest.raises(BlobDamaged):
        await files.download(file.uri, target)
    assert target.read_bytes() == b"before"
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")] == []


async def test_a_download_replaces_the_file_at_once(files: DocumentFiles, tmp_path: Path) -> None:
    data = content(PART + 10)
    file = await files.put(data, name="a.pdf")
    target = tmp_path / "out.pdf"
    target.write_bytes(b"before")
    assert await files.download(file.uri, target) == file
    assert target.read_bytes() == data


async def test_another_tenant_has_no_such_file(files: DocumentFiles) -> None:
    file = await files.put(b"secret", name="a.txt")
    for uri in (file.uri, file.uri.replace("/default/", "/eve/")):
        with pytest.raises(StoredFileNotFound):
            async for _ in files.read(uri, tenant="eve"):
                pass
        with pytest.raises(StoredFileNotFound):
            await files.read_blob(uri, tenant="eve")
    with pytest.raises(StoredFileNotFound):
        await files.delete(file.uri, tenant="eve")
    assert await read_all(files, file.uri) == b"secret"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        5,
        None,
        "file:///etc/passwd",
        "blob:documents/default/../eve/x?sha256=" + "0" * 64 + "&bytes=1",
        "blob:documents/default/%2e%2e/eve/x?sha256=" + "0" * 64 + "&bytes=1",
        "blob:keep-10d/probe?sha256=" + "0" * 64 + "&bytes=1",
        "blob:documents/default/a?sha256=" + "0" * 64 + "&bytes=99999999999",
        "s3://elsewhere/key",
    ],
)
async def test_an_address_that_is_not_a_file(files: DocumentFiles, uri: str) -> None:
    with pytest.raises((StoredFileNotFound, InvalidRequest)):
        async for _ in files.read(uri):
            pass
    with pytest.raises((StoredFileNotFound, InvalidRequest)):
        await files.get(uri)


async def test_a_deleted_file_is_gone(files: DocumentFiles, tmp_path: Path) -> None:
    file = await files.put(content(10), name="a.pdf")
    other = await files.put(content(10), name="b.pdf")
    await files.delete(file.uri)
    await files.delete(file.uri)
    with pytest.raises(StoredFileNotFound):
        await read_all(files, file.uri)
    assert await read_all(files, other.uri) == content(10)
    assert len(blob_paths(tmp_path)) == 1


async def test_small_blobs_are_read_by_their_address(hf: Holdfast) -> None:
    documents = FakeDocuments()
    files, _ = intake(hf, documents)
    place = documents.place(tenant="default")
    uri = await files.put_blob(b"{}", name="segments/0001.json", prefix=place.prefix)
    assert await files.read_blob(uri) == b"{}"
    again = await files.put_blob(b"[]", name="segments/0001.json", prefix=place.prefix)
    assert await files.read_blob(again) == b"[]"
    with pytest.raises(BlobDamaged):
        await files.read_blob(uri)
    with pytest.raises(InvalidRequest):
        await files.put_blob(b"", name="x", prefix="documents/eve/d/g/")


async def test_a_local_file_must_be_a_file(files: DocumentFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="must be a file"):
        await files.put_path(tmp_path / "pipe")
    with pytest.raises(OSError, match="directory"):
        await files.put_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        await files.put_path(tmp_path / "none")
    (tmp_path / "a.txt").write_bytes(b"hi")
    file = await files.put_path(tmp_path / "a.txt")
    assert (file.name, await read_all(files, file.uri)) == ("a.txt", b"hi")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a\nb", "a\0b", "x" * 513, "\ud800", 5, None])
def test_a_name_that_no_file_has(name: str) -> None:
    with pytest.raises(InvalidRequest):
        validated_file_name(name)


@pytest.mark.parametrize(
    ("name", "last"),
    [("../../etc/passwd", "passwd"), (r"C:\temp\a.pdf", "a.pdf"), ("übung 1.pdf", "übung 1.pdf")],
)
def test_only_the_last_part_of_a_path_is_the_name(name: str, last: str) -> None:
    assert validated_file_name(name) == last


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40)), st.integers(1, 16))
def test_parts_are_full_and_nothing_is_lost(chunks: list[bytes], size: int) -> None:
    buffer = PartBuffer(size)
    parts = [part for chunk in chunks for part in buffer.add(chunk)]
    assert all(len(part) == size for part in parts)
    rest = buffer.take()
    assert len(rest) < size
    assert b"".join([*parts, rest]) == b"".join(chunks)


def test_only_permitted_buckets_are_read() -> None:
    outside = OutsideFiles(("inbox",))
    outside.check(s3_uri("inbox", "a b/ü.pdf", "v1"))
    for uri in ("s3://other/key", "s3://inbox", "s3:///key", "s3://inbox.evil/key"):
        with pytest.raises(InvalidRequest):
            outside.check(uri)
