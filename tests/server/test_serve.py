"""``holdfast serve``: a real process, real signals, and a shutdown that loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.errors import InvalidRequest
from holdfast.server import ServerOptions
from holdfast.server.binding import checked_bind, listening_socket
from holdfast.server.process import Listener, listen, shut_down
from tests.server.graphs import Order, orders
from tests.server.processes import GRAPHS, serving, started


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def test_it_serves_and_runs_a_worker_until_it_is_asked_to_stop(url: str) -> None:
    async with serving(url) as server, httpx.AsyncClient(base_url=server.address) as http:
        async with Holdfast(url) as hf:
            run = await hf.start(orders, Order("book"), id="o-1")
            await run.until("waiting", timeout=30)
        response = await http.get("/v1/runs/o-1")
        assert response.json()["status"] == "waiting"
        assert "server" not in response.headers
        server.process.send_signal(signal.SIGTERM)
        code, told = await server.ended()
    assert code == 0
    said = [line for line in told.splitlines() if " INFO holdfast.access: " not in line]
    assert [line.partition(":")[0] for line in said] == [
        "server stops",
        "server drains its worker",
        "server has stopped",
    ]


async def test_all_that_it_says_is_json_if_its_logs_are(url: str) -> None:
    options = ("--log-format", "json", "--log-level", "error")
    async with started("serve", GRAPHS, "--url", url, "--port", "0", *options) as server:
        first = (await server.told("server listens on")).string
        server.process.send_signal(signal.SIGTERM)
        code, rest = await server.ended()
    said = [json.loads(line) for line in (first + rest).splitlines()]
    assert code == 0
    assert {(line["level"], line["logger"]) for line in said} == {("info", "holdfast.server")}
    assert [" ".join(line["message"].split()[:2]) for line in said] == [
        "server listens",
        "server stops:",
        "server drains",
        "server has",
    ]


async def test_it_serves_without_a_worker(url: str) -> None:
    async with (
        started("serve", GRAPHS, "--url", url, "--port", "0", "--no-worker") as server,
        Holdfast(url) as hf,
    ):
        await server.told(
            r"serves [\w, ]*orders[\w, ]* on sqlite://\S+ with no worker; API: http\S+openapi.json"
        )
        run = await hf.start(orders, Order("book"), id="o-1")
        assert (await run.get()).status == "ready"
        server.process.send_signal(signal.SIGINT)
        assert (await server.ended())[0] == 0


async def test_a_second_signal_ends_it_at_once(url: str) -> None:
    async with serving(url, "--shutdown-delay", "1h") as server:
        server.process.send_signal(signal.SIGTERM)
        await server.told("server stops")
        server.process.send_signal(signal.SIGTERM)
        code, told = await server.ended()
    assert (code, told) == (
        128 + signal.SIGTERM,
        "server ends at once: its runs continue after its lease has expired\n",
    )


async def test_it_goes_on_serving_during_the_shutdown_delay(url: str) -> None:
    async with serving(url, "--shutdown-delay", "1h") as server:
        server.process.send_signal(signal.SIGTERM)
        await server.told("server stops")
        async with httpx.AsyncClient(base_url=server.address) as http:
            assert (await http.get("/v1/runs")).status_code == 200


async def test_it_answers_while_its_store_is_away(tmp_path: Path) -> None:
    port = free_port()
    full = f"sqlite:///{tmp_path}/full.db?max_bytes=8192"
    async with started("serve", GRAPHS, "--url", full, "--port", str(port)) as server:
        await server.told("server waits until it can use")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/healthz")).status_code == 200
            for path in ("/readyz", "/v1/runs"):
                response = await http.get(path)
                assert response.status_code == 503
                assert response.headers["content-type"] == "application/problem+json"
                assert response.headers["retry-after"] == "1"
                assert response.json()["code"] == "starting"
                assert "until it can use its store" in response.json()["detail"]
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == (0, "")


async def test_it_does_not_wait_for_a_store_that_is_not_there() -> None:
    url = "sqlite:///no/such/folder/runs.db"
    async with started("serve", GRAPHS, "--url", url, "--port", "0") as server:
        code, told = await server.ended()
    assert code == 1
    assert "store_not_found" in told


async def test_it_ends_when_its_store_is_replaced(url: str, tmp_path: Path) -> None:
    async with serving(url) as server:
        os.remove(tmp_path / "runs.db")
        code, told = await server.ended()
    assert code == 1
    assert "store_replaced" in told


def test_it_says_which_address_is_taken(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["serve", GRAPHS, "--url", url, "--port", port])
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.output


def test_it_needs_authentication_where_others_can_reach_it(url: str) -> None:
    done = CliRunner().invoke(main, ["serve", GRAPHS, "--url", url, "--host", "0.0.0.0"])
    assert done.exit_code == 1
    assert "host '0.0.0.0' can be reached from other machines" in done.output


def test_it_says_how_to_install_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.server.options", None)
    done = CliRunner().invoke(main, ["serve", GRAPHS, "--url", url])
    assert done.exit_code == 1
    assert "pip install 'holdfast[server]'" in done.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "8.8.8.8", ""])
def test_other_machines_need_authentication(host: str) -> None:
    with pytest.raises(InvalidRequest, match="credentials"):
        checked_bind(host, ServerOptions())
    checked_bind(host, ServerOptions(authentication=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.0.1"])
def test_loopback_needs_no_authentication(host: str) -> None:
    checked_bind(host, ServerOptions())


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "\0"])
def test_a_host_has_an_address(host: str) -> None:
    with pytest.raises(InvalidRequest, match="host must be an address"):
        checked_bind(host, ServerOptions(authentication=True))


class Part:
    """A part of a server that says when it is shut down."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said

    def shut_down(self) -> None:
        self._said.append(self._name)


