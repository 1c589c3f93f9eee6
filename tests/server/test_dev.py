"""``holdfast init`` and ``holdfast dev``: from nothing to a finished run over HTTP."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TypedDict

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from holdfast import Graph, Holdfast
from holdfast.cli import main
from holdfast.cli.example_input import example_input, example_value
from holdfast.cli.source_changes import changed_files, source_files
from tests.server.graphs import orders
from tests.server.processes import started

STORE = "sqlite:///.holdfast/dev.db"


def holdfast(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    holdfast("init")
    return tmp_path


async def test_what_init_wrote_runs_in_dev(folder: Path) -> None:
    async with started("dev", "app.py", "--port", "0", cwd=folder) as server:
        address = await server.serves()
        assert "curl" in (await server.told("/v1/runs ")).string
        async with httpx.AsyncClient(base_url=address) as http, Holdfast(STORE) as hf:
            start = {"graph": "order", "id": "o-1", "input": {"item": "book"}}
            if (await http.post("/v1/runs", json=start)).status_code == 405:
                given = ("run", "start", "app.py", '{"item": "book"}', "--id", "o-1")
                async with started(*given, "--url", STORE, cwd=folder) as starting:
                    assert await starting.ended() == (0, "")
            await hf.run("o-1").until("waiting", timeout=30)
            body = {"name": "approved", "payload": True}
            if (await http.post("/v1/runs/o-1/signals", json=body)).status_code == 404:
                await hf.run("o-1").signal("approved", True)
            await hf.run("o-1").until("finished", timeout=30)
            assert (await http.get("/v1/runs/o-1")).json()["status"] == "finished"
        server.process.send_signal(signal.SIGINT)
        code, rest = await server.ended()
        assert code == 0
        assert "POST /v1/runs" in rest  # logs
        assert "\x1b" not in rest  # it is not a terminal


async def test_it_starts_again_when_the_code_changes_and_survives_errors(folder: Path) -> None:
    code = (folder / "app.py").read_text()
    async with started("dev", "app.py", "--port", "0", cwd=folder) as server:
        address = await server.serves()
        (folder / "app.py").write_text(code + "\nx = (\n")
        await server.told("SyntaxError: '\\(' was never closed")
        await server.told("waits for a change")
        async with httpx.AsyncClient(base_url=address, timeout=5) as http:
            body = b"x" * 1_000_000
            for answer in (await http.get("/v1/runs"), await http.post("/v1/runs", content=body)):
                assert answer.status_code == 503
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["retry-after"] == "1"
                assert answer.headers["connection"] == "close"
                assert answer.json()["code"] == "code_broken"
                detail = answer.json()["detail"]
                assert detail.startswith("app.py cannot be loaded: SyntaxError: '(' was never")
                assert detail.endswith("; dev waits for a change of a Python file")
        (folder / "app.py").write_text(code.replace("async def order(", "async def purchase("))
        await server.told("changed: app.py; starts again")
        assert "serves purchase on" in (await server.told("server listens on")).string
        async with httpx.AsyncClient(base_url=address) as http:  # still the same port
            assert (await http.get("/v1/runs")).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert (await server.ended())[0] == 0


async def test_its_child_ends_with_it(folder: Path) -> None:
    async with started("dev", "app.py", "--port", "0", cwd=folder) as server:
        await server.serves()
        server.process.kill()
        _, told = await server.ended()  # the child holds standard error open until it has ended
        assert "server has stopped" in told


def test_init_overwrites_nothing(folder: Path) -> None:
    before = (folder / "app.py").read_text()
    (folder / "app.py").write_text("mine")
    done = CliRunner().invoke(main, ["init"])
    assert done.exit_code == 1
    assert "app.py exists, and init overwrites nothing" in done.output
    assert (folder / "app.py").read_text() == "mine"
    output = holdfast("init", "shop/flows", "--json")
    assert msgspec.json.decode(output)["file"] == "shop/flows/app.py"
    assert (folder / "shop" / "flows" / "app.py").read_text() == before
    done = CliRunner().invoke(main, ["init", "app.py/app.py"])
    assert done.exit_code == 1
    assert "cannot be written" in done.output


def test_init_prints_the_next_three_commands(folder: Path) -> None:
    lines = holdfast("init", "flows.py").splitlines()
    assert lines[0] == "wrote flows.py; next:"
    assert [line.split()[0] for line in lines[1:]] == ["holdfast", "curl", "holdfast"]
    assert lines[1] == "  holdfast dev flows.py"


def test_a_change_is_a_new_a_gone_or_a_different_file(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.py", "note.txt"):
        (tmp_path / name).write_text("1")
    for hidden in (".venv", "__pycache__", "node_modules"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "d.py").write_text("1")
    before = source_files([tmp_path])
    assert [path.name for path in before] == ["a.py", "b.py", "c.py"]
    assert changed_files(before, source_files([tmp_path])) == []
    (tmp_path / "a.py").unlink()
    os.utime(tmp_path / "b.py", (1, 1))
    (tmp_path / "new.py").write_text("1")
    (tmp_path / "note.txt").write_text("22")
    changed = changed_files(before, source_files([tmp_path]))
    assert [path.name for path in changed] == ["a.py", "b.py", "new.py"]


class State(TypedDict):
    number: int
    tags: list[str]


def test_an_example_fits_the_graph() -> None:
    assert example_input(orders) == {"item": "text"}
    assert example_input(Graph("typed", State)) == {"number": 1, "tags": []}
    assert example_input(Graph("untyped", dict)) == {}
    assert example_value({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, {}) == "a"
    assert example_value({"$ref": "#/$defs/A"}, {"A": {"$ref": "#/$defs/A"}}) == {}
