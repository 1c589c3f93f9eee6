"""``holdfast worker``: a real process, and real signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Graph, Holdfast
from holdfast.cli.targets import load_graph
from holdfast.cli.worker import _counts_text, _stop_worker
from holdfast.errors import RunFailed, RunQuarantined

DEADLINE_SECONDS = 60
URL = "sqlite:///runs.db"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

# A node says on standard output when it is entered; that is what the tests wait for.
NODES = """
import asyncio, threading
from pathlib import Path
from typing import TypedDict

from holdfast import Graph


class State(TypedDict, total=False):
    done: list[str]


def says(word):
    print(word, flush=True)


def graph(name, function):
    made = Graph(name, State)
    made.node(function)
    return made


never = threading.Event()
stays = not Path("let-go").exists()


def in_a_thread(state):
    says("entered")
    if stays:
        never.wait()
    return {"done": ["in a thread"]}


async def asleep(state):
    says("entered")
    try:
        if stays:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        says("cancelled")
        raise
    return {"done": ["asleep"]}


async def short(state):
    says("entered")
    await asyncio.to_thread(input)
    # Before the worker drains, it lets its own tasks end.
    seeking = [t for t in asyncio.all_tasks() if t.get_name() in ("holdfast poll", "holdfast reap")]
    await asyncio.gather(*seeking, return_exceptions=True)
    for _ in range(100):
        await asyncio.sleep(0)  # turns of the loop in which it would cancel us, if it did not
    says("drains")
    await asyncio.to_thread(input)
    return {"done": ["short"]}


async def after(state):
    says("after")
    return {"done": [*state["done"], "after"]}


async def in_the_way(state):
    says("entered")
    # Python handles a signal between two calls: one that comes just before a call that lasts
    # forever would not be seen.
    while not never.wait(0.05):
        pass


async def in_threads_of_its_own(state):
    threading.Thread(target=never.wait).start()
    waiting = asyncio.ensure_future(asyncio.to_thread(never.wait))
    says("entered")
    await asyncio.shield(waiting)


async def nap(state, ctx):
    await ctx.sleep(0.1)


napping = graph("napping", nap)
threaded = graph("threaded", in_a_thread)
sleeping = graph("sleeping", asleep)
blocking = graph("blocking", in_the_way)
owning = graph("owning", in_threads_of_its_own)
two = graph("two", short)
two.node(after)
two.route(short, after)
"""

MODELS = """
from holdfast import Graph, Quota
from holdfast.integrations.offline import Offline

MODELS = {"cheap": Offline(["It is."])}
QUOTAS = {"cheap": Quota("cheap", requests=10)}
asking = Graph("asking", dict)


@asking.node
async def ask(state, ctx):
    return {"text": (await ctx.model("cheap", "Is it?")).text}
"""


CHATTY = """
import logging

from holdfast import Graph, Retry

chatty = Graph("chatty", dict)


@chatty.node(retry=Retry(attempts=2, backoff=0))
async def work(state, ctx):
    log = logging.getLogger("shop.flow")
    log.debug("details")
    if ctx.attempt == 1:
        log.info("is working \\x1b[2J")
    logging.getLogger("httpx").info("request")
    raise ValueError("no")
"""


SIZES = """
from holdfast import Graph, PayloadLimits

LIMITS = PayloadLimits(state_bytes_max=1_000)
growing = Graph("growing", dict)


@growing.node
async def grow(state):
    return {"text": "a" * 1_500}
"""


class Worker:
    """A ``holdfast worker`` that says what it does."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._out, self._err = process.stdout, process.stderr

    async def said(self) -> str:
        """Return the next line of its standard output."""
        return (await self._out.readline()).decode().rstrip("\n")

    async def told(self) -> str:
        """Return the next line of its standard error."""
        return (await self._err.readline()).decode().rstrip("\n")

    async def ended(self) -> tuple[int, str]:
        """Return the exit code, and the rest of its standard error."""
        rest = (await self._err.read()).decode()
        return await self.process.wait(), rest