class AsyncPart(Part):
    async def shut_down(self) -> None:  # type: ignore[override]
        self._said.append(self._name)


class Slow:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


async def test_requests_under_way_finish_and_new_ones_are_refused() -> None:
    on, app, said = listening_socket("127.0.0.1", 0), Slow(), cast(list[str], [])
    on_port = int(on.getsockname()[1])
    address = f"http://127.0.0.1:{on_port}"
    services = SimpleNamespace(
        readiness=Part("readiness", said), streams=AsyncPart("streams", said)
    )
    async with (
        listen(on, ServerOptions(), requests_seconds_max=30) as listener,
        httpx.AsyncClient() as http,
    ):
        listener.app = cast(Any, app)
        asking = asyncio.ensure_future(http.get(address, timeout=30))
        await app.asked.wait()
        closing = asyncio.ensure_future(shut_down(listener, cast(Any, services), delay_seconds=0))
        await until_refused(on_port)
        assert said == ["readiness", "streams"]
        assert not asking.done()
        app.may_answer.set()
        assert (await asking).text == "done"
        await closing


async def test_a_request_that_does_not_end_is_cut_off() -> None:
    on, app = listening_socket("127.0.0.1", 0), Slow()
    async with httpx.AsyncClient() as http:
        async with listen(on, ServerOptions(), requests_seconds_max=0.1) as listener:
            listener.app = cast(Any, app)
            address = f"http://127.0.0.1:{on.getsockname()[1]}"
            asking = asyncio.ensure_future(http.get(address, timeout=30))
            await app.asked.wait()
        with pytest.raises(httpx.HTTPError):
            (await asking).raise_for_status()


async def test_a_request_waits_for_a_server_that_starts() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    on = listening_socket("127.0.0.1", 0)
    address = f"http://127.0.0.1:{on.getsockname()[1]}"
    async with (
        listen(on, ServerOptions(), requests_seconds_max=1) as listener,
        httpx.AsyncClient(base_url=address) as http,
    ):
        probed = await http.get("/readyz")
        assert (probed.status_code, probed.json()["code"]) == (503, "starting")
        assert probed.json()["detail"] == "The server starts; try again soon."
        early = asyncio.ensure_future(http.get("/v1/runs"))
        assert (await http.get("/healthz")).status_code == 200
        listener.app = cast(Any, app)
        assert (await early).status_code == 204


async def test_a_listener_that_never_opened_closes() -> None:
    await Listener(ServerOptions(), requests_seconds_max=1).close()


async def until_refused(port: int) -> None:
    """Return when nothing listens on the port any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (ConnectionRefusedError, ConnectionResetError):
            return
        writer.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def served_options(monkeypatch: pytest.MonkeyPatch, url: str, *options: str) -> Any:
    """Return the options with which a command would serve."""
    found: list[Any] = []
    monkeypatch.setattr("holdfast.cli.serve.run_server", found.append)
    monkeypatch.setattr("holdfast.cli.serve.configure_logging", lambda *given: None)
    done = CliRunner().invoke(main, ["serve", GRAPHS, "--url", url, *options])
    assert done.exit_code == 0, done.output
    return found[0].options


def test_its_options_say_who_may_ask_and_how_much(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40 + "\n")
    options = served_options(
        monkeypatch,
        url,
        *("--auth", "--jwt-secret-file", str(secret), "--jwt-issuer", "us", "--rate", "5"),
        *("--tenant-rate", "0.1", "--body-max", "2048", "--cors", "https://app.example.com"),
    )
    assert options.jwt.secret == "s" * 40
    assert options.jwt.issuer == "us"
    assert (options.key_rate.per_second, options.key_rate.burst) == (5, 10)
    assert (options.tenant_rate.per_second, options.tenant_rate.burst) == (0.1, 1)
    assert options.body_bytes_max == 2048
    assert options.cors_origins == ("https://app.example.com",)
    assert served_options(monkeypatch, url) == ServerOptions()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--jwt-issuer", "us"], "need --jwt-secret-file or --jwks"),
        (["--jwks", "https://x.example/keys"], "audience must be set"),
        (["--jwks", "keys.json", "--jwt-audience", "us"], "authentication must be True"),
        (["--auth", "--jwt-secret-file", "nowhere"], "nowhere cannot be read"),
        (["--cors", "*"], "cors_origins must be exact origins"),
        (["--rate", "0"], "'--rate'"),
        (["--rate", "inf"], "per_second must be a positive number"),
        (["--metrics-token-file", "{empty}"], "metrics_token must be one word"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    url: str, tmp_path: Path, options: list[str], told: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    given = [option.format(empty=empty) for option in options]
    done = CliRunner().invoke(main, ["serve", GRAPHS, "--url", url, *given])
    assert done.exit_code in (1, 2)
    assert told in " ".join(done.output.split())
