"""Rounds with real processes: workers and a client, in trouble for a while, then in peace.

A round follows from its seed as far as the machine lets it: what users want and what goes wrong
does, and when. Which write a kill meets does not, so that a round that broke need not break again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

import boto3

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.records.head import ENDED
from holdfast.records.keys import RunKey
from holdfast.storage import open as open_store
from soak.client import settling_ambiguous
from soak.disk import Disk
from soak.errands import GRAPHS, acknowledged, drawn_errands, write_errands
from soak.findings import FOLDER, MESSAGE_CHARS_MAX, Finding, Findings, commit, kind_of
from soak.halt import Halt
from soak.patience import Patience, Starved
from soak.proxy import Proxy
from soak.trouble import Post, Trouble, drawn_blows
from soak.verdict import Evidence, judge
from tests.crash.flows import EFFECTS
from tests.crash.journals import journal_of
from tests.servers import dynamodb_local, moto_server
from tests.servers.component import ComponentMissing

__all__ = ["ProcessSoak", "Round"]

WORKERS = 3
RUNS = {"sqlite": 40, "dynamodb": 20}
OPTIONS = {
    "concurrency": 8,
    "lease": 3,
    "poll": 0.1,
    "drain": 1,
    "resumes_max": 50,
}
TROUBLE_SECONDS = 25.0
HEALING_SECONDS_MAX = 120.0
"""After that much peace nothing may be left undone: forty leases."""
LEAVING_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.5
AWS = {
    "AWS_ACCESS_KEY_ID": "soak",
    "AWS_SECRET_ACCESS_KEY": "soak",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

Kind: TypeAlias = Literal["sqlite", "dynamodb"]
KINDS: tuple[Kind, ...] = ("sqlite", "dynamodb")


class Halted(Exception):
    """The soak was asked to end in the middle of a round."""


@dataclass(frozen=True)
class Place:
    """The store of a round, as its processes reach it and as it is when nothing goes wrong."""

    url: str
    plain_url: str
    disk: Disk | None
    proxies: list[Proxy]


@dataclass
class Round:
    """One store, its processes and what they go through."""

    seed: int
    halt: Halt
    seconds: float = TROUBLE_SECONDS
    """How long it goes wrong."""
    done: Counter[str] = field(default_factory=Counter[str])
    _endpoints: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        return KINDS[self.seed % len(KINDS)]

    @contextmanager
    def servers(self) -> Iterator[None]:
        """Have the servers that the round needs.

        Raises:
            ComponentMissing: One of them cannot be had.
        """
        if self.kind == "sqlite":
            yield
            return
        # Credentials that open nothing; those of the person who soaks are out of reach.
        for name in [one for one in os.environ if one.upper().startswith("AWS_")]:
            del os.environ[name]
        for name in [one for one in os.environ if one.upper().endswith("_PROXY")]:
            del os.environ[name]
        os.environ.update(AWS)
        with dynamodb_local.serve() as table, moto_server.serve() as bucket:
            self._endpoints = (table.endpoint, bucket.endpoint)
            yield

    @property
    def folder(self) -> Path:
        return FOLDER / "rounds" / f"{self.kind}-{self.seed}"

    async def play(self) -> list[str]:
        """Return everything that did not hold; what it left behind is kept only then.

        Raises:
            Halted: The soak was asked to end.
            Starved: The machine is too busy to tell.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("store", "effects", "logs"):
            (self.folder / name).mkdir(parents=True)
        async with self._place() as place:
            broken = await self._played(place)
            self.done["disk faults"] += place.disk.struck if place.disk else 0
            for proxy in place.proxies:
                self.done.update({f"network {kind}": n for kind, n in proxy.struck.items()})
        if not broken:
            shutil.rmtree(self.folder)
        return broken

    async def _played(self, place: Place) -> list[str]:
        draw = Random(f"{self.seed}/round")
        errands = drawn_errands(draw, self.seconds * 0.8, runs=RUNS[self.kind])
        disk, network = place.disk is not None, bool(place.proxies)
        blows = drawn_blows(draw, self.seconds, disk=disk, network=network)
        write_errands(self.folder / "errands.json", errands)
        workers, client = self._posts(place)
        trouble = Trouble(workers, client, place.disk, place.proxies)
        keeping = [asyncio.create_task(post.keep()) for post in (*workers, client)]
        evidence = Evidence(
            hf=Holdfast(place.plain_url),
            store=open_store(place.plain_url),
            folder=self.folder / "effects",
            logs=sorted({post.log for post in workers}),
            errands=errands,
            acknowledged={},
            stops=trouble.stops,
        )
        try:
            await self._unless_halted(trouble.deal(blows))
            await trouble.heal()
            stuck = await self._unless_halted(self._healed(evidence, keeping[-1]))
            evidence.acknowledged = acknowledged(self.folder / "acks")
            for post in (*workers, client):
                post.leave()
            _, left = await asyncio.wait(keeping, timeout=LEAVING_SECONDS_MAX)
            stuck += [f"a worker has not left within {LEAVING_SECONDS_MAX:g} s"] if left else []
            stuck += [
                f"a worker that was to leave ended with {post.exits[-1]}"
                for post in workers
                if not left and post.exits and post.exits[-1] not in (0, -signal.SIGKILL)
            ]
            self.done += trouble.dealt
            broken = stuck + await judge(evidence)
            await self._write_down(evidence, broken)
            return broken
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await evidence.hf.close()
            await evidence.store.close()

    async def _write_down(self, evidence: Evidence, broken: list[str]) -> None:
        """Keep all that stands in the store of the runs that the messages name."""
        for run in evidence.runs:
            if any(run in message for message in broken):
                items = [i async for i in evidence.store.table.query_all(RunKey("default", run).pk)]
                journal = await journal_of(evidence.store, run)
                lines = [*map(str, items), *map(str, journal)]
                (self.folder / f"{run}.txt").write_text("\n".join(lines))
        (self.folder / "broken.txt").write_text("\n".join(broken))

    def _posts(self, place: Place) -> tuple[list[Post], Post]:
        effects = {EFFECTS: str(self.folder / "effects")}

        def environment(name: str, number: int) -> dict[str, str]:
            seed = Random(f"{self.seed}/{name}/{number}").getrandbits(32)
            return effects | (place.disk.environment(seed) if place.disk is not None else {})

        command = ("-m", "tests.crash.worker", place.url, ",".join(GRAPHS), json.dumps(OPTIONS))
        workers = [
            Post(
                command,
                lambda number, name=f"w{index}": environment(name, number),
                self.folder / "logs" / f"w{index}",
            )
            for index in range(WORKERS)
        ]
        files = [str(self.folder / name) for name in ("errands.json", "acks")]
        client = Post(
            ("-m", "soak.client", place.url, *files, str(SystemClock().now_ms())),
            lambda number: environment("client", number),
            self.folder / "logs" / "client",
            once=True,
        )
        return workers, client

    async def _healed(self, evidence: Evidence, client: asyncio.Task[None]) -> list[str]:
        """Wait until everything is acknowledged, and every run has ended that can."""
        patience = Patience(HEALING_SECONDS_MAX)
        async with settling_ambiguous(evidence.hf) as heard:
            while not client.done():
                if patience.is_over():
                    return ["P6: the client is not done, in spite of all the peace"]
                await asyncio.wait({client}, timeout=LOOK_SECONDS)
            evidence.acknowledged = acknowledged(self.folder / "acks")
            left = list(evidence.runs)
            while left := [one for one in left if not await self._is_settled(evidence, one)]:
                if patience.is_over():
                    stuck = [f"P6: {run} has not ended, in spite of all the peace" for run in left]
                    said = [f"a person who settles calls last heard: {heard[-1]}"] if heard else []
                    return stuck + said
                await SystemClock().sleep(LOOK_SECONDS)
        return []

    async def _is_settled(self, evidence: Evidence, run: str) -> bool:
        found = await evidence.hf.run(run).get()
        unpaid = run not in evidence.funded and evidence.runs[run].graph == "paid"
        return found.status in ENDED or (unpaid and found.status == "waiting")

    async def _unless_halted(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_SECONDS)
                if self.halt.asked:
                    raise Halted
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[Place]:
        store = self.folder / "store"
        if self.kind == "sqlite":
            url = f"sqlite:///{store}/runs.db"
            async with open_store(url) as opened:
                await opened.create()
            try:
                disk = Disk(store, self.folder / "disk")
            except ComponentMissing as missing:
                print(f"  !! NO DISK FAULTS: {missing}")
                disk = None
            yield Place(url, url, disk, [])
            if disk is not None:
                disk.close()
            return
        async with AsyncExitStack() as stack:
            proxies = [
                await stack.enter_async_context(
                    Proxy(int(endpoint.rpartition(":")[2]), f"{self.seed}/{number}").serving()
                )
                for number, endpoint in enumerate(self._endpoints)
            ]
            name = f"soak-{self.seed}-{SystemClock().now_ms()}"
            boto3.client("s3", endpoint_url=self._endpoints[1]).create_bucket(Bucket=name)

            def url_of(table: str, bucket: str) -> str:
                return (
                    f"dynamodb://{name}?region=us-east-1&endpoint={table}"
                    f"&bucket={name}&bucket_endpoint={bucket}"
                )

            plain_url = url_of(*self._endpoints)
            async with open_store(plain_url) as opened:
                await opened.create()
            yield Place(url_of(*(one.endpoint for one in proxies)), plain_url, None, proxies)


