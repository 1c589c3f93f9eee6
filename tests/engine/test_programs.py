"""A program that is not a graph runs on the engine: it pauses, retries, forks and resumes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Graph, Holdfast
from holdfast.errors import InvalidRequest, ResourceMissing, RunFailed
from holdfast.model.needs import Needs
from tests.engine.support import Gate, House, kill, reached
from tests.programs.steps import Steps

HEARTBEAT_SECONDS = 0.5


class Shop:
    """Tasks, and how often each was called with what."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.errors: list[Exception] = []
        self.gate = Gate()

    @property
    def tasks(self) -> dict[str, Any]:
        return {
            "greet": self.greet,
            "list": self.list,
            "raise": self.raise_next,
            "hang": self.hang,
            "gate": self.enter_gate,
        }

    async def greet(self, name: str = "you") -> str:
        self.calls.append(name)
        return f"hello {name}"

    async def list(self) -> list[str]:
        self.calls.append("list")
        return ["a", "b"]

    async def raise_next(self, *, idempotency_key: str) -> str:
        self.calls.append("raise")
        self.keys.append(idempotency_key)
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def hang(self) -> None:
        self.calls.append("hang")
        await asyncio.Event().wait()

    async def enter_gate(self) -> str:
        self.calls.append("gate")
        await self.gate.pass_through()
        return "through"


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def kinds_of(hf: Holdfast, id: str) -> list[str]:
    """Return the program's own events in the history of a run."""
    page = await hf.run(id).history()
    return [entry.details["kind"] for entry in page.entries if entry.kind == "program"]


async def result_of(house: House, shop: Shop, *steps: Any, input: Any = None) -> Any:
    """Run steps to their end, without moving the clock, and return the result."""
    hf, program = house.open(tasks=shop.tasks), Steps("steps", steps)
    async with house.worker(hf, program):
        return await (await hf.start(program, input)).result()


async def test_a_program_pauses_and_another_worker_resumes_it(house: House, shop: Shop) -> None:
    program = Steps(
        "steps", [{"task": "greet"}, {"wait_ms": 3_600_000}, {"token": "ok"}, {"task": "list"}]
    )
    first, second = house.open(tasks=shop.tasks), house.open(tasks=shop.tasks)
    async with house.worker(first, program) as worker:
        run = await first.start(program, id="r")
        await house.quiet(worker)
        assert (await run.get()).node == "1"
    async with house.worker(second, program) as worker:
        await house.move(3601, worker)
        assert [wait.signal for wait in (await second.run("r").get()).waits] == ["ok"]
        await second.run("r").signal("ok", {"by": "ann"})
        assert await second.run("r", graph=program).result() == [
            "hello you",
            {"by": "ann"},
            ["a", "b"],
        ]
    assert shop.calls == ["you", "list"]


async def test_a_worker_that_is_killed_leaves_finished_tasks_to_nobody(
    house: House, shop: Shop
) -> None:
    program = Steps("steps", [{"task": "greet"}, {"task": "gate"}, {"task": "greet"}])
    hf = house.open(tasks=shop.tasks)
    worker = house.worker(hf, program, lease=30)
    await worker.__aenter__()
    await hf.start(program, id="r")
    await shop.gate.waited_at()
    kill(worker)
    shop.gate.open()
    other = house.open(tasks=shop.tasks)
    async with house.worker(other, program) as worker:
        await house.move(120, worker)
        assert await other.run("r", graph=program).result() == [
            "hello you",
            "through",
            "hello you",
        ]
    assert shop.calls == ["you", "gate", "gate", "you"]


async def test_each_retry_policy_counts_its_own_attempts(house: House, shop: Shop) -> None:
    shop.errors = [ConnectionError(), KeyError(), ConnectionResetError(), KeyError()]
    program = Steps(
        "steps",
        [
            {
                "task": "raise",
                "retry": [
                    {"errors": ["ConnectionError"], "attempts": 3, "backoff_ms": 1000},
                    {"errors": ["LookupError"], "attempts": 3, "backoff_ms": 60_000},
                ],
            }
        ],
    )
    hf = house.open(tasks=shop.tasks)
    async with house.worker(hf, program, hold=0) as worker:
        run = await hf.start(program, id="r")
        await house.quiet(worker)
        calls = [len(shop.calls)]
        for seconds in (1, 59, 2, 1, 60):
            await house.move(seconds, worker)
            calls.append(len(shop.calls))
        assert calls == [1, 2, 2, 3, 4, 5]
        assert await run.result() == ["done"]
    assert len(set(shop.keys)) == 1  # a retry is the same call
    history = (await hf.run("r").history()).entries
    retried = [e.details["data"] for e in history if e.details.get("kind") == "StepRetried"]
    assert [(each["policy"], each["error"]) for each in retried] == [
        (0, "ConnectionError"),
        (1, "KeyError"),
        (0, "ConnectionResetError"),
        (1, "KeyError"),
    ]


