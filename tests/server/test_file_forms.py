"""Forms with files: split anywhere, cut anywhere, and with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.exceptions import ClientException, HTTPException

from holdfast.server.pages.documents.file_form import FileForm
from holdfast.server.request_body import RequestBody

FIELDS = {"form_token": "v1.abc", "end": "1"}


def request_of(data: bytes, name: str = "a.pdf", fields: dict[str, str] | None = None) -> Any:
    """Return a request as a client of the field sends it."""
    file = {"file": (name, data, "application/pdf")}
    request = httpx.Request("POST", "http://x", data=fields or FIELDS, files=file)
    return request.read(), request.headers["content-type"]


def form_of(body: bytes, kind: str, *, sizes: list[int], says: int | None = None) -> FileForm:
    """Return the form of a body that arrives in pieces of these sizes."""
    pieces = list(pieces_of(body, sizes))

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    size = len(body) if says is None else says
    return FileForm(RequestBody(receive, size=size, seconds=5), kind)


def pieces_of(body: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield body[at : at + size]
        at += size
    yield body[at:]


async def read(form: FileForm, into: bytearray | None = None) -> bytes:
    found = bytearray() if into is None else into
    await form.open()
    async for piece in form.content():
        found += piece
    return bytes(found)


CONTENTS = st.binary(max_size=300) | st.lists(
    st.sampled_from([b"\r\n", b"--", b"\r\n--x", b"a"]), max_size=40
).map(b"".join)


@given(CONTENTS, st.lists(st.integers(0, 200), max_size=8))
async def test_a_file_arrives_as_it_was_however_it_is_split(data: bytes, sizes: list[int]) -> None:
    body, kind = request_of(data)
    form = form_of(body, kind, sizes=sizes)
    assert await read(form) == data
    assert form.fields == FIELDS
    assert (form.file_name, form.file_type) == ("a.pdf", "application/pdf")


@given(st.integers(0, 700))
async def test_a_cut_form_is_no_file(size: int) -> None:
    body, kind = request_of(b"x" * 300)
    if size >= len(body):
        return
    got = bytearray()
    form = form_of(body[:size], kind, sizes=[50] * 20, says=len(body))
    with pytest.raises(ClientException):
        await read(form, got)
    assert len(got) < 300  # the last piece never comes before the end was seen


async def test_a_form_that_is_cut_after_its_file_is_no_file() -> None:
    body, kind = request_of(b"x" * 300)
    begin = body.index(b"x" * 300)
    got = bytearray()
    form = form_of(body[: begin + 305], kind, sizes=[begin, 300], says=len(body))
    with pytest.raises(ClientException):
        await read(form, got)
    assert len(got) < 300


@pytest.mark.parametrize("says", [-1, +1, -400, +400])
async def test_a_request_that_lies_about_its_length_is_no_file(says: int) -> None:
    body, kind = request_of(b"x" * 300)
    form = form_of(body, kind, sizes=[200], says=len(body) + says)
    with pytest.raises(ClientException):
        await read(form)


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("C:\\docs\\a.pdf", "a.pdf"),
        ("../../etc/passwd", "passwd"),
        ('a"b.pdf', 'a"b.pdf'),
        ("gpj.\u202efdp", "gpj.\u202efdp"),
        ("<script>.pdf", "<script>.pdf"),
        ("n" * 1000, "n" * 1000),
    ],
)
async def test_names_lose_their_folders_and_nothing_else(sent: str, name: str) -> None:
    body, kind = request_of(b"x", sent)
    form = form_of(body, kind, sizes=[])
    await form.open()
    assert form.file_name == name


async def test_what_is_no_form_with_a_file_is_refused() -> None:
    body, kind = request_of(b"x")
    for wrong in ("application/json", "multipart/form-data", kind + "; a=b", ""):
        with pytest.raises(HTTPException) as raised:
            form_of(body, wrong, sizes=[])
        assert raised.value.status_code == 415
    for other in (b"", b"{}", b"--", body.replace(b"\r\n", b"\n"), b"a" * 200_000):
        with pytest.raises(ClientException):
            await read(form_of(other, kind, sizes=[1000] * 300))


async def test_texts_have_a_bound() -> None:
    body, kind = request_of(b"x", fields={"form_token": "y" * 100_000})
    with pytest.raises(ClientException):
        await form_of(body, kind, sizes=[1000] * 200).open()


async def test_draining_stops_at_a_limit() -> None:
    body, kind = request_of(b"x" * 50_000)
    form = form_of(body, kind, sizes=[1000] * 60)
    await form.open()
    await form.drain(10_000)
    assert len(await rest_of(form)) > 30_000


async def rest_of(form: FileForm) -> bytes:
    return b"".join([piece async for piece in form._chunks])
