"""The web app of the guide, under uvicorn: repeats, a kill, a reconnect, a shutdown."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers.process import free_port, running

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "web" / "app.py"
ORDER = {"item": "desk", "cents": 4200}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/orders.db")
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLE.parent}:{ROOT / 'src'}")
    return tmp_path


@contextmanager
def serving(folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port)]
    command += ["--timeout-graceful-shutdown", "1"]
    with (
        running(command, port=port, cwd=folder) as server,
        httpx.Client(base_url=server.endpoint, timeout=30) as client,
    ):
        yield client, server.pid


def place(client: httpx.Client, order: dict[str, object] = ORDER) -> httpx.Response:
    return client.post("/orders", json=order, headers={"Idempotency-Key": "form/17 #1"})


def followed(client: httpx.Client, id: str, *, last: str | None, until: str) -> list[list[str]]:
    """Return the id and the kind of each event up to one of a kind."""
    headers = {} if last is None else {"Last-Event-ID": last}
    found: list[list[str]] = []
    with client.stream("GET", f"/orders/{id}/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                found.append([value])
            elif name == "event":
                found[-1].append(value)
                if value == until:
                    break
    return found


def test_an_order_survives_a_kill_and_a_browser_that_reconnects(folder: Path) -> None:
    with serving(folder) as (client, pid):
        placed = place(client)
        assert placed.status_code == 202
        id = placed.json()["id"]
        assert place(client).json() == {"id": id}, "a repeated request gives the same run"
        seen = followed(client, id, last=None, until="node")
        assert [kind for _, kind in seen] == ["call", "node"]
        os.kill(pid, signal.SIGKILL)

    with serving(folder) as (client, _):
        shown = client.get(f"/orders/{id}").json()
        assert shown["receipt"].endswith("for 4200")
        path = f"/orders/{id}/approval?approved=true"
        assert client.post(path).json() == {"repeated": False}
        rest = followed(client, id, last=seen[-1][0], until="finished")
        kinds = [kind for _, kind in rest if kind != "fence"]  # the kill may have come early
        assert kinds == ["about", "signal", "node", "finished"]
        assert client.get(f"/orders/{id}").json()["status"] == "finished"
        assert client.post(path).json() == {"repeated": True}


@pytest.mark.parametrize("path", ["/orders/nope", "/orders/nope/events"])
def test_an_unknown_order_is_not_found(folder: Path, path: str) -> None:
    with serving(folder) as (client, _):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")


def test_what_is_wrong_has_a_status_and_a_code(folder: Path) -> None:
    with serving(folder) as (client, _):
        id = place(client).json()["id"]
        other = place(client, {"item": "desk", "cents": 1})
        assert (other.status_code, other.json()["code"]) == (409, "already_exists")
        assert client.post("/orders", json=ORDER).status_code == 422, "without a key"
        assert client.post(f"/orders/{id}/approval?approved=perhaps").status_code == 422
        cursor = client.get(f"/orders/{id}/events", headers={"Last-Event-ID": "last"})
        assert (cursor.status_code, cursor.json()["code"]) == (422, "invalid_query")


def test_an_open_stream_does_not_keep_the_server_from_stopping(folder: Path) -> None:
    with serving(folder) as (client, pid):
        id = place(client).json()["id"]
        with client.stream("GET", f"/orders/{id}/events") as stream:
            assert stream.status_code == 200
            os.kill(pid, signal.SIGTERM)
            with pytest.raises(httpx.HTTPError):
                list(stream.iter_lines())


def test_the_guide_shows_the_example_as_it_is() -> None:
    assert EXAMPLE.read_text() in (ROOT / "docs" / "guides" / "web.md").read_text()
