"""Servers that are killed with -9 in the middle of an upload: another one takes the rest."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import Client
from holdfast.errors import ServerUnavailable
from holdfast.records.document_file import FILE_PART_BYTES
from tests.server.processes import PROMPT, Served, started

PDF = b"%PDF-1.7\n" + random.Random(11).randbytes(3 * FILE_PART_BYTES)
TUS = {"Tus-Resumable": "1.0.0"}
SERVE = ("serve", "tests.server.pipeline_graphs:DOCUMENT_GRAPHS", "--port", "0", *PROMPT)


@pytest.fixture
async def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url) as hf:
        await hf.documents.projects.create("Contracts", id="p")
    return url


async def begin_to_send(
    server: Served, place: str, offset: int, data: bytes
) -> asyncio.StreamWriter:
    """Announce the rest of the file, and send only a part of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.address).port)
    head = (
        f"PATCH {place} HTTP/1.1\r\nHost: 127.0.0.1\r\nTus-Resumable: 1.0.0\r\n"
        f"Upload-Offset: {offset}\r\nContent-Type: application/offset+octet-stream\r\n"
        f"Content-Length: {len(PDF) - offset}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


async def offset_at(server: Served, place: str) -> int:
    async with httpx.AsyncClient(base_url=server.address) as http:
        answer = await http.head(place, headers=TUS)
    assert answer.status_code == 200
    return int(answer.headers["upload-offset"])


async def test_the_offset_survives_kills_and_another_server_goes_on(url: str) -> None:
    place, kept = "", 0
    for _ in range(2):
        async with started(*SERVE, "--url", url) as server:
            await server.serves()
            if not place:
                told = f"project {_text('p')},filename {_text('a.pdf')}"
                headers = {**TUS, "Upload-Length": str(len(PDF)), "Upload-Metadata": told}
                async with httpx.AsyncClient(base_url=server.address) as http:
                    created = await http.post("/v1/uploads", headers=headers)
                place = created.headers["location"]
            # What a process acknowledged before its death is still there.
            assert await offset_at(server, place) == kept
            piece = PDF[kept : kept + FILE_PART_BYTES + 999]
            writer = await begin_to_send(server, place, kept, piece)
            while await offset_at(server, place) == kept:
                pass  # each request gives the server time to store the part
            kept += FILE_PART_BYTES
            server.process.kill()
            await server.process.wait()
            writer.close()
    async with started(*SERVE, "--url", url) as server, httpx.AsyncClient() as http:
        await server.serves()
        assert await offset_at(server, place) == kept == 2 * FILE_PART_BYTES
        headers = {
            **TUS,
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(kept),
        }
        answer = await http.patch(
            server.address + place, content=PDF[kept:], headers=headers, timeout=30
        )
        assert answer.status_code == 204, answer.text
    await assert_one_document(url)


async def test_the_client_goes_on_with_the_next_server(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    await asyncio.to_thread(path.write_bytes, PDF)
    async with started(*SERVE, "--url", url) as server:
        await server.serves()
        async with Client(server.address, timeout=1) as client:
            sending = asyncio.create_task(client.documents.add(path, project="p", id="mail-7"))
            async with Holdfast(url) as hf:
                while not [each async for each in _parts(hf)]:
                    await asyncio.wait([sending], timeout=0.01)
            server.process.kill()
            await server.process.wait()
            try:
                await sending
            except ServerUnavailable:
                pass
            else:  # it was faster than the kill
                await assert_one_document(url)
    async with started(*SERVE, "--url", url) as server:
        await server.serves()
        async with Client(server.address) as client:
            done = await client.documents.add(path, project="p", id="mail-7")
            assert (done.status, done.offset) == ("processed", len(PDF))
    await assert_one_document(url)


async def _parts(hf: Holdfast):
    blobs = hf._services.kernel.store.blobs  # pyright: ignore[reportPrivateUsage]
    for entry in (await blobs.list("documents/")).entries:
        yield entry


async def assert_one_document(url: str) -> None:
    async with Holdfast(url) as hf:
        (document,) = (await hf.documents.list("p")).documents
        content = [part async for part in hf.documents.files.read(document.file_uri)]
        assert b"".join(content) == PDF
        (run,) = (await hf.list()).runs
        assert run.id == f"doc-{document.workflow}"
        assert len((await hf.documents.workflows(document=document.id)).workflows) == 1


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()
