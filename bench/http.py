"""Ten durable steps behind HTTP, from the request to the result, 32 in flight, and what HTTP costs.

Holdfast is ``holdfast serve`` on SQLite; DBOS stands behind FastAPI, also on SQLite; Restate is its
own server with its ingress, on its own disk format, in front of a service in Python. A client in
this process sends the same requests to each of them, over connections that stay open.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from math import nan
from pathlib import Path
from typing import Any

from bench.figures import Figure, in_turns, ratio, show
from bench.http_client import Connection
from bench.kernel import CACHE, PEERS_MADE, PEERS_PYTHON, ROOT
from bench.restate import restate_server
from holdfast.clock import SystemClock

PEERS = ROOT / "bench" / "peers"
IN_FLIGHT = 32
WORKFLOWS = 400
WARM_UP = 64
ROUNDS = 3
UP_SECONDS_MAX = 60.0
STARTS = 1500


def measure() -> list[Figure]:
    return [*_start_to_finish(), _cost_of_http()]


# --- from start to finish -------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    path: Callable[[int], str]
    body: Callable[[int], Any]
    serve: Callable[[int, Path], Any]
    headers: dict[str, str]


def _start_to_finish() -> list[Figure]:
    contestants = {"Holdfast": Contestant(lambda _: "/v1/runs", _start, _holdfast, _PATIENT)}
    if PEERS_MADE.exists():
        contestants["DBOS behind FastAPI"] = Contestant(
            lambda number: f"/ten_steps/{number}", lambda _: None, _dbos, {}
        )
        if (binary := restate_server()) is not None:
            contestants["Restate's ingress"] = Contestant(
                lambda _: "/ten_steps/run", lambda number: number, _restate(binary), {}
            )
    rounds = in_turns({name: _turn(each) for name, each in contestants.items()}, ROUNDS)
    print(f"  ten durable steps over HTTP, {IN_FLIGHT} in flight")
    show(rounds, "workflows/s")
    return [
        Figure(
            f"workflows/s over HTTP, Holdfast / {peer}",
            ratio(rounds, "Holdfast", peer) if peer in contestants else nan,
            at_least=bar,
        )
        for peer, bar in (("DBOS behind FastAPI", 3.0), ("Restate's ingress", 1.0))
    ]


_PATIENT = {"Prefer": "wait=30"}


def _start(number: int) -> dict[str, Any]:
    return {"graph": "ten_steps", "input": number}


def _turn(contestant: Contestant) -> Callable[[], float]:
    def run() -> float:
        # In .cache and not in /tmp, which on some machines is memory: there a fsync costs nothing.
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
            port = free_port()
            with contestant.serve(port, Path(folder)):
                return asyncio.run(_race(contestant, port))

    return run


async def _race(contestant: Contestant, port: int) -> float:
    numbers = itertools.count()
    await _run_places(contestant, port, itertools.islice(numbers, WARM_UP))
    began = time.perf_counter()
    await _run_places(contestant, port, itertools.islice(numbers, WORKFLOWS))
    return WORKFLOWS / (time.perf_counter() - began)


async def _run_places(contestant: Contestant, port: int, numbers: Iterator[int]) -> None:
    async def place() -> None:
        async with Connection(port) as asking:
            for number in numbers:
                answer = await asking.ask(
                    "POST", contestant.path(number), contestant.body(number), contestant.headers
                )
                returned = answer.json()
                returned = returned.get("result", returned)
                assert answer.status in (200, 201), (answer.status, answer.body[:300])
                assert returned["number"] == number
                assert len(returned) == 11

    async with asyncio.TaskGroup() as places:
        for _ in range(IN_FLIGHT):
            places.create_task(place())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def process(
    *command: str | Path, port: int, folder: Path, ready: str = ""
) -> Generator[subprocess.Popen[bytes]]:
    """Run a server until the block ends.

    The block begins when the server listens on the port, and answers 200 at the path ``ready``.
    """
    with (folder / f"{port}.log").open("wb") as log:
        serving = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_until_up(serving, port, folder / f"{port}.log", ready)
        yield serving
    finally:
        serving.send_signal(signal.SIGTERM)
        try:
            serving.wait(20)
        except subprocess.TimeoutExpired:
            serving.kill()
            serving.wait()


def _wait_until_up(serving: subprocess.Popen[bytes], port: int, log: Path, ready: str) -> None:
    deadline = time.monotonic() + UP_SECONDS_MAX
    while time.monotonic() < deadline and serving.poll() is None:
        with socket.socket() as probe:
            listens = probe.connect_ex(("127.0.0.1", port)) == 0
        if listens and (not ready or _is_ok(port, ready)):
            return
        threading.Event().wait(0.05)
    raise RuntimeError(f"a server did not come up:\n{log.read_text()[-2000:]}")


def _is_ok(port: int, path: str) -> bool:
    asking = HTTPConnection("127.0.0.1", port, timeout=5)
    with closing(asking):
        asking.request("GET", path)
        return asking.getresponse().status == 200


@contextmanager
def _holdfast(port: int, folder: Path) -> Generator[None]:
    command = [sys.executable, "-m", "holdfast", "serve", PEERS / "holdfast_http.py"]
    options = ["--url", f"sqlite:///{folder}/runs.db", "--port", str(port)]
    options += ["--concurrency", str(2 * IN_FLIGHT), "--log-level", "warning"]
    with process(*command, *options, port=port, folder=folder, ready="/readyz"):
        yield


@contextmanager
def _dbos(port: int, folder: Path) -> Generator[None]:
    with process(PEERS_PYTHON, PEERS / "dbos_http.py", str(port), folder, port=port, folder=folder):
        yield


def _restate(binary: Path) -> Callable[[int, Path], Any]:
    @contextmanager
    def serve(port: int, folder: Path) -> Generator[None]:
        service, admin, fabric = free_port(), free_port(), free_port()
        with ExitStack() as stack:
            command = (PEERS_PYTHON, PEERS / "restate_http.py", str(service))
            stack.enter_context(process(*command, port=service, folder=folder))
            settings = folder / "restate.toml"
            settings.write_text(
                'bind-ip = "127.0.0.1"\nlisten-mode = "tcp"\nnode-name = "bench"\n'
                f'base-dir = "{folder}/data"\nbind-port = {fabric}\ndisable-telemetry = true\n'
                'log-filter = "warn"\n'
                f"[ingress]\nbind-port = {port}\n[admin]\nbind-port = {admin}\n"
            )
            command = (binary, "--no-logo", "--config-file", settings)
            stack.enter_context(process(*command, port=port, folder=folder))
            asyncio.run(_register(admin, service))
            yield

    return serve


async def _register(admin: int, service: int) -> None:
    deadline = time.monotonic() + UP_SECONDS_MAX
    while True:
        try:
            async with Connection(admin) as asking:
                made = await asking.ask(
                    "POST", "/deployments", {"uri": f"http://127.0.0.1:{service}"}
                )
            if made.status == 201:
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError("Restate did not take the service")
        await SystemClock().sleep(0.2)


# --- what HTTP costs ------------------------------------------------------------------------------


def _cost_of_http() -> Figure:
    """Compare the CPU of a server that starts runs with that of a process that starts them."""
    rounds = in_turns({"over HTTP": _start_over_http, "in process": _start_in_process}, ROUNDS)
    print(f"  CPU of a start, {STARTS} starts one after the other, without a worker")
    show(rounds, "ms", digits=3)
    return Figure(
        "CPU of a start over HTTP / of a start in process",
        ratio(rounds, "over HTTP", "in process"),
        at_most=2.0,
    )


def _start_over_http() -> float:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as name:
        folder, port = Path(name), free_port()
        command = [sys.executable, "-m", "holdfast", "serve", PEERS / "holdfast_http.py"]
        options = ["--url", f"sqlite:///{folder}/runs.db", "--port", str(port), "--no-worker"]
        options += ["--log-level", "warning"]
        with process(*command, *options, port=port, folder=folder, ready="/readyz") as serving:
            asyncio.run(_send_starts(port, 200))
            before = _cpu_seconds(serving.pid)
            asyncio.run(_send_starts(port, STARTS))
            return (_cpu_seconds(serving.pid) - before) / STARTS * 1000


async def _send_starts(port: int, count: int) -> None:
    async with Connection(port) as asking:
        for number in range(count):
            answer = await asking.ask("POST", "/v1/runs", _start(number))
            assert answer.status == 201, (answer.status, answer.body[:300])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start_in_process() -> float:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        script = PEERS / "holdfast_starts.py"
        done = subprocess.run(
            [sys.executable, script, folder, str(STARTS)],
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout)
