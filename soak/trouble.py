"""What is done to the processes of a round, their disk and their network."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from holdfast.clock import SystemClock
from soak.disk import Disk
from soak.proxy import Proxy
from tests.crash.processes import ended, running

__all__ = ["Blow", "Post", "Trouble", "drawn_blows"]

_TO_WORKERS = ("kill", "kill", "kill", "stop", "stop", "term", "kill_all", "stop_all")
_TO_CLIENT = ("kill_client",)
_TO_DISK = ("full", "broken", "stalled")
_TO_NETWORK = ("lose", "delay", "cut", "refuse")
_EVERY_SECONDS = 1.5
_RESTART_SECONDS = 0.5
RATES = (0.02, 0.2, 1.0)


class Blow(NamedTuple):
    """Something that goes wrong at a moment, for a while."""

    at_seconds: float
    kind: str
    target: int
    seconds: float
    rate: float


def drawn_blows(draw: Random, seconds: float, *, disk: bool, network: bool) -> list[Blow]:
    """Draw what goes wrong within that time, the first soon."""
    kinds = [*_TO_WORKERS, *_TO_CLIENT]
    kinds += list(_TO_DISK) if disk else []
    kinds += list(_TO_NETWORK) if network else []
    blows: list[Blow] = []
    at = draw.random()
    while at < seconds:
        lasting = 0.2 + draw.random() ** 2 * 6
        target = draw.randrange(1_000)
        blows.append(Blow(at, draw.choice(kinds), target, lasting, draw.choice(RATES)))
        at += draw.random() * 2 * _EVERY_SECONDS
    return blows


@dataclass
class Post:
    """Keeps one process of a kind running, until it is told to leave."""

    arguments: tuple[str, ...]
    environment: Callable[[int], dict[str, str]]
    """Of the process of that number."""
    log: Path
    once: bool = False
    """Whether a process that ends by itself, and well, is not started again."""
    process: Process | None = None
    leaving: bool = False
    starts: int = 0
    exits: list[int] = field(default_factory=list[int])
    """With what the processes ended that had begun their work."""

    async def keep(self) -> None:
        while not self.leaving:
            with self.log.open("ab") as log:
                env = self.environment(self.starts)
                self.starts += 1
                async with running(*self.arguments, env=env, stderr=log.fileno()) as process:
                    self.process = process
                    code, said = await ended(process)
            if "ready" in said:
                self.exits.append(code)
            if self.leaving or (self.once and code == 0):
                return
            await SystemClock().sleep(_RESTART_SECONDS)

    def send(self, number: signal.Signals) -> int | None:
        """Send a signal to the process, if there is one; return its pid."""
        if self.process is None or self.process.returncode is not None:
            return None
        self.process.send_signal(number)
        return self.process.pid

    def leave(self) -> None:
        """Let the process end by itself, and start no other."""
        self.leaving = True
        self.send(signal.SIGTERM)


class Span(NamedTuple):
    """For how long a process stood still."""

    pid: int
    from_ms: int
    to_ms: int


@dataclass
class Trouble:
    """Deals the blows."""

    workers: Sequence[Post]
    client: Post
    disk: Disk | None
    proxies: Sequence[Proxy]
    dealt: Counter[str] = field(default_factory=Counter[str])
    stops: list[Span] = field(default_factory=list[Span])
    _clock: SystemClock = field(default_factory=SystemClock)

    async def deal(self, blows: Sequence[Blow]) -> None:
        """Deal all of them at their moments; return when everything is well again."""
        await asyncio.gather(*(self._deal(blow) for blow in blows))

    async def _deal(self, blow: Blow) -> None:
        await self._clock.sleep(blow.at_seconds)
        worker = self.workers[blow.target % len(self.workers)]
        self.dealt[blow.kind] += 1
        match blow.kind:
            case "kill":
                worker.send(signal.SIGKILL)
            case "kill_all":
                for each in self.workers:
                    each.send(signal.SIGKILL)
            case "stop_all":
                await asyncio.gather(*(self._stop(each, blow.seconds) for each in self.workers))
            case "term":
                worker.send(signal.SIGTERM)
            case "kill_client":
                self.client.send(signal.SIGKILL)
            case "stop":
                await self._stop(worker, blow.seconds)
            case "full" | "broken" | "stalled" if self.disk is not None:
                self.disk.ail(blow.kind, rate=blow.rate, stall_seconds=min(blow.seconds / 10, 0.5))
                await self._clock.sleep(blow.seconds)
                self.disk.heal()
            case "refuse":
                proxy = self.proxies[blow.target % len(self.proxies)]
                await proxy.refuse()
                await self._clock.sleep(blow.seconds)
                await proxy.accept()
            case "lose" | "delay" | "cut":
                proxy = self.proxies[blow.target % len(self.proxies)]
                proxy.ail(blow.kind, rate=blow.rate, delay_seconds=blow.seconds / 3)
                await self._clock.sleep(blow.seconds)
                proxy.heal()
            case _:
                raise AssertionError(blow.kind)

    async def _stop(self, worker: Post, seconds: float) -> None:
        process = worker.process
        pid = worker.send(signal.SIGSTOP)
        if pid is None or process is None:
            return
        from_ms = self._clock.now_ms()
        try:
            await self._clock.sleep(seconds)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
            self.stops.append(Span(pid, from_ms, self._clock.now_ms()))

    async def heal(self) -> None:
        """Let everything go well from now on, also where a blow was not over."""
        if self.disk is not None:
            self.disk.heal()
        for proxy in self.proxies:
            proxy.heal()
            await proxy.accept()