async def test_a_policy_that_is_used_up_fails_the_run(house: House, shop: Shop) -> None:
    shop.errors = [KeyError("x"), KeyError("y"), KeyError("z")]
    retry = [{"errors": ["KeyError"], "attempts": 2, "backoff_ms": 0}]
    with pytest.raises(RunFailed, match="KeyError: 'y'"):
        await result_of(house, shop, {"task": "raise", "retry": retry})
    assert shop.calls == ["raise"] * 2


async def test_an_operator_lets_a_failed_run_go_on(house: House, shop: Shop) -> None:
    shop.errors = [KeyError()]
    hf, program = house.open(tasks=shop.tasks), Steps("steps", [{"task": "raise"}])
    async with house.worker(hf, program):
        run = await hf.start(program, id="r")
        await reached(hf, "r", "failed")
        await run.retry()
        assert await run.result() == ["done"]


async def test_forks_inside_forks_join_in_order(house: House, shop: Shop) -> None:
    inner = {"fork": [[{"task": "greet", "args": ["item"]}], [{"token": "ok"}]]}
    program = Steps(
        "steps",
        [
            {"task": "list", "into": "found"},
            {
                "fork": [
                    [{"each": "found", "steps": [inner]}],
                    [{"task": "greet"}, {"wait_ms": 3_600_000}, {"task": "greet"}],
                ]
            },
        ],
    )
    first, second = house.open(tasks=shop.tasks), house.open(tasks=shop.tasks)
    async with house.worker(first, program) as worker:
        await first.start(program, id="r")
        await house.quiet(worker)
        assert sorted(shop.calls) == ["a", "b", "list", "you"]
    async with house.worker(second, program) as worker:
        await second.run("r").signal("ok", 1)
        await second.run("r").signal("ok", 2)
        await house.move(3601, worker)
        result = await second.run("r", graph=program).result()
    payloads = result[1], result[3]
    assert sorted(payloads) == [1, 2]
    assert result == ["hello a", payloads[0], "hello b", payloads[1], "hello you", "hello you"]
    assert sorted(shop.calls) == ["a", "b", "list", "you", "you"]


async def test_a_fork_catches_the_failure_of_a_branch_and_stops_the_others(
    house: House, shop: Shop
) -> None:
    shop.errors = [KeyError()]
    steps = [
        {
            "fork": [
                [{"fork": [[{"task": "hang"}], [{"token": "never"}]]}],
                [{"task": "raise"}],
            ],
            "catch": "caught",
        },
        {"task": "greet"},
    ]
    assert await result_of(house, shop, *steps) == ["caught", "hello you"]


async def test_a_child_of_another_kind_of_program(house: House, shop: Shop) -> None:
    graph = Graph("kid", dict)

    @graph.node
    async def work(state: Any) -> Any:
        return {"size": 3}

    kids = {"graph": graph, "steps": Steps("inner", [{"task": "greet"}])}
    program = Steps("steps", [{"child": "graph"}, {"child": "steps"}], children=kids)
    hf = house.open(tasks=shop.tasks)
    async with house.worker(hf, program, *kids.values()):
        run = await hf.start(program, id="r")
        assert await run.result() == [{"size": 3}, {"results": ["hello you"]}]
        assert {child.graph for child in await hf.run("r").children()} == {"kid", "inner"}


async def test_a_graph_starts_a_program_as_its_child(house: House, shop: Shop) -> None:
    graph, program = Graph("outer", dict), Steps("steps", [{"task": "greet"}])

    @graph.node
    async def work(state: Any, ctx: Any) -> Any:
        return {"said": await ctx.run(program)}

    hf = house.open(tasks=shop.tasks)
    async with house.worker(hf, graph, program):
        assert await (await hf.start(graph)).result() == {"said": ["hello you"]}


@pytest.mark.parametrize("limit", ["timeout_ms", "heartbeat_ms"])
async def test_a_task_that_hangs_is_tried_again(house: House, shop: Shop, limit: str) -> None:
    error = {"timeout_ms": "CallTimedOut", "heartbeat_ms": "HeartbeatTimedOut"}[limit]
    retry = [{"errors": [error], "attempts": 2, "backoff_ms": 0}]
    with pytest.raises(RunFailed, match=error):
        await result_of(house, shop, {"task": "hang", limit: 10, "retry": retry})
    assert shop.calls == ["hang"] * 2


