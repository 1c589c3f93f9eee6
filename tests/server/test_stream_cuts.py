"""Followers that are cut off again and again get everything once and in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidHandshake

from holdfast import Holdfast
from holdfast.handle import RunHandle
from tests.server.stream_clients import Opens, Received, open_events, open_socket
from tests.server.stream_process import CHAPTERS, WORDS, Story, stories

CUTS = int(os.environ.get("HOLDFAST_STREAM_CUTS", "500"))
RUNS = 4
# How many messages the followers of each run and transport get before they are cut off: one of them
# is mostly there when the server stops.
STAYS = ((20, 60), (1, 6), (1, 6))
RESTARTS = 6
SECONDS_MAX = 150
# What a client sees of a server that is killed, or stops, while it connects.
KILLED = (httpx.HTTPError, OSError, EOFError, InvalidHandshake)


@dataclass
class Cuts:
    """How many connections were cut, of all followers."""

    total: int = 0
    shutdowns: int = 0
    """Those where the server told that it stops."""
    restarts: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self) -> None:
        async with self.changed:
            self.total += 1
            self.changed.notify_all()


@dataclass
class Got:
    """What a follower has received over all of its connections."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    id: str | None = None
    updated_at: str = ""
    end: dict[str, Any] | None = None

    def take(self, message: Received) -> None:
        if message.kind == "event":
            self.events.append(message.data)
        elif message.kind == "text":
            piece = message.data
            before = "" if piece["restarted"] else self.texts.get(piece["call"], "")
            self.texts[piece["call"]] = before + piece["text"]
        elif message.kind == "end":
            self.end = message.data
            assert message.data["resume"] == (self.id or "~")
        self.id = message.id or self.id


class Server:
    """A server process that is restarted on the same socket."""

    def __init__(self, url: str, listener: socket.socket) -> None:
        self._command = [sys.executable, "-m", "tests.server.stream_process", "serve", url]
        self._command.append(str(listener.fileno()))
        self._fd = listener.fileno()
        self.process = self._start()

    async def restart(self, number: int) -> None:
        self.process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, 20)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, pass_fds=[self._fd])


@contextmanager
def processes(url: str) -> Iterator[tuple[Server, int]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    command = [sys.executable, "-m", "tests.server.stream_process", "work", url]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    server = Server(url, listener)
    try:
        assert worker.stdout is not None
        with worker.stdout as said:
            assert said.readline() == b"ready\n"
        yield server, listener.getsockname()[1]
    finally:
        for process in (server.process, worker):
            process.kill()
            process.wait()
        listener.close()


async def follow(
    run: RunHandle[Any], port: int, opens: Opens, cuts: Cuts, random: Random, stay: tuple[int, int]
) -> Got:
    """Follow a run to its end. While cuts are left, leave after ``stay`` messages."""
    got = Got()
    while got.end is None or got.end["reason"] == "shutdown":
        got.end = None
        kept = random.randrange(*stay) if cuts.total < CUTS else sys.maxsize
        with suppress(*KILLED):
            await connect_once(run, port, opens, got, kept)
        if got.end is not None and got.end["reason"] == "shutdown":
            cuts.shutdowns += 1
        if got.end is None or got.end["reason"] == "shutdown":
            await cuts.add()
    return got


async def connect_once(run: RunHandle[Any], port: int, opens: Opens, got: Got, kept: int) -> None:
    query = {} if got.id is None else {"after": got.id}
    before = await run.get()
    async with opens(port, f"/v1/runs/{run.id}/stream", **query) as messages:
        first = await anext(messages, None)
        if first is None:
            return  # the server was killed
        after = (await run.get()).as_dict()
        check_snapshot(first, before.as_dict(), after, got)
        async for message in messages:
            got.take(message)
            kept -= 1
            if not kept:
                return


def check_snapshot(
    first: Received, before: dict[str, Any], after: dict[str, Any], got: Got
) -> None:
    """Check that the row was read during the connect, and is not older than an earlier one."""
    assert first.kind == "snapshot"
    assert first.id is None
    row = first.data
    assert (before["epoch"], before["updated_at"]) <= (row["epoch"], row["updated_at"])
    assert (row["epoch"], row["updated_at"]) <= (after["epoch"], after["updated_at"])
    if before == after:
        assert row == after
    assert got.updated_at <= row["updated_at"]
    got.updated_at = row["updated_at"]


async def restart_often(server: Server, cuts: Cuts) -> None:
    for number in range(RESTARTS):
        threshold = (number + 1) * CUTS // (RESTARTS + 1)
        async with cuts.changed:
            await cuts.changed.wait_for(lambda least=threshold: cuts.total >= least)
        await server.restart(number)
        cuts.restarts += 1


async def stored(run: RunHandle[Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what a follower must have: the history and the text of each answer."""
    events = [entry.as_dict() async for entry in run.events(follow=False)]
    texts: dict[str, str] = {}
    async for piece in run.tokens(follow=False):
        before = "" if piece.restarted else texts.get(piece.call, "")
        texts[piece.call] = before + piece.text
    return events, texts


async def test_cut_followers_get_everything_once_and_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    cuts, random = Cuts(), Random(15)
    async with Holdfast(url) as hf, asyncio.timeout(SECONDS_MAX):
        await hf.list()  # makes the file
        with processes(url) as (server, port):
            runs = [await hf.start(stories, Story(f"tale {n}"), id=f"s-{n}") for n in range(RUNS)]
            followers = [
                (run, asyncio.create_task(follow(run, port, opens, cuts, random, stay)))
                for run in runs
                for opens in (open_events, open_socket)
                for stay in STAYS
            ]
            restarts = asyncio.create_task(restart_often(server, cuts))
            results = [(run, await task) for run, task in followers]
            restarts.cancel()
        for run in runs:
            events, texts = await stored(run)
            assert len(texts) == CHAPTERS
            assert all(len(text.split()) == WORDS for text in texts.values())
            for got in (got for followed, got in results if followed is run):
                assert got.events == events
                assert got.texts == texts
                assert got.end is not None
                assert got.end["reason"] == "ended"
                assert got.end["status"] == "finished"
    assert cuts.total >= CUTS
    assert cuts.restarts == RESTARTS
    assert cuts.shutdowns > 0
    with capsys.disabled():
        print(
            f" {cuts.total} cuts, {cuts.shutdowns} of them by shutdown, {RESTARTS} restarts ",
            end="",
        )
