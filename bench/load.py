"""A server under load while a worker dies: starts, signals, reads and 500 streams at once.

One ``holdfast serve --no-worker`` and two ``holdfast worker`` share a SQLite file with a thousand
paused runs. Clients start runs and wait for their results, signal paused runs, read rows and lists,
and follow 500 paused runs. In the middle one worker is killed. Nothing may fail, and the other
worker must bring the rate of finished runs back.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure
from bench.http import free_port, process
from bench.http_client import Connection
from bench.kernel import CACHE, ROOT
from holdfast.clock import SystemClock

GRAPHS = ROOT / "bench" / "peers" / "load_graphs.py"
PAUSED = 1000
STREAMS = 500
LEASE_SECONDS = 5.0
BEFORE_SECONDS = 12.0
AFTER_SECONDS = 20.0
RECOVERY_SECONDS_MAX = LEASE_SECONDS + 5
STARTERS, SIGNALLERS, READERS = 32, 2, 4
WINDOW_SECONDS = 2.0


class Load:
    """What the clients do, what they got, and when."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.finished: list[float] = []
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.stopping = asyncio.Event()
        self._numbers = itertools.count()
        self._draw = random.Random(7)

    async def start_quick(self) -> None:
        """Start runs and wait for their results, one after the other."""
        async with Connection(self.port) as asking:
            while not self.stopping.is_set():
                number = next(self._numbers)
                answer = await asking.ask(
                    "POST",
                    "/v1/runs",
                    {"graph": "quick", "input": number},
                    {"Prefer": "wait=30", "Idempotency-Key": f"quick-{number}"},
                )
                if self._is_ok(answer.status, "start", answer.body):
                    result = answer.json().get("result")
                    if result != 4 * number + 2:
                        self.errors.append(f"run {number} returned {result}")
                    self.finished.append(time.monotonic())

    async def signal_paused(self, runs: list[int]) -> None:
        """Signal paused runs, and start another one for each."""
        async with Connection(self.port) as asking:
            while runs and not self.stopping.is_set():
                number = runs.pop()
                answer = await asking.ask(
                    "POST",
                    f"/v1/runs/paused-{number}/signals",
                    {"name": "go", "payload": 1, "signal_id": "go"},
                )
                self._is_ok(answer.status, "signal", answer.body)
                await self.start_paused(asking, f"more-{number}")

    async def start_paused(self, asking: Connection, id: str) -> None:
        answer = await asking.ask("POST", "/v1/runs", {"graph": "patient", "input": 1, "id": id})
        self._is_ok(answer.status, "start paused", answer.body)

    async def read(self) -> None:
        """Read rows and lists."""
        async with Connection(self.port) as asking:
            while not self.stopping.is_set():
                number = self._draw.randrange(PAUSED)
                path = f"/v1/runs/paused-{number}"
                if number % 20 == 0:
                    path = "/v1/runs?status=waiting&limit=50"
                answer = await asking.ask("GET", path)
                self._is_ok(answer.status, "read", answer.body)

    async def follow(self, number: int, connected: asyncio.Semaphore) -> None:
        """Follow a paused run until it ends, or until the measurement does."""
        async with Connection(self.port) as asking:
            await asking.send("GET", f"/v1/runs/paused-{number}/stream")
            status, _ = await asking.read_head()
            if not self._is_ok(status, "stream", b""):
                return
            connected.release()
            kinds: list[str] = []
            async for kind, data in _messages(asking):
                kinds.append(kind)
                if kind == "end":
                    self.counts[f"stream ended: {data.get('reason')}"] += 1
                    return
            self.errors.append(f"the stream of run {number} broke off after {kinds[-3:]}")

    def _is_ok(self, status: int, what: str, body: bytes) -> bool:
        self.counts[what] += 1
        if status not in (200, 201, 202):
            self.errors.append(f"{what}: {status} {body[:200]!r}")
            return False
        return True