@asynccontextmanager
async def working(*arguments: str, url: str = URL) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "worker", *arguments),
        env={**os.environ, "HOLDFAST_URL": url},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def hf(folder: Path) -> AsyncIterator[Holdfast]:
    (folder / "nodes.py").write_text(NODES)
    async with Holdfast(URL) as opened:
        yield opened


async def test_it_runs_what_is_due_and_leaves_when_asked(hf: Holdfast) -> None:
    async with working("flows", "--concurrency", "3", "--poll", "0.01s") as worker:
        ready = await worker.told()
        found = re.fullmatch(r"worker (\S+) runs approving, .+, stubborn on (\S+)", ready)
        assert found, ready
        assert found[2] == URL
        run = await hf.start(load_graph("flows:counting"), {"number": 1})
        assert await run.result() == {"number": 2}
        worker.process.send_signal(signal.SIGTERM)
        leaves = f"worker {found[1]} stops: runs in progress 0, drain 20s"
        assert await worker.told() == leaves
        expected = f"worker {found[1]} has stopped: 1 claimed, 1 finished\n"
        assert await worker.ended() == (0, expected)


async def chatty_output(hf: Holdfast, folder: Path, *options: str) -> str:
    """Return what a worker prints while a run fails that logs a lot."""
    (folder / "chatty.py").write_text(CHATTY)
    async with working("chatty", "--poll", "0.01s", *options) as worker:
        await worker.told()
        run = await hf.start(load_graph("chatty:chatty"), id="doc-42")
        with pytest.raises(RunFailed):
            await run.result()
        worker.process.send_signal(signal.SIGTERM)
        _, told = await worker.ended()
    return told


async def test_it_shows_failed_attempts_and_the_logs_of_the_users_modules(
    hf: Holdfast, folder: Path
) -> None:
    told = await chatty_output(hf, folder)
    lines = told.splitlines()
    origin = r"\[run doc-42 of tenant default, node work\]"
    expected = rf"{TIME} INFO shop\.flow {origin}: is working \\x1b\[2J$"
    assert re.match(expected, lines[0]), lines[0]
    assert "details" not in told
    assert "request" not in told
    node = "run doc-42 of tenant default: node 'work' of graph 'chatty' failed in attempt 1 of 2"
    assert any(f" WARNING holdfast.worker: {node}" in line for line in lines)
    (failed,) = [line for line in lines if " ERROR holdfast.worker: run doc-42 of" in line]
    assert "the run has failed: node 'work' of graph 'chatty' failed in attempt 2 of 2" in failed
    assert failed.endswith("chatty.py:16: ValueError: no")
    assert lines[-1].endswith("has stopped: 1 claimed, 1 failed")


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", ["details", "is working", "WARN"]), ("error", [])]
)
async def test_it_shows_logs_from_the_level_that_it_is_given(
    hf: Holdfast, folder: Path, level: str, shown: list[str]
) -> None:
    told = await chatty_output(hf, folder, "--log-level", level, "--log-format", "json")
    logs = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    always = {"time", "level", "logger", "message"}
    in_run = {"run", "tenant", "trace_id", "span_id"}
    assert all(set(log) - {"node"} in (always, always | in_run) for log in logs)
    assert {log["run"] for log in logs if log["logger"] == "shop.flow"} <= {"doc-42"}
    assert next(log for log in logs if log["level"] == "error")["logger"] == "holdfast.worker"
    for word in ("details", "is working", "WARN"):
        found = [log for log in logs if word in log["message"] or word.lower() in log["level"]]
        assert bool(found) == (word in shown), word
    assert not [log for log in logs if "request" in log["message"]]