@dataclass
class ProcessSoak:
    """Plays rounds with seeds from a first one upwards until it is halted."""

    findings: Findings
    first: int
    rounds: int = 0
    seconds: float = 0.0
    broken: int = 0
    done: Counter[str] = field(default_factory=Counter[str])

    def retry_known(self, halt: Halt) -> int:
        """Play the rounds again that broke; return how many still do. One that does not may yet."""
        breaking = 0
        for finding in self.findings:
            if finding.where != "processes" or finding.status == "gone" or halt.is_over:
                continue
            broken = self._play(finding.seed, halt)
            if broken is None:
                continue
            finding.tried = commit()
            finding.status = "breaks" if broken else "gone"
            breaking += bool(broken)
            self.findings.keep(finding)
            if broken:
                print(f"  still breaks: {'; '.join(broken)}")
            else:
                print(f"  not seen again: {finding.message}")
        return breaking

    def soak(self, halt: Halt) -> None:
        """Play rounds until halted; the last one may end later."""
        began = time.monotonic()
        for seed in itertools.count(self.first):
            if halt.is_over:
                break
            broken = self._play(seed, halt)
            if broken:
                self._keep(seed, broken)
        self.seconds += time.monotonic() - began

    def _play(self, seed: int, halt: Halt) -> list[str] | None:
        """Play one round; return what broke, None where it did not come to its end."""
        began = time.monotonic()
        round = Round(seed, halt)
        try:
            with round.servers():
                broken = asyncio.run(round.play())
        except Halted:
            return None
        except Starved:
            print(
                f"  !! NOT JUDGED: round {seed} on {round.kind}: the machine is too busy; "
                "play it again when it is less so"
            )
            return None
        except ComponentMissing as missing:
            print(f"  !! NOT TRIED: round {seed} on {round.kind}: {missing}")
            return None
        self.rounds += 1
        self.done += round.done
        took = time.monotonic() - began
        told = f"{len(broken)} broken promises" if broken else "well"
        print(f"  round {seed} on {round.kind}: {told}, {took:.0f} s", flush=True)
        return broken

    def _keep(self, seed: int, broken: list[str]) -> None:
        self.broken += 1
        for message in broken:
            print(f"  BROKEN: {message}", flush=True)
        finding = Finding(
            where="processes",
            seed=seed,
            kind=kind_of(f"Violation: {broken[0]}"),
            message="\n".join(broken)[:MESSAGE_CHARS_MAX],
            commit=commit(),
            again=f"python -m soak processes --first {seed} --seconds 1",
        )
        self.findings.keep(finding)
