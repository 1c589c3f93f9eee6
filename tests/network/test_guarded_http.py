"""The client checks the address that it connects to, whatever a name means."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.errors import TargetRefused
from holdfast.network.addresses import AllowList
from holdfast.network.guarded_http import guarded_client
from tests.network.receiver import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


class Resolver:
    """Answers each question for a name with the next of the given lists."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_a_listed_receiver_is_reached(receiver: Receiver) -> None:
    async with guarded_client(AllowList([receiver.host]), timeout_seconds=5) as client:
        assert (await client.post(receiver.url, content=b"x")).status_code == 200
    assert receiver.requests[0].body == b"x"


async def test_no_log_shows_the_path_of_a_request(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with guarded_client(AllowList([receiver.host]), timeout_seconds=5) as client:
        await client.post(f"{receiver.url}/T0/secret?token=secret", content=b"x")
    assert receiver.requests[0].path.endswith("/T0/secret?token=secret")
    assert f"HTTP Request: POST http://{receiver.host}/ " in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_list_is_empty_by_default(receiver: Receiver, scheme: str) -> None:
    async with guarded_client(AllowList(), timeout_seconds=5) as client:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(TargetRefused):
                await client.post(f"{scheme}://{host}:{receiver.port}/")
    assert receiver.requests == []


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0", "[::1]"])
async def test_other_spellings_of_loopback_are_refused(receiver: Receiver, host: str) -> None:
    async with guarded_client(AllowList(), timeout_seconds=5) as client:
        with pytest.raises((TargetRefused, httpx.ConnectError, httpx.InvalidURL)):
            await client.post(f"https://{host}:{receiver.port}/")
    assert receiver.requests == []


@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fe80::1%2"]]
)
async def test_a_name_of_a_private_address_is_refused(addresses: list[str]) -> None:
    resolver = Resolver(addresses)
    async with guarded_client(AllowList(), timeout_seconds=5, resolve=resolver) as client:
        with pytest.raises(TargetRefused, match="not public"):
            await client.post("https://hooks.example/")


async def test_a_name_that_changes_its_meaning_is_connected_as_it_was_checked(
    receiver: Receiver,
) -> None:
    """Rebinding: the first answer is permitted, every later one would be another machine."""
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
    allow = AllowList([f"hooks.example:{receiver.port}"])
    async with guarded_client(allow, timeout_seconds=5, resolve=resolver) as client:
        await client.post(f"http://hooks.example:{receiver.port}/x")
    assert resolver.asked == ["hooks.example"]
    assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"


async def test_a_name_that_becomes_private_is_refused_at_the_next_connection(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver(["93.184.216.34"], ["127.0.0.1"])
    connected: list[str] = []

    async def connect(self: object, host: str, *rest: object) -> object:
        connected.append(host)
        raise OSError("no network in tests")

    monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", connect)
    async with guarded_client(AllowList(), timeout_seconds=5, resolve=resolver) as client:
        with pytest.raises(OSError, match="no network"):
            await client.post(f"https://hooks.example:{receiver.port}/")
        with pytest.raises(TargetRefused):
            await client.post(f"https://hooks.example:{receiver.port}/")
    assert connected == ["93.184.216.34"]


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answer = lambda _: 302
    receiver.more_headers = "location: http://169.254.169.254/latest\r\n"
    async with guarded_client(AllowList([receiver.host]), timeout_seconds=5) as client:
        assert (await client.post(receiver.url)).status_code == 302
    assert len(receiver.requests) == 1


async def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        async with guarded_client(AllowList([receiver.host]), timeout_seconds=5) as client:
            await client.post(receiver.url)
        assert (len(proxy.requests), len(receiver.requests)) == (0, 1)


async def test_a_name_without_an_address() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror("no such name")

    async with guarded_client(AllowList(), timeout_seconds=5, resolve=resolve) as client:
        with pytest.raises(httpx.ConnectError, match="cannot be resolved"):
            await client.post("https://hooks.example/")