async def _messages(asking: Connection) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    rest = b""
    async for chunk in asking.read_chunks():
        *whole, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for message in whole:
            fields = dict(
                line.split(": ", 1) for line in message.decode().split("\n") if ": " in line
            )
            if "event" in fields:
                yield fields["event"], json.loads(fields.get("data", "{}"))


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as name:
        folder, port = Path(name), free_port()
        url = f"sqlite:///{folder}/runs.db"
        holdfast = [sys.executable, "-m", "holdfast"]
        serve = ["serve", str(GRAPHS), "--url", url, "--port", str(port), "--no-worker"]
        serve += ["--log-level", "warning"]
        working = ["worker", str(GRAPHS), "--url", url, "--lease", f"{LEASE_SECONDS:.0f}s"]
        working += ["--concurrency", "50", "--log-level", "warning"]
        with process(*holdfast, *serve, port=port, folder=folder, ready="/readyz"):
            workers = [subprocess.Popen([*holdfast, *working], cwd=folder) for _ in range(2)]
            try:
                return asyncio.run(_drive(port, workers))
            finally:
                for each in workers:
                    each.kill()
                    each.wait()


async def _drive(port: int, workers: list[subprocess.Popen[bytes]]) -> list[Figure]:
    load, clock = Load(port), SystemClock()
    async with Connection(load.port) as asking:
        for number in range(PAUSED):
            await load.start_paused(asking, f"paused-{number}")
    connected = asyncio.Semaphore(0)
    followers = [asyncio.ensure_future(load.follow(each, connected)) for each in range(STREAMS)]
    for _ in range(STREAMS):
        async with asyncio.timeout(60):
            await connected.acquire()
    to_signal = list(range(PAUSED))
    random.Random(3).shuffle(to_signal)
    clients = [asyncio.ensure_future(load.start_quick()) for _ in range(STARTERS)]
    clients += [asyncio.ensure_future(load.signal_paused(to_signal)) for _ in range(SIGNALLERS)]
    clients += [asyncio.ensure_future(load.read()) for _ in range(READERS)]
    await clock.sleep(BEFORE_SECONDS)
    workers[0].kill()
    killed_at = time.monotonic()
    await clock.sleep(AFTER_SECONDS)
    load.stopping.set()
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    for each in followers:
        each.cancel()
    outcomes = await asyncio.gather(*followers, return_exceptions=True)
    load.errors += [repr(each) for each in outcomes if isinstance(each, Exception)]
    return _report(load, killed_at)


def _report(load: Load, killed_at: float) -> list[Figure]:
    before = _rates(load.finished, killed_at - BEFORE_SECONDS / 2, killed_at)
    usual = median(before)
    recovery = next(
        (
            offset
            for offset in (step / 2 for step in range(int(2 * (AFTER_SECONDS - WINDOW_SECONDS))))
            if _rate(load.finished, killed_at + offset) >= 0.8 * usual
        ),
        float("inf"),
    )
    after = median(_rates(load.finished, killed_at + RECOVERY_SECONDS_MAX, killed_at + 18))
    print(f"  {dict(load.counts)}")
    print(f"  finished runs/s: {usual:.0f} before the kill, {after:.0f} afterwards")
    print(f"  back at 80 % after {recovery:.1f} s (a lease is {LEASE_SECONDS:.0f} s)")
    for error in load.errors[:5]:
        print(f"  ERROR {error}")
    return [
        Figure("errors under load while a worker dies", len(load.errors), at_most=0),
        Figure("seconds until 80 % of the rate / (lease + 5 s)", recovery / 10, at_most=1.0),
        Figure("rate after a worker's death / before", after / usual, at_least=0.8),
    ]


def _rates(finished: list[float], begin: float, end: float) -> list[float]:
    return [_rate(finished, begin + step) for step in range(int(end - begin - WINDOW_SECONDS) + 1)]


def _rate(finished: list[float], begin: float) -> float:
    return sum(begin <= each < begin + WINDOW_SECONDS for each in finished) / WINDOW_SECONDS