async def test_heartbeats_keep_a_task_alive(house: House) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    async def long_task(ctx: Any) -> str:
        began = loop.time()

        def beat() -> None:
            ctx.heartbeat()
            loop.call_later(0.01, beat if loop.time() < began + 3 * HEARTBEAT_SECONDS else over.set)

        beat()
        await over.wait()
        return "done"

    def plain_task(ctx: Any) -> str:
        for _ in range(30):
            ctx.heartbeat()
            threading.Event().wait(HEARTBEAT_SECONDS / 10)
        return "plain"

    limit = {"heartbeat_ms": round(HEARTBEAT_SECONDS * 1000)}
    program = Steps("steps", [{"task": "long_task", **limit}, {"task": "plain_task", **limit}])
    hf = house.open(tasks={"long_task": long_task, "plain_task": plain_task})
    async with house.worker(hf, program):
        assert await (await hf.start(program)).result() == ["done", "plain"]


async def test_a_token_has_a_deadline(house: House, shop: Shop) -> None:
    program = Steps("steps", [{"token": "ok", "timeout_ms": 60_000}])
    hf = house.open(tasks=shop.tasks)
    async with house.worker(hf, program) as worker:
        run = await hf.start(program)
        await house.quiet(worker)
        await house.move(61, worker)
        with pytest.raises(RunFailed, match="WaitTimedOut"):
            await run.result()


class Declared(Steps):
    """Steps that use no other task than one."""

    @property
    def needs(self) -> Needs:
        return Needs(tasks=frozenset({"greet"}), complete=True)


async def test_the_program_sees_that_a_task_is_unknown(house: House, shop: Shop) -> None:
    hf = house.open(tasks=shop.tasks)
    caught = {"fork": [[{"task": "gone"}], [{"task": "greet"}]], "catch": "no such task"}
    failing, catching = Declared("failing", [{"task": "gone"}]), Declared("catching", [caught])
    async with house.worker(hf, failing, catching):
        with pytest.raises(RunFailed, match="UnknownTask: the program does not declare task"):
            await (await hf.start(failing)).result(timeout=60)
        run = await hf.start(catching, {"n": 1})
        assert await run.result(timeout=60) == ["no such task"]


async def test_a_task_that_only_another_worker_has_does_not_fail_the_run(
    house: House, shop: Shop
) -> None:
    program = Steps("steps", [{"task": "greet"}])
    without, other = house.open(), house.open(tasks=shop.tasks)
    async with house.worker(without, program) as worker:
        run = await without.start(program, {"n": 1})
        await house.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason) == ("waiting", "unserved")
        assert "task 'greet'" in row.waits[0].description
        async with house.worker(other, program) as able:
            await house.move(6, worker, able)
            assert await run.result(timeout=60) == ["hello you"]
            assert able.counts["finished"] == 1


async def test_a_worker_without_a_declared_task_refuses_to_start(house: House) -> None:
    with pytest.raises(ResourceMissing, match=r"needs task 'greet'.*Holdfast\(tasks=") as missing:
        house.worker(house.open(), Declared("steps", [{"task": "greet"}]))
    assert (missing.value.graph, missing.value.missing) == ("steps", ("task 'greet'",))


@pytest.mark.parametrize("tasks", [["greet"], {"greet": 1}, {"": print}, {1: print}])
async def test_tasks_are_functions_by_name(house: House, tasks: Any) -> None:
    with pytest.raises(InvalidRequest, match="tasks"):
        house.open(tasks=tasks)


async def test_the_history_has_the_programs_own_events(house: House, shop: Shop) -> None:
    hf = house.open(tasks=shop.tasks)
    program = Steps("steps", [{"task": "greet"}, {"task": "list"}])
    async with house.worker(hf, program):
        await (await hf.start(program, id="r")).result()
    assert await kinds_of(hf, "r") == ["StepEntered", "StepExited"] * 2
    entered = next(e for e in (await hf.run("r").history()).entries if e.kind == "program")
    assert entered.details["data"] == {"step": "task"}


async def test_a_newer_version_continues_the_run_of_an_older_one(house: House, shop: Shop) -> None:
    steps = [{"task": "greet"}, {"token": "ok"}]
    old, new = Steps("steps", steps), Steps("steps", [*steps, {"task": "list"}], version=2)
    hf = house.open(tasks=shop.tasks)
    async with house.worker(hf, old) as worker:
        await hf.start(old, id="r")
        await house.quiet(worker)
    async with house.worker(hf, new):
        await hf.run("r").signal("ok", 1)
        assert await hf.run("r", graph=new).result() == ["hello you", 1, ["a", "b"]]


async def test_a_worker_leaves_the_run_of_a_newer_version(house: House, shop: Shop) -> None:
    old, new = Steps("steps", [{"token": "ok"}]), Steps("steps", [{"task": "greet"}], version=2)
    hf = house.open(tasks=shop.tasks)
    run = await hf.start(new, id="r")
    async with house.worker(hf, old) as worker:
        await house.move(1, worker)
        assert (await run.get()).reason == "newer_version"
        assert not shop.calls
    async with house.worker(hf, old, new) as worker:
        await house.move(31, worker)
        assert await run.result() == ["hello you"]
