"""Proxies and further certificates, found where botocore finds them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from holdfast.errors import EndpointUnreachable, StoreUnusable
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.layout import Key
from holdfast.storage.operations import GetItem
from tests.dynamodb.certificates import self_signed
from tests.dynamodb.conftest import Open
from tests.servers.stub_dynamodb import Stub

GET = GetItem(Key("p", "s"), eventual=False)


async def test_a_proxy_is_asked(
    open_engine: Open, other: DynamoEngine, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", stub.endpoint)
    monkeypatch.setenv("NO_PROXY", "localhost")
    # The host is known to nobody: only who stands between can have answered.
    answer = await open_engine("http://dynamodb.invalid:8000").perform(GET)
    assert answer.value is None
    (asked,) = stub.asked_for("GetItem")
    assert asked.headers["host"] == "dynamodb.invalid:8000"


async def test_no_proxy_is_asked_where_none_is_wanted(
    open_engine: Open, other: DynamoEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert (await open_engine().perform(GET)).value is None


async def test_further_certificates_are_trusted(
    open_engine: Open,
    other: DynamoEngine,
    stub: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate = self_signed(tmp_path / "certificate.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with await asyncio.start_server(stub.serve, "127.0.0.1", 0, ssl=tls) as server:
        endpoint = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EndpointUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await open_engine(endpoint).perform(GET)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        engine = open_engine(endpoint)
        assert (await engine.perform(GET)).value is None
        await engine.close()


async def test_certificates_that_are_not_there(
    open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(StoreUnusable, match=r"none\.pem"):
        await open_engine("https://127.0.0.1:1").perform(GET)


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "200 OK"])
async def test_no_error_shows_the_password_of_a_proxy(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        proxy = f"http://user:s3cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(EndpointUnreachable) as failed:
            await open_engine("https://dynamodb.invalid").perform(GET)
    told = ""
    each: BaseException | None = failed.value
    while each is not None:
        told += f"{each!r} {each} "
        each = each.__cause__ or each.__context__
    assert "cannot be reached" in told
    assert "s3cret" not in told