@pytest.mark.parametrize("level", [None, "error"])
async def test_logging_that_a_module_has_configured_stays(
    hf: Holdfast, folder: Path, level: str | None
) -> None:
    begin = "import logging\nlogging.basicConfig(level='INFO', format='mine: %(message)s')\n"
    (folder / "chatty.py").write_text(begin + CHATTY)
    options = () if level is None else ("--log-level", level)
    async with working("chatty", "--poll", "0.01s", *options) as worker:
        await worker.told()
        run = await hf.start(load_graph("chatty:chatty"), id="doc-42")
        with pytest.raises(RunFailed):
            await run.result()
        worker.process.send_signal(signal.SIGTERM)
        _, told = await worker.ended()
    assert ("mine: is working" in told) == (level is None)
    assert "mine: run doc-42 of tenant default: the run has failed: node 'work'" in told


def test_it_counts_what_it_did_before_what_went_wrong() -> None:
    counts = {"lost": 1, "expired": 2, "failed": 3, "claimed": 9, "finished": 4, "new": 5}
    shown = _counts_text(cast(Any, SimpleNamespace(counts=Counter(counts))))
    assert shown == "9 claimed, 4 finished, 3 failed, 2 expired, 1 lost, 5 new"


async def test_a_worker_without_a_lease_is_named_at_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    working = SimpleNamespace(id="w-1", running=1, counts=Counter(claimed=1, lost=1))

    async def stop() -> None:
        working.id = ""  # it has lost its lease

    working.stop = stop
    await _stop_worker(cast(Any, working), drain_seconds=3)
    assert capsys.readouterr().err == (
        "worker w-1 stops: runs in progress 1, drain 3s\n"
        "worker w-1 has stopped: 1 claimed, 1 lost\n"
    )


async def test_it_waits_for_a_store_that_is_full_and_ends_when_asked(hf: Holdfast) -> None:
    url = "sqlite:///full.db?max_bytes=8192"
    async with working("flows:counting", url=url) as worker:
        waits = await worker.told()
        assert waits.startswith(f"worker waits until it can use {url}: full.db cannot grow")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() == (0, "")


async def test_it_does_not_wait_for_a_store_that_is_not_there(hf: Holdfast) -> None:
    async with working("flows:counting", url="sqlite:///no/such/folder/runs.db") as worker:
        code, told = await worker.ended()
    assert code == 1
    assert "store_not_found" in told


async def test_it_takes_the_pools_that_it_is_given(hf: Holdfast) -> None:
    graph = load_graph("flows:counting")
    options = ("--poll", "0.01s", "--pool", "gpu")
    left = await hf.start(graph, {"number": 1})
    async with working("flows:counting", *options) as worker:
        await worker.told()
        run = await hf.start(graph, {"number": 1}, pool="gpu")
        assert await run.result() == {"number": 2}
    assert (await left.get()).owner is None
    async with working("flows:counting", *options, "--pool", "") as worker:
        await worker.told()
        assert await left.result() == {"number": 2}


async def test_it_waits_in_place_no_longer_than_it_is_told(hf: Holdfast) -> None:
    """The run pauses for its sleep, and is claimed once more."""
    run = await hf.start(load_graph("nodes:napping"), {})
    options = ("--poll", "0.01s", "--hold", "0s")
    async with working("nodes:napping", *options) as worker:
        await worker.told()
        await run.result()
        worker.process.send_signal(signal.SIGTERM)
        _, told = await worker.ended()
        assert "2 claimed, 1 finished" in told


async def test_it_gives_a_run_up_after_as_many_resumes_as_it_is_told(hf: Holdfast) -> None:
    before = Graph("counting", dict)

    @before.node
    async def renamed(state: Any) -> Any: ...

    run = await hf.start(before, {})
    options = ("--poll", "0.01s", "--resumes-max", "1")
    async with working("flows:counting", *options) as worker:
        await worker.told()
        with pytest.raises(RunQuarantined, match="renamed"):
            await run.result()


