"""A program that is not a graph keeps the promises in the simulated world, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import RunEnded, StoreError
from tests.programs.steps import Steps
from tests.simulation.chronicle import Broken
from tests.simulation.faces import face_of
from tests.simulation.faults import calm
from tests.simulation.fleet import rough
from tests.simulation.lot import Lot
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.setting import setting
from tests.simulation.world import World, simulate

SEEDS = 120
CHUNK = 20
RUNS = 3
WORKERS = 3
LEASE_SECONDS = 20.0
TROUBLE_SECONDS = 60.0
REST_SECONDS = 20 * LEASE_SECONDS
FAULTS = ("crash", "stall", "lost_answer", "restart")
"""What must have gone wrong for the rest to mean anything."""

RETRY = [
    {"errors": ["ConnectionError"], "attempts": 2, "backoff_ms": 500},
    {"errors": ["LookupError"], "attempts": 2, "backoff_ms": 9_000},
]
KID = Steps("kid", [{"wait_ms": 3_000}, {"task": "double", "args": ["n"]}])
EACH = {"fork": [[{"task": "double", "args": ["item"]}], [{"token": "ok"}]]}
MAIN = Steps(
    "main",
    [
        {"task": "split", "args": ["n"], "into": "parts"},
        {
            "fork": [
                [{"each": "parts", "steps": [EACH]}],
                [{"wait_ms": 15_000}, {"task": "flaky", "retry": RETRY}],
            ]
        },
        {"child": "kid", "input": {"n": 3}},
        {"fork": [[{"task": "broken"}], [{"token": "never"}]], "catch": "caught"},
    ],
    children={"kid": KID},
)
RESULT = [0, "yes", 2, "yes", "third time", {"results": [6], "n": 3}, "caught"]


class Tasks:
    """The tasks of all processes: one of them fails twice under each key, in two ways."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def by_name(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        return {
            "split": self.split,
            "double": self.double,
            "flaky": self.flaky,
            "broken": self.broken,
        }

    async def split(self, n: int) -> list[int]:
        return list(range(n))

    async def double(self, n: int) -> int:
        return 2 * n

    async def flaky(self, *, idempotency_key: str) -> str:
        self.calls[idempotency_key] += 1
        if self.calls[idempotency_key] == 1:
            raise ConnectionResetError
        if self.calls[idempotency_key] == 2:
            raise KeyError
        return "third time"

    async def broken(self) -> None:
        raise ZeroDivisionError


class Fleet:
    """Workers of the program, and a client that starts its runs and sends their tokens."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tasks = Tasks()
        self.leaving = False

    def face(self, process: Process) -> Holdfast:
        return face_of(process, tenant="acme", tasks=self.tasks.by_name())

    async def work(self, process: Process) -> None:
        hf = self.face(process)
        while not self.leaving:
            worker = hf.worker([MAIN, KID], lease=LEASE_SECONDS, poll=1.0, resumes_max=99)
            try:
                await worker.start()
            except StoreError:
                await process.clock.sleep(1)
                continue
            while not self.leaving:
                await process.clock.sleep(1)
            await worker.stop()

    async def start(self, process: Process) -> None:
        hf = self.face(process)
        for number in range(RUNS):
            id = f"run-{number}"
            await _acknowledged(process, lambda id=id: hf.start(MAIN, {"n": 2}, id=id))
            for token in ("a", "b"):
                await _acknowledged(
                    process,
                    lambda id=id, token=token: hf.run(id).signal("ok", "yes", signal_id=token),
                )


class _Everything:
    """Holds all digests: here many calls have the same arguments, and `Once` tells them by these.

    That each call is recorded once is checked when the runs have ended.
    """

    def __contains__(self, digest: object) -> bool:
        return True


async def _acknowledged(process: Process, action: Callable[[], Awaitable[Any]]) -> None:
    """Repeat what a client does until the store acknowledges it."""
    while True:
        try:
            await action()
        except RunEnded:
            return  # it was acknowledged before
        except StoreError:
            await process.clock.sleep(1)
        else:
            return


def scene(seed: int) -> Counter[str]:
    """Run the program in trouble, then in peace; return which faults took effect."""
    plan = rough()

    async def scenario(world: World) -> Counter[str]:
        promises = Promises(
            world,
            skew_ms=round(2 * plan.skew_seconds_max * 1000) + 100,
            stuck_ms=round((TROUBLE_SECONDS + REST_SECONDS) * 1000),
            lease_seconds=LEASE_SECONDS,
            lot=Lot(),
        )
        promises.once.apart = _Everything()
        fleet = Fleet(world)
        workers = [world.supervise(f"w{number}", fleet.work) for number in range(WORKERS)]
        client = world.supervise("client", fleet.start)
        await _pass(world, TROUBLE_SECONDS)
        world.plan = calm().evolve(skew_seconds_max=plan.skew_seconds_max)
        await client.ended
        await _pass(world, REST_SECONDS)
        await _check_results(fleet, world.process("reader"))
        fleet.leaving = True
        for worker in workers:
            await worker.ended
        promises.settled()
        return world.faults

    with setting(shards=2):
        return simulate(scenario, f"steps-{seed}", plan)


async def _pass(world: World, seconds: float) -> None:
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


async def _check_results(fleet: Fleet, process: Process) -> None:
    hf = fleet.face(process)

    async def check() -> None:
        for number in range(RUNS):
            run = hf.run(f"run-{number}", graph=MAIN)
            row = await run.get()
            if row.status != "finished":
                raise Broken(f"P6: {run.id} is {row.status} at {row.node}: {row.failure}")
            if (result := await run.result()) != RESULT:
                raise Broken(f"{run.id} came to {result}")
            entries = (await run.history(limit=1000)).entries
            calls = Counter(
                (entry.details.get("branch"), entry.details["visit"], entry.details["call"])
                for entry in entries
                if entry.kind == "call" and entry.details["failure"] is None
            )
            if calls.total() != len(calls) or len(calls) != 4:
                raise Broken(f"{run.id} recorded these calls: {calls}")
            own = Counter(entry.details["kind"] for entry in entries if entry.kind == "program")
            if own["ForkCaught"] != 1 or own["StepRetried"] > 2:
                raise Broken(f"{run.id} noted {own}")

    await process.run(check())


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_list_of_steps_keeps_the_promises(first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        faults.update(scene(seed))
    assert all(faults[kind] for kind in FAULTS), faults
