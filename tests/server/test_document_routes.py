"""Routes of projects, documents, workflows and segments; how content is sent to browsers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.model.segment_search import SegmentEntry
from holdfast.server import ServerOptions, asgi
from holdfast.server.downloads import disposition
from tests.server.pipeline_graphs import DOCUMENT_GRAPHS

PDF = b"%PDF-1.7\n" + bytes(5000)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(10)
SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    options = ServerOptions(file_bytes_max=1024**2)
    app = asgi(hf, DOCUMENT_GRAPHS, options=options, worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


@dataclass
class Stored:
    """One document with a workflow and two segments."""

    document: str
    workflow: str
    prefix: str


@pytest.fixture
async def stored(hf: Holdfast, http: httpx.AsyncClient) -> Stored:
    await hf.documents.projects.create("Contracts", id="p")
    answer = await http.post("/v1/projects/p/documents?name=a.pdf", content=PDF)
    assert answer.status_code == 201, answer.text
    upload = answer.json()
    await hf.documents.update_workflow(upload["workflow"], total_segments=3)
    prefix = await hf.documents.blob_prefix(upload["document"])
    return Stored(upload["document"], upload["workflow"], prefix)


async def put_segment(hf: Holdfast, stored: Stored, index: int, **blobs: bytes) -> None:
    uris: dict[str, Any] = {
        name: await hf.documents.files.put_blob(data, name=f"{name}-{index}", prefix=stored.prefix)
        for name, data in blobs.items()
    }
    await hf.documents.put_segment(stored.workflow, index, **uris)


async def test_projects_are_created_changed_and_deleted(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/projects", json={"name": "Contracts", "id": "p"})
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/projects/p"
    assert made.json()["ocr_model"] == "pp-ocrv5"
    again = await http.post("/v1/projects", json={"name": "Contracts", "id": "p"})
    assert again.json() == made.json()
    other = await http.post("/v1/projects", json={"name": "Other", "id": "p"})
    assert (other.status_code, other.json()["code"]) == (409, "id_taken")
    changed = await http.patch("/v1/projects/p", json={"language": "de", "retention_days": 7})
    assert (changed.json()["language"], changed.json()["name"]) == ("de", "Contracts")
    kept = await http.patch("/v1/projects/p", json={"retention_days": None})
    assert (kept.json()["retention_days"], kept.json()["language"]) == (None, "de")
    assert [each["id"] for each in (await http.get("/v1/projects")).json()["projects"]] == ["p"]
    assert (await http.delete("/v1/projects/p")).status_code == 204
    assert (await http.get("/v1/projects/p")).status_code == 404


async def test_a_key_creates_one_project(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "a/b"}
    made = [await http.post("/v1/projects", json={"name": "x"}, headers=headers) for _ in range(2)]
    assert made[0].json() == made[1].json()


async def test_a_streamed_file_becomes_a_document(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    document = (await http.get(f"/v1/documents/{stored.document}")).json()
    assert document["file_type"] == "application/pdf"
    assert document["file_bytes"] == len(PDF)
    listed = (await http.get("/v1/projects/p/documents")).json()
    assert [each["id"] for each in listed["documents"]] == [stored.document]
    run = await hf.run(f"doc-{stored.workflow}").get()
    assert run.graph == "documents"


async def test_a_repeated_request_adds_nothing(http: httpx.AsyncClient, stored: Stored) -> None:
    headers = {"Idempotency-Key": "mail-7"}
    answers = [
        await http.post("/v1/projects/p/documents?name=b.pdf", content=PDF, headers=headers)
        for _ in range(2)
    ]
    assert [each.status_code for each in answers] == [201, 200]
    assert answers[0].json() == answers[1].json()
    assert len((await http.get("/v1/projects/p/documents")).json()["documents"]) == 2


async def test_a_cut_request_can_be_repeated_under_its_key(
    http: httpx.AsyncClient, stored: Stored
) -> None:
    headers = {"Idempotency-Key": "mail-7"}

    async def short() -> AsyncGenerator[bytes, None]:
        yield PDF[:100]

    cut = {**headers, "Content-Length": str(len(PDF))}
    path = "/v1/projects/p/documents?name=b.pdf"
    assert (await http.post(path, content=short(), headers=cut)).status_code == 413
    assert (await http.post(path, content=PDF, headers=headers)).status_code == 201


@pytest.mark.parametrize(
    ("query", "content", "status", "code"),
    [
        ("", PDF, 400, "bad_request"),
        ("?name=", PDF, 400, "bad_request"),
        ("?name=..", PDF, 422, "invalid_request"),
        ("?name=a.exe", PDF, 415, "file_rejected"),
        ("?name=a.pdf", b"", 415, "file_rejected"),
        ("?name=a.pdf", b"MZ" + bytes(100), 415, "file_rejected"),
        ("?name=a.pdf", PDF + bytes(1024**2), 413, "file_too_large"),
    ],
)
async def test_a_file_that_is_refused(
    http: httpx.AsyncClient, stored: Stored, query: str, content: bytes, status: int, code: str
) -> None:
    answer = await http.post(f"/v1/projects/p/documents{query}", content=content)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert len((await http.get("/v1/projects/p/documents")).json()["documents"]) == 1


async def test_a_file_without_a_length_is_refused(http: httpx.AsyncClient, stored: Stored) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield PDF

    answer = await http.post("/v1/projects/p/documents?name=a.pdf", content=chunks())
    assert (answer.status_code, answer.json()["code"]) == (411, "length_required")


async def test_an_address_becomes_a_document(http: httpx.AsyncClient, stored: Stored) -> None:
    body = {"address": "https://example.com/terms"}
    headers = {"Idempotency-Key": "w"}
    made = [
        await http.post("/v1/projects/p/documents", json=body, headers=headers) for _ in range(2)
    ]
    assert [each.status_code for each in made] == [201, 200]
    document = (await http.get(made[0].headers["location"])).json()
    assert (document["kind"], document["file_uri"]) == ("WEB", body["address"])
    assert (await http.get(f"{made[0].headers['location']}/file")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"address": "ftp://example.com"}, 422),
        ({"address": "https://example.com", "uri": "s3://a/b"}, 422),
        ({"uri": "s3://secrets/key"}, 422),
        ({"uri": "file:///etc/passwd"}, 422),
        ({"address": "https://example.com", "more": 1}, 400),
        ({"address": 5}, 400),
        ([], 400),
    ],
)
async def test_a_source_that_is_refused(
    http: httpx.AsyncClient, stored: Stored, body: Any, status: int
) -> None:
    answer = await http.post("/v1/projects/p/documents", json=body)
    assert answer.status_code == status, answer.text


async def test_a_deep_body_is_refused(http: httpx.AsyncClient, stored: Stored) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (b"[" * 10_000, b"{", b"\xff", b"x" * 100_000):
        answer = await http.post("/v1/projects/p/documents", content=content, headers=headers)
        assert answer.status_code in (400, 413)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.pdf", "attachment; filename=\"a.pdf\"; filename*=UTF-8''a.pdf"),
        ('a".pdf', "attachment; filename=\"a_.pdf\"; filename*=UTF-8''a%22.pdf"),
        ("ü.pdf", "attachment; filename=\"_.pdf\"; filename*=UTF-8''%C3%BC.pdf"),
        ("a\r\nX: y.pdf", "attachment; filename=\"aX_ y.pdf\"; filename*=UTF-8''aX%3A%20y.pdf"),
        ("\u202efdp.exe", "attachment; filename=\"fdp.exe\"; filename*=UTF-8''fdp.exe"),
        ("..", "attachment; filename=\"document\"; filename*=UTF-8''document"),
        ("../x", "attachment; filename=\"_x\"; filename*=UTF-8''_x"),
    ],
)
def test_no_name_breaks_out_of_its_header(name: str, expected: str) -> None:
    assert disposition("attachment", name) == expected


async def test_a_file_is_always_a_download(http: httpx.AsyncClient, stored: Stored) -> None:
    page = b"<html><script>alert(1)</script>" + b"x" * 5000
    made = await http.post("/v1/projects/p/documents?name=a.html", content=page)
    assert made.status_code == 201, made.text
    for path in (made.headers["location"], f"/v1/documents/{stored.document}"):
        answer = await http.get(f"{path}/file")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert answer.headers["content-security-policy"] == SANDBOX
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content in (PDF, page)
        head = await http.head(f"{path}/file")
        assert head.headers["content-length"] == str(len(answer.content))
        assert head.content == b""


async def test_an_image_is_shown_in_a_sandbox(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    await put_segment(hf, stored, 1, image_uri=PNG, s3_key=b'{"text": "<script>"}')
    path = f"/v1/document-workflows/{stored.workflow}/segments/1"
    image = await http.get(f"{path}/image")
    assert (image.content, image.headers["content-type"]) == (PNG, "image/png")
    assert image.headers["content-security-policy"] == SANDBOX
    assert image.headers["x-content-type-options"] == "nosniff"
    content = await http.get(f"{path}/content")
    assert content.json() == {"text": "<script>"}
    assert content.headers["content-type"] == "application/json"
    for each in (image, content):
        known = await http.get(each.url.path, headers={"If-None-Match": each.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        other = await http.get(each.url.path, headers={"If-None-Match": '"other"'})
        assert other.status_code == 200


@pytest.mark.parametrize(
    "data", [b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", b"<html>", b""]
)
async def test_what_is_no_image_is_never_shown(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored, data: bytes
) -> None:
    await put_segment(hf, stored, 1, image_uri=data, s3_key=data)
    for what in ("image", "content"):
        path = f"/v1/document-workflows/{stored.workflow}/segments/1/{what}"
        answer = await http.get(path)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert answer.headers["content-security-policy"] == SANDBOX


async def test_a_segment_cannot_lead_out_of_its_tenant(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    elsewhere = hf.documents.place(tenant="eve")
    theirs = await hf.documents.files.put_blob(PNG, name="x", prefix=elsewhere.prefix, tenant="eve")
    for index, uri in enumerate((theirs, "file:///etc/passwd", "https://10.0.0.1/"), 1):
        await hf.documents.put_segment(stored.workflow, index, image_uri=uri, s3_key=uri)
        path = f"/v1/document-workflows/{stored.workflow}/segments/{index}"
        assert (await http.get(f"{path}/image")).status_code == 404
        assert (await http.get(f"{path}/content")).status_code == 404


async def test_segments_are_listed_page_by_page(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    for index in (3, 1, 2):
        await put_segment(hf, stored, index, s3_key=b"{}")
    path = f"/v1/document-workflows/{stored.workflow}/segments"
    first = (await http.get(path, params={"limit": 2})).json()
    assert [each["index"] for each in first["segments"]] == [1, 2]
    rest = (await http.get(path, params={"after": 2})).json()
    assert [each["index"] for each in rest["segments"]] == [3]
    assert (await http.get(f"{path}/2")).json()["status"] == "completed"
    assert (await http.get(f"{path}/3/image")).status_code == 404
    for index in ("0", "-1", "x", "10000000", "4"):
        assert (await http.get(f"{path}/{index}")).status_code in (400, 404), index


async def test_workflows_and_their_steps(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    path = f"/v1/document-workflows/{stored.workflow}"
    assert (await http.get(path)).json()["execution_arn"] == f"doc-{stored.workflow}"
    steps = (await http.get(f"{path}/steps")).json()["steps"]
    assert len(steps) == 10
    assert {each["status"] for each in steps} == {"pending"}
    counts = (await http.get("/v1/document-workflows/counts")).json()
    assert counts == {"pending": 1, "in_progress": 0, "completed": 0, "failed": 0}
    for listed in (
        await http.get("/v1/document-workflows", params={"status": "pending"}),
        await http.get("/v1/projects/p/document-workflows"),
        await http.get(f"/v1/documents/{stored.document}/document-workflows"),
    ):
        assert [each["id"] for each in listed.json()["workflows"]] == [stored.workflow]
    assert (await http.get("/v1/document-workflows")).json()["workflows"] == []


async def test_a_document_is_processed_again(http: httpx.AsyncClient, stored: Stored) -> None:
    path = f"/v1/documents/{stored.document}/document-workflows"
    headers = {"Idempotency-Key": "again"}
    answers = [await http.post(path, headers=headers) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].json()["workflow"] == answers[1].json()["workflow"] != stored.workflow
    assert len((await http.get(path)).json()["workflows"]) == 2


async def test_a_run_that_has_not_failed_is_not_retried(
    http: httpx.AsyncClient, stored: Stored
) -> None:
    path = f"/v1/document-workflows/{stored.workflow}/retry"
    assert (await http.post(path)).json()["code"] == "not_retryable"
    assert (await http.post(path, json={"segment": 4})).status_code == 422
    assert (await http.post("/v1/document-workflows/none/retry")).status_code == 404


async def test_a_deleted_document_is_gone(http: httpx.AsyncClient, stored: Stored) -> None:
    assert (await http.delete(f"/v1/documents/{stored.document}")).status_code == 204
    for path in (
        f"/v1/documents/{stored.document}",
        f"/v1/documents/{stored.document}/file",
        f"/v1/document-workflows/{stored.workflow}",
        f"/v1/document-workflows/{stored.workflow}/segments",
    ):
        assert (await http.get(path)).status_code == 404, path


async def test_segments_are_found_by_their_words(
    http: httpx.AsyncClient, hf: Holdfast, stored: Stored
) -> None:
    assert hf.documents.search is not None
    entry = SegmentEntry(1, "The total amount is 120 EUR.")
    await hf.documents.search.add("default", "p", stored.document, stored.workflow, [entry])
    found = (await http.get("/v1/search", params={"q": "total amount"})).json()["hits"]
    assert [(each["document"], each["index"]) for each in found] == [(stored.document, 1)]
    assert (await http.get("/v1/search")).status_code == 400
    none = await http.get("/v1/search", params={"q": "total", "project": "other"})
    assert none.json() == {"hits": []}