async def test_its_nodes_ask_the_models_that_it_is_given(hf: Holdfast, folder: Path) -> None:
    (folder / "models.py").write_text(MODELS)
    means = ("--models", "models:MODELS", "--quotas", "models.py:QUOTAS")
    async with working("models:asking", "--poll", "0.01s", *means) as worker:
        await worker.told()
        run = await hf.start(load_graph("models:asking"))
        assert (await run.result())["text"] == "It is."
        assert (await run.get()).tokens > 0


async def test_of_two_workers_the_one_with_the_model_finishes_every_run(
    hf: Holdfast, folder: Path
) -> None:
    (folder / "models.py").write_text(MODELS.replace('["It is."]', '["It is."] * 4'))
    async with working("models:asking", "--poll", "0.01s") as without:
        await without.told()
        runs = [await hf.start(load_graph("models:asking"), id=f"doc-{n}") for n in range(4)]
        warning = await without.told()
        assert "needs model 'cheap'" in warning
        assert "--models" in warning
        means = ("--models", "models:MODELS", "--poll", "0.01s")
        async with working("models:asking", *means):
            assert [(await run.result())["text"] for run in runs] == ["It is."] * 4
    assert [(await run.get()).status for run in runs] == ["finished"] * 4


async def test_it_refuses_a_graph_whose_models_it_does_not_have(hf: Holdfast, folder: Path) -> None:
    (folder / "models.py").write_text(MODELS.replace("dict)", 'dict, models=["cheap"])'))
    async with working("models:asking") as worker:
        code, told = await worker.ended()
    assert code == 1
    assert "graph 'asking' needs model 'cheap', which this process does not have" in told
    assert "holdfast worker --models" in told
    assert "[resource_missing]" in told
    await hf.start(load_graph("models:asking"))  # a client needs no models


async def test_it_keeps_the_limits_that_it_is_given(hf: Holdfast, folder: Path) -> None:
    (folder / "sizes.py").write_text(SIZES)
    options = ("--poll", "0.01s", "--limits", "sizes:LIMITS")
    async with working("sizes:growing", *options) as worker:
        await worker.told()
        run = await hf.start(load_graph("sizes:growing"))
        with pytest.raises(RunFailed, match="state_bytes_max is 1,000"):
            await run.result()


async def test_it_leaves_while_it_has_nothing_to_do(hf: Holdfast) -> None:
    async with working("flows:asking", "flows.py:failing") as worker:
        assert " runs asking, failing on " in await worker.told()
        worker.process.send_signal(signal.SIGINT)
        await worker.told()
        code, rest = await worker.ended()
        assert code == 0
        assert rest.endswith(" has stopped: no runs claimed\n")


@pytest.mark.parametrize(
    ("name", "cancelled"), [("threaded", False), ("sleeping", True)], ids=["thread", "coroutine"]
)
async def test_a_node_that_stays_is_left_and_another_worker_goes_on(
    hf: Holdfast, folder: Path, name: str, cancelled: bool
) -> None:
    run = await hf.start(load_graph(f"nodes:{name}"))
    async with working("nodes", "--drain", "0.1s") as worker:
        await worker.told()
        assert await worker.said() == "entered"
        assert (await run.get()).owner is not None
        worker.process.send_signal(signal.SIGTERM)
        assert " stops: runs in progress 1, drain 100ms" in await worker.told()
        if cancelled:
            assert await worker.said() == "cancelled"
        code, rest = await worker.ended()
        assert code == 0
        assert rest.endswith(" has stopped: 1 claimed\n")
    row = await run.get()
    assert (row.owner, row.reason, row.nodes_run) == (None, "draining", 0)
    (folder / "let-go").touch()
    async with working("nodes"):
        assert len((await run.result())["done"]) == 1


