"""``holdfast worker --metrics``: the metrics of a process without a server."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner

from holdfast import Graph, Holdfast
from holdfast.cli.commands import main
from holdfast.cli.metrics_page import serve_metrics
from tests.servers.process import free_port


@pytest.fixture
def graph() -> Graph[dict[str, int]]:
    made = Graph("counting", dict)

    @made.node
    async def count(state: dict[str, int]) -> dict[str, int]:
        return {"n": 1}

    return made


async def get(port: int) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{port}/metrics")


async def test_the_page_is_served_while_the_worker_runs(graph: Graph[dict[str, int]]) -> None:
    port = free_port()
    async with Holdfast("sqlite://:memory:") as hf, hf.worker([graph]) as worker:
        async with serve_metrics(hf, worker, ("127.0.0.1", port)):
            await (await hf.start(graph, {})).result()
            page = await get(port)
        assert 'holdfast_runs_ended_total{graph="counting",status="finished"} 1.0' in page.text
        with pytest.raises(httpx.ConnectError):
            await get(port)


async def test_the_extra_is_not_needed_without_the_option(
    graph: Graph[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with (
        Holdfast("sqlite://:memory:") as hf,
        hf.worker([graph]) as worker,
        serve_metrics(hf, worker, None),
    ):
        await (await hf.start(graph, {})).result()


async def test_a_port_in_use_is_an_error_with_the_address(graph: Graph[dict[str, int]]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with Holdfast("sqlite://:memory:") as hf, hf.worker([graph]) as worker:
            with pytest.raises(click.ClickException, match=f"metrics at 127.0.0.1:{port}"):
                async with serve_metrics(hf, worker, ("127.0.0.1", port)):
                    raise AssertionError


async def test_a_missing_extra_is_named(
    graph: Graph[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with Holdfast("sqlite://:memory:") as hf, hf.worker([graph]) as worker:
        with pytest.raises(click.ClickException, match=r"pip install 'holdfast\[server\]'"):
            async with serve_metrics(hf, worker, ("127.0.0.1", 1)):
                raise AssertionError


@pytest.mark.parametrize("given", ["9464", "host:", ":9464", "host:http", "host:70000", "h:\u0669"])
def test_a_wrong_address_is_refused(given: str) -> None:
    refused = CliRunner().invoke(
        main, ["worker", "x", "--url", "sqlite:///a.db", "--metrics", given]
    )
    assert refused.exit_code == 2
    assert "must look like 127.0.0.1:9464" in refused.output


async def test_a_worker_process_serves_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from holdfast import Graph\n\nflow = Graph('flow', dict)\n\n\n"
        "@flow.node\nasync def work(state):\n    return {}\n"
    )
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", "flow:flow"),
        *("--url", "sqlite:///runs.db", "--metrics", f"127.0.0.1:{port}"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            assert b"runs flow" in await process.stderr.readline()
            while True:
                try:
                    page = await get(port)
                    break
                except httpx.ConnectError:
                    continue
            assert "holdfast_worker_slots 100.0" in page.text
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
