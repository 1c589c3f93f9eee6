"""Uploads as tus 1.0.0 has them: what a client may rely on, and what a hostile one gets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.model.document import Project
from holdfast.records.document_file import FILE_PART_BYTES
from holdfast.server import ServerOptions, asgi
from tests.server.callers import bearer, key_for, listening
from tests.server.pipeline_graphs import DOCUMENT_GRAPHS

PDF = b"%PDF-1.7\n" + random.Random(7).randbytes(FILE_PART_BYTES + 1000)
TUS = {"Tus-Resumable": "1.0.0"}
PIECE = {**TUS, "Content-Type": "application/offset+octet-stream"}


@asynccontextmanager
async def serving(hf: Holdfast, options: ServerOptions) -> AsyncIterator[httpx.AsyncClient]:
    app = asgi(hf, DOCUMENT_GRAPHS, options=options, worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(hf, ServerOptions(file_bytes_max=8 * 1024**2)) as client:
        yield client


@pytest.fixture
async def project(hf: Holdfast) -> Project:
    return await hf.documents.projects.create("Contracts", id="p")


def metadata(**given: str) -> str:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
    return ",".join(f"{key} {value}" for key, value in encoded.items())


def creation(length: int | str = len(PDF), **given: str) -> dict[str, str]:
    told = metadata(**{"project": "p", "filename": "a.pdf", **given})
    return {**TUS, "Upload-Length": str(length), "Upload-Metadata": told}


async def created(http: httpx.AsyncClient, length: int = len(PDF)) -> str:
    answer = await http.post("/v1/uploads", headers=creation(length))
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


async def offset_at(http: httpx.AsyncClient, place: str) -> int:
    answer = await http.head(place, headers=TUS)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["upload-length"] == str(len(PDF))
    return int(answer.headers["upload-offset"])


async def test_what_the_server_can_do_needs_no_credentials(hf: Holdfast) -> None:
    async with serving(hf, ServerOptions(authentication=True)) as http:
        answer = await http.options("/v1/uploads")
        assert answer.status_code == 204
        assert answer.headers["tus-version"] == "1.0.0"
        assert answer.headers["tus-max-size"] == str(1024**3)
        assert answer.headers["tus-checksum-algorithm"] == "sha1,sha256"
        assert set(answer.headers["tus-extension"].split(",")) == {
            "creation",
            "creation-with-upload",
            "termination",
            "checksum",
            "expiration",
        }
        assert (await http.post("/v1/uploads", headers=creation())).status_code == 401


async def test_an_upload_in_pieces(http: httpx.AsyncClient, hf: Holdfast, project: Project) -> None:
    place = await created(http)
    assert await offset_at(http, place) == 0
    for start in range(0, len(PDF), 1_500_000):
        answer = await http.patch(
            place,
            content=PDF[start : start + 1_500_000],
            headers={**PIECE, "Upload-Offset": str(start)},
        )
        assert answer.status_code == 204, answer.text
        assert answer.headers["upload-offset"] == str(min(start + 1_500_000, len(PDF)))
        assert answer.headers["tus-resumable"] == "1.0.0"
    upload = (await http.get(place)).json()
    assert upload["status"] == "processed"
    document = await hf.documents.get(upload["document"])
    assert (document.file_name, document.file_type) == ("a.pdf", "application/pdf")
    assert document.workflow == upload["workflow"]
    run = await hf.run(f"doc-{upload['workflow']}").get()
    assert run.graph == "documents"
    assert (await hf.documents.workflow(upload["workflow"])).execution_arn == run.id
    assert [each.id for each in (await hf.list()).runs] == [run.id]
    content = [part async for part in hf.documents.files.read(document.file_uri)]
    assert b"".join(content) == PDF


async def test_a_creation_with_all_of_the_file(
    http: httpx.AsyncClient, hf: Holdfast, project: Project
) -> None:
    headers = {**creation(), **PIECE}
    answer = await http.post("/v1/uploads", content=PDF, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.headers["upload-offset"] == str(len(PDF))
    assert answer.json()["status"] == "processed"
    assert (await hf.documents.list("p")).documents[0].id == answer.json()["document"]


async def test_a_creation_is_repeated_by_its_key(http: httpx.AsyncClient, project: Project) -> None:
    headers = {**creation(), "Idempotency-Key": "mail-7"}
    answers = [await http.post("/v1/uploads", headers=headers) for _ in range(2)]
    assert answers[0].headers["location"] == answers[1].headers["location"]
    other = await http.post("/v1/uploads", headers={**headers, "Upload-Length": "7"})
    assert other.status_code == 409


async def test_the_expiry_is_told_until_the_upload_is_complete(
    http: httpx.AsyncClient, project: Project
) -> None:
    place = await created(http)
    assert "GMT" in (await http.head(place, headers=TUS)).headers["upload-expires"]
    headers = {**PIECE, "Upload-Offset": "0"}
    answer = await http.patch(place, content=PDF, headers=headers)
    assert "upload-expires" not in answer.headers


OTHER_VERSIONS = [None, "0.2.2", "1.0.0, 1.0.0", "1"]


async def test_another_version_is_refused_everywhere(
    http: httpx.AsyncClient, project: Project
) -> None:
    for version in OTHER_VERSIONS:
        place = await created(http)
        given = {} if version is None else {"Tus-Resumable": version}
        answers = [
            await http.post("/v1/uploads", headers={**creation(), "Tus-Resumable": "", **given}),
            await http.head(place, headers=given),
            await http.patch(
                place,
                content=b"%",
                headers={
                    "Upload-Offset": "0",
                    "Content-Type": "application/offset+octet-stream",
                    **given,
                },
            ),
            await http.delete(place, headers=given),
        ]
        assert [each.status_code for each in answers] == [412] * 4
        assert answers[0].headers["tus-version"] == "1.0.0"
        assert await offset_at(http, place) == 0


BAD_LENGTHS = [
    "",
    "-1",
    "+5",
    "1.5",
    "0x10",
    "1e3",
    "9" * 17,
    "9" * 4000,
    "٣",
    "5, 5",
    "abc",
]


async def test_a_length_that_is_none(http: httpx.AsyncClient, project: Project) -> None:
    for length in BAD_LENGTHS:
        headers = [(key.encode(), value.encode()) for key, value in creation(length).items()]
        answer = await http.post("/v1/uploads", headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_length_that_is_told_later_is_refused(
    http: httpx.AsyncClient, project: Project
) -> None:
    headers = {**creation(), "Upload-Defer-Length": "1"}
    del headers["Upload-Length"]
    assert (await http.post("/v1/uploads", headers=headers)).status_code == 400


async def test_a_file_that_is_too_large_is_refused_at_once(
    http: httpx.AsyncClient, project: Project
) -> None:
    answer = await http.post("/v1/uploads", headers=creation(8 * 1024**2 + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "file_too_large")


BAD_METADATA = [
    "",
    "project",
    "project cA==",
    "filename YS5wZGY=",
    "project cA==,filename",
    "project cA==,filename %%%",
    "project cA==,filename /w==",
    "project cA==,project cA==,filename YS5wZGY=",
    "project cA==,,filename YS5wZGY=",
    "project cA==,filename YS5wZGY=,x " + "A" * 8192,
    ",".join(f"k{number} YQ==" for number in range(500)),
    "project cA==,filename YS5wZGY=,\xff YQ==",
]


async def test_metadata_that_is_none(http: httpx.AsyncClient, project: Project) -> None:
    for told in BAD_METADATA:
        headers = {**TUS, "Upload-Length": "5", "Upload-Metadata": told}
        raw = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        answer = await http.post("/v1/uploads", headers=raw)
        assert answer.status_code == 400, answer.text


HOSTILE_NAMES = [
    ("../../etc/passwd.pdf", "passwd.pdf"),
    ("C:\\windows\\a.pdf", "a.pdf"),
    ('<img src=x onerror="alert(1)">.pdf', '<img src=x onerror="alert(1)">.pdf'),
    ("\u202efdp.exe.pdf", "\u202efdp.exe.pdf"),
]


async def test_a_hostile_name_is_only_a_name(http: httpx.AsyncClient, project: Project) -> None:
    for name, kept in HOSTILE_NAMES:
        answer = await http.post("/v1/uploads", headers=creation(5, filename=name))
        assert (answer.status_code, answer.json()["name"]) == (201, kept)


BAD_NAMES = ["..", "/", "a\r\nSet-Cookie: x.pdf", "a\0.pdf", "x" * 600]


async def test_a_name_that_no_file_has(http: httpx.AsyncClient, project: Project) -> None:
    for name in BAD_NAMES:
        answer = await http.post("/v1/uploads", headers=creation(5, filename=name))
        assert answer.status_code == 422, answer.text


async def test_an_unknown_project_and_an_unknown_pipeline(
    http: httpx.AsyncClient, hf: Holdfast, project: Project
) -> None:
    answer = await http.post("/v1/uploads", headers=creation(5, project="none"))
    assert (answer.status_code, answer.json()["code"]) == (404, "project_not_found")
    await hf.documents.projects.create("Other", id="q", pipeline="nobody-has-it")
    answer = await http.post("/v1/uploads", headers=creation(5, project="q"))
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_graph")
    assert "nobody-has-it" in answer.json()["detail"]


BAD_OFFSETS = ["", "-1", "+0", "0.0", "0x0", "9" * 40, "1 0"]


async def test_an_offset_that_is_none(http: httpx.AsyncClient, project: Project) -> None:
    for offset in BAD_OFFSETS:
        place = await created(http)
        answer = await http.patch(place, content=PDF, headers={**PIECE, "Upload-Offset": offset})
        assert answer.status_code == 400, answer.text
        assert await offset_at(http, place) == 0


async def test_a_request_without_an_offset_or_with_two(
    http: httpx.AsyncClient, project: Project
) -> None:
    place = await created(http)
    assert (await http.patch(place, content=PDF, headers=PIECE)).status_code == 400
    twice = [*PIECE.items(), ("Upload-Offset", "0"), ("Upload-Offset", "0")]
    assert (await http.patch(place, content=PDF, headers=twice)).status_code == 400
    assert await offset_at(http, place) == 0


OTHER_OFFSETS = [1, len(PDF), 10**15]


async def test_another_offset_is_a_conflict(http: httpx.AsyncClient, project: Project) -> None:
    for offset in OTHER_OFFSETS:
        place = await created(http)
        headers = {**PIECE, "Upload-Offset": str(offset)}
        answer = await http.patch(place, content=b"%", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "upload_conflict")


async def test_a_body_that_is_too_long_is_refused(
    http: httpx.AsyncClient, project: Project
) -> None:
    place = await created(http)
    headers = {**PIECE, "Upload-Offset": "0"}
    answer = await http.patch(place, content=PDF + b"x", headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")

    async def endless() -> AsyncGenerator[bytes, None]:  # without a Content-Length
        for _ in range(10):
            yield PDF

    answer = await http.patch(place, content=endless(), headers=headers)
    assert answer.status_code == 413
    assert await offset_at(http, place) in (0, FILE_PART_BYTES)


OTHER_TYPES = [
    "",
    "application/octet-stream",
    "application/json",
    "text/html",
]


async def test_a_body_of_another_type_is_refused(http: httpx.AsyncClient, project: Project) -> None:
    for kind in OTHER_TYPES:
        place = await created(http)
        headers = {**TUS, "Upload-Offset": "0", "Content-Type": kind}
        assert (await http.patch(place, content=PDF, headers=headers)).status_code == 415
        answer = await http.post(
            "/v1/uploads", content=PDF, headers={**creation(), "Content-Type": kind}
        )
        assert answer.status_code == 415
        assert await offset_at(http, place) == 0


async def test_a_wrong_checksum_is_460(http: httpx.AsyncClient, project: Project) -> None:
    place = await created(http)
    for algorithm in ("sha1", "sha256"):
        wrong = base64.b64encode(hashlib.new(algorithm, b"other").digest()).decode()
        headers = {**PIECE, "Upload-Offset": "0", "Upload-Checksum": f"{algorithm} {wrong}"}
        answer = await http.patch(place, content=PDF, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (460, "checksum_mismatch")
        assert await offset_at(http, place) == 0
    for text in ("md5 AAAA", "sha1 AAAA", "sha1", "sha1 " + "A" * 4096):
        headers = {**PIECE, "Upload-Offset": "0", "Upload-Checksum": text}
        assert (await http.patch(place, content=PDF, headers=headers)).status_code == 400
    right = base64.b64encode(hashlib.sha1(PDF, usedforsecurity=False).digest()).decode()
    headers = {**PIECE, "Upload-Offset": "0", "Upload-Checksum": f"sha1 {right}"}
    assert (await http.patch(place, content=PDF, headers=headers)).status_code == 204


async def test_a_file_that_is_not_accepted_is_415(
    http: httpx.AsyncClient, hf: Holdfast, project: Project
) -> None:
    place = await created(http, 5000)
    headers = {**PIECE, "Upload-Offset": "0"}
    answer = await http.patch(place, content=b"MZ" + bytes(4998), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "file_rejected")
    answer = await http.get(place)
    assert answer.json()["status"] == "rejected"
    assert answer.json()["error"]
    assert (await hf.documents.list("p")).documents == []


async def test_a_terminated_upload_is_gone(http: httpx.AsyncClient, project: Project) -> None:
    place = await created(http)
    await http.patch(place, content=PDF[:100], headers={**PIECE, "Upload-Offset": "0"})
    assert (await http.delete(place, headers=TUS)).status_code == 204
    assert (await http.head(place, headers=TUS)).status_code == 404
    headers = {**PIECE, "Upload-Offset": "100"}
    assert (await http.patch(place, content=b"x", headers=headers)).status_code == 404
    assert (await http.delete(place, headers=TUS)).status_code == 404


BAD_IDS = ["none", "..", "%2e%2e", "a%23b", "x" * 200, "%00"]


async def test_an_upload_that_is_none(http: httpx.AsyncClient) -> None:
    for id in BAD_IDS:
        for answer in (
            await http.head(f"/v1/uploads/{id}", headers=TUS),
            await http.patch(
                f"/v1/uploads/{id}", content=b"x", headers={**PIECE, "Upload-Offset": "0"}
            ),
        ):
            assert answer.status_code in (400, 404, 405, 422)


async def test_another_tenant_finds_nothing(hf: Holdfast) -> None:
    await hf.documents.projects.create("Contracts", id="p", tenant="a")
    mine, other = await key_for(hf, tenant="a"), await key_for(hf, tenant="b")
    async with serving(hf, ServerOptions(authentication=True)) as http:
        answer = await http.post("/v1/uploads", headers={**creation(), **bearer(mine)})
        place = answer.headers["location"]
        stranger = bearer(other)
        headers = {**PIECE, "Upload-Offset": "0", **stranger}
        assert (await http.head(place, headers={**TUS, **stranger})).status_code == 404
        assert (await http.patch(place, content=PDF, headers=headers)).status_code == 404
        assert (await http.delete(place, headers={**TUS, **stranger})).status_code == 404
        assert (
            await http.post("/v1/uploads", headers={**creation(), **stranger})
        ).status_code == 404
        assert await offset_at_as(http, place, bearer(mine)) == 0


async def offset_at_as(http: httpx.AsyncClient, place: str, headers: dict[str, str]) -> int:
    answer = await http.head(place, headers={**TUS, **headers})
    return int(answer.headers["upload-offset"])


@asynccontextmanager
async def reachable(
    hf: Holdfast, options: ServerOptions
) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    app = asgi(hf, DOCUMENT_GRAPHS, options=options, worker=False)
    async with (
        app.lifespan(),
        listening(app, options) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        yield http, port


async def begin_to_send(
    port: int, place: str, data: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Announce the whole file, and send only a part of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"PATCH {place} HTTP/1.1\r\nHost: 127.0.0.1\r\nTus-Resumable: 1.0.0\r\n"
        f"Upload-Offset: 0\r\nContent-Type: {PIECE['Content-Type']}\r\n"
        f"Content-Length: {len(PDF)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def test_a_cut_connection_keeps_what_has_come(
    hf: Holdfast, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, is_over = hf.documents.uploads.append, asyncio.Event()

    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return await append(*args, **kwargs)
        finally:
            is_over.set()

    monkeypatch.setattr(hf.documents.uploads, "append", watched)
    async with reachable(hf, ServerOptions()) as (http, port):
        place = await created(http)
        _, writer = await begin_to_send(port, place, PDF[: FILE_PART_BYTES + 500])
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(20):
            await is_over.wait()
        offset = await offset_at(http, place)
        assert FILE_PART_BYTES <= offset <= FILE_PART_BYTES + 500
        headers = {**PIECE, "Upload-Offset": str(offset)}
        answer = await http.patch(place, content=PDF[offset:], headers=headers)
        assert answer.status_code == 204, answer.text
        assert (await http.get(place)).json()["status"] == "processed"


async def test_a_sender_that_falls_silent_is_408_and_keeps_what_came(
    hf: Holdfast, project: Project
) -> None:
    async with reachable(hf, ServerOptions(body_seconds=0.3)) as (http, port):
        place = await created(http)
        reader, writer = await begin_to_send(port, place, PDF[:1000])
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        assert await offset_at(http, place) == 1000


async def test_two_servers_take_turns(tmp_path: Path) -> None:
    async with (
        Holdfast(f"sqlite:///{tmp_path}/shared.db") as first,
        Holdfast(f"sqlite:///{tmp_path}/shared.db") as second,
    ):
        await first.documents.projects.create("Contracts", id="p")
        async with serving(first, ServerOptions()) as one, serving(second, ServerOptions()) as two:
            place = await created(one)
            for turn, start in enumerate(range(0, len(PDF), 700_000)):
                http = two if turn % 2 else one
                assert await offset_at(http, place) == start
                headers = {**PIECE, "Upload-Offset": str(start)}
                piece = PDF[start : start + 700_000]
                answer = await http.patch(place, content=piece, headers=headers)
                assert answer.status_code == 204, answer.text
            assert (await one.get(place)).json() == (await two.get(place)).json()
        assert len((await first.documents.list("p")).documents) == 1
        assert len((await second.list()).runs) == 1