async def test_a_node_that_ends_in_time_is_kept(hf: Holdfast) -> None:
    run = await hf.start(load_graph("nodes:two"))
    async with working("nodes", "--drain", "3600s") as worker:
        await worker.told()
        assert await worker.said() == "entered"
        worker.process.send_signal(signal.SIGTERM)
        assert " stops: runs in progress 1, drain 1h" in await worker.told()
        assert worker.process.stdin is not None
        worker.process.stdin.write(b"\n")
        assert await worker.said() == "drains"
        worker.process.stdin.write(b"\n")
        assert (await worker.ended())[0] == 0
        assert await worker.said() == ""
    row = await run.get()
    assert (row.owner, row.reason, row.node, row.nodes_run) == (None, "draining", "after", 1)
    async with working("nodes") as worker:
        assert await worker.said() == "after"
        assert await run.result() == {"done": ["short", "after"]}


async def test_threads_that_nobody_may_end_do_not_hold_it_up(hf: Holdfast) -> None:
    await hf.start(load_graph("nodes:owning"))
    async with working("nodes", "--drain", "0.1s") as worker:
        await worker.told()
        assert await worker.said() == "entered"
        worker.process.send_signal(signal.SIGTERM)
        await worker.told()
        code, rest = await worker.ended()
        assert code == 0
        assert rest.endswith(" has stopped: 1 claimed\n")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(hf: Holdfast, second: signal.Signals) -> None:
    run = await hf.start(load_graph("nodes:threaded"))
    async with working("nodes", "--drain", "3600s") as worker:
        await worker.told()
        assert await worker.said() == "entered"
        worker.process.send_signal(signal.SIGTERM)
        assert " stops: " in await worker.told()
        worker.process.send_signal(second)
        code, rest = await worker.ended()
        assert code == 128 + second
        assert rest == "worker ends at once: its runs continue after its lease has expired\n"
    assert (await run.get()).owner is not None


async def test_two_signals_end_it_even_if_a_node_blocks_the_loop(hf: Holdfast) -> None:
    await hf.start(load_graph("nodes:blocking"))
    async with working("nodes") as worker:
        await worker.told()
        assert await worker.said() == "entered"
        worker.process.send_signal(signal.SIGTERM)
        worker.process.send_signal(signal.SIGINT)  # one of the same number might fall together
        code, _ = await worker.ended()
        assert code in (128 + signal.SIGTERM, 128 + signal.SIGINT)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["nowhere"], "there is no module 'nowhere'", 1),
        (["flows:number"], "must be a graph or a list of them", 1),
        (["empty"], "the graph has no nodes [invalid_graph]", 1),
        (["flows", "--url", "sqlite:///none/runs.db"], "[store_not_found]", 1),
        (["flows", "--url", "runs.db"], "it must begin with sqlite: or dynamodb:", 1),
        (["flows", "--url", "sqlite:///flows.py"], "[store_corrupt]", 1),
        (["flows", "--limits", "flows:number"], "of type 'int' [invalid_request]", 1),
        (["flows", "--user-key-file", "none"], "the user key cannot be read", 1),
        (["flows", "--concurrency", "0"], "0 is not in the range", 2),
        (["flows", "--pool", "a/b"], "[invalid_name]", 1),
        (["flows", "--lease", "0s"], "lease must be more than 0 seconds", 1),
        (["flows", "--hold", "-1s"], "hold must be a duration such as", 2),
        (["flows", "--resumes-max", "0"], "0 is not in the range", 2),
        (["flows", "--drain", "20"], "drain must be a duration such as", 2),
        ([], "Missing argument 'TARGET...'", 2),
    ],
)
async def test_what_keeps_it_from_working_is_said(
    folder: Path, arguments: list[str], message: str, code: int
) -> None:
    (folder / "empty.py").write_text("from holdfast import Graph\ngraph = Graph('empty', dict)\n")
    async with working(*arguments) as worker:
        ended, told = await worker.ended()
        assert (ended, await worker.said()) == (code, "")
        assert message in told
        assert "Traceback" not in told
