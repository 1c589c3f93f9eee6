"""The blocking face: the same as the asynchronous one, for programs without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

import pytest

from holdfast import (
    ApiKeys,
    Budget,
    Callbacks,
    Context,
    Fleet,
    Graph,
    Quota,
    Reviews,
    RunFilter,
    Webhooks,
    app,
    days,
    handle,
    signal,
    sync,
    tool,
)
from holdfast.engine.worker import worker as engine
from holdfast.errors import (
    InvalidInput,
    InvalidQuery,
    InvalidRequest,
    InvalidUrl,
    NotAmbiguous,
    RunFailed,
    RunNotFound,
    SessionBusy,
    StoreClosed,
)
from holdfast.integrations.offline import Offline
from holdfast.model.pricing import ModelPrice
from holdfast.sync import Holdfast

DEADLINE_SECONDS = 60


class State(TypedDict, total=False):
    number: int
    answer: str


def counting() -> Graph:
    graph = Graph("counting", State)

    @graph.node
    async def count(state: State) -> State:
        return {"number": state.get("number", 0) + 1}

    return graph


def asking() -> Graph:
    graph = Graph("asking", State)

    @graph.node
    async def ask(state: State, ctx: Context) -> State:
        return {"answer": await ctx.wait(signal("answer"))}

    return graph


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url) as opened:
        yield opened


# --- the two faces are alike ----------------------------------------------------------------------

# What else a worker has, the engine asks of it. `serve` waits for signals of the process,
# which only its main thread can have: `holdfast worker` does that.
LEFT_OUT_OF_WORKERS = {name for name in vars(engine.Worker) if not name.startswith("_")} - {
    *("running", "start", "stop")
}
FACES = [
    pytest.param(app.Holdfast, sync.Holdfast, set[str](), id="Holdfast"),
    pytest.param(handle.RunHandle, sync.RunHandle, set[str](), id="RunHandle"),
    pytest.param(ApiKeys, sync.ApiKeys, set[str](), id="ApiKeys"),
    # A server learns its address when it listens; a program passes it to Holdfast.
    pytest.param(Callbacks, sync.Callbacks, {"set_public_url"}, id="Callbacks"),
    pytest.param(Fleet, sync.Fleet, set[str](), id="Fleet"),
    # A server or a worker sends notices, in its event loop.
    pytest.param(Reviews, sync.Reviews, {"notify"}, id="Reviews"),
    # A worker delivers by itself.
    pytest.param(Webhooks, sync.Webhooks, {"deliver"}, id="Webhooks"),
    pytest.param(engine.Worker, sync.Worker, LEFT_OUT_OF_WORKERS, id="Worker"),
]


def members(face: type) -> dict[str, Any]:
    found = {name: member for each in reversed(face.mro()) for name, member in vars(each).items()}
    return {name: member for name, member in found.items() if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "blocking", "left_out"), FACES)
def test_the_faces_have_the_same_members(
    asynchronous: type, blocking: type, left_out: set[str]
) -> None:
    expected = members(asynchronous)
    offered = members(blocking)
    # What a class keeps in attributes, a blocking one shows as properties.
    attributes = {"id", "counts"} if blocking is sync.Worker else set[str]()
    assert offered.keys() == (expected.keys() - left_out) | attributes
    for name in offered.keys() - attributes:
        assert isinstance(offered[name], property) == isinstance(expected[name], property), name
        assert not inspect.iscoroutinefunction(offered[name]), name


@pytest.mark.parametrize(("asynchronous", "blocking", "left_out"), FACES)
def test_the_faces_have_the_same_parameters(
    asynchronous: type, blocking: type, left_out: set[str]
) -> None:
    compared = 0
    for name, member in members(asynchronous).items():
        if inspect.isfunction(member) and name not in left_out:
            ours = inspect.signature(getattr(blocking, name))
            assert ours == blocking_signature(member), f"{blocking.__name__}.{name}"
            compared += 1
    assert compared > 1
    if asynchronous is app.Holdfast:
        assert inspect.signature(blocking) == inspect.signature(asynchronous)


def blocking_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of an asynchronous function, were it a blocking one."""
    signature = inspect.signature(function)
    if str(signature.return_annotation).startswith("RunStream["):
        returned = signature.return_annotation.replace("RunStream", "BlockingStream")
        return signature.replace(return_annotation=returned)
    if not str(signature.return_annotation).startswith("AsyncGenerator["):
        return signature
    returned = re.sub(
        r"^AsyncGenerator\[(\w+), None\]$",
        r"Generator[\1, None, None]",
        signature.return_annotation,
    )
    return signature.replace(return_annotation=returned)


def test_the_blocking_face_stays_small() -> None:
    assert len(members(sync.Holdfast)) <= 22
    assert sorted(sync.__all__) == sync.__all__


@pytest.mark.parametrize(("asynchronous", "blocking", "left_out"), FACES)
def test_the_blocking_api_has_the_docstrings_of_the_async_one(
    asynchronous: type, blocking: type, left_out: set[str]
) -> None:
    for name, member in members(asynchronous).items():
        if name not in left_out and inspect.isfunction(member):
            first = re.sub("async (?=with)", "", (inspect.getdoc(member) or "").split("\n")[0])
            assert (inspect.getdoc(getattr(blocking, name)) or "").startswith(first), name
            assert "await" not in (inspect.getdoc(getattr(blocking, name)) or ""), name


def test_no_annotation_takes_the_method_list_for_the_builtin() -> None:
    for face in (app.Holdfast, sync.Holdfast):
        for name, member in members(face).items():
            if inspect.isfunction(member):
                told = " ".join(map(str, member.__annotations__.values()))
                assert not re.search(r"(?<![.\w])list\[", told), name


# --- it works -------------------------------------------------------------------------------------


def test_every_method(hf: Holdfast) -> None:
    asking_graph = asking()
    hf.create()
    with hf.worker([counting(), asking_graph]) as worker:
        run = hf.start(counting(), {"number": 1}, id="a", tenant="t", labels={"k": "v"}, user="u")
        assert run.result(timeout=DEADLINE_SECONDS) == {"number": 2}
        assert (run.id, run.tenant, repr(run)) == ("a", "t", "<run 'a' of tenant 't'>")
        assert run.get() == hf.run("a", tenant="t").get()
        assert run.get().labels == {"k": "v"}
        assert run.get().user is not None
        assert [entry.kind for entry in run.history().entries] == ["node", "finished"]
        assert hf.run("a", tenant="t").history() == run.history()
        first = run.history(limit=1)
        (second,) = hf.run("a", tenant="t").history(cursor=first.cursor).entries
        assert [first.entries[0], second] == list(run.events()) == run.history().entries
        assert list(hf.run("a", tenant="t").events(after=first.cursor, follow=False)) == [second]
        assert [
            entry.id for entry in hf.list(RunFilter(graph="counting"), tenant="t", limit=5).runs
        ] == ["a"]
        assert hf.list(RunFilter(status="failed"), tenant="t").runs == []

        by_handle, by_name = hf.start(asking_graph, id="b"), hf.start(asking_graph, id="c")
        by_handle.signal("answer", "yes", signal_id="1")
        hf.run("c").signal("answer", "no")
        assert by_handle.result(timeout=DEADLINE_SECONDS) == {"answer": "yes"}
        assert hf.run("c").result(timeout=DEADLINE_SECONDS) == {"answer": "no"}
        assert by_name.id == "c"

        hf.start(asking_graph, id="f", labels={"many": "yes"})
        counted = list(hf.cancel_all(RunFilter(labels={"many": "yes"}), dry_run=True))
        assert [(each.seen, each.done) for each in counted] == [(1, 0)]
        assert [each.done for each in hf.cancel_all(RunFilter(labels={"many": "yes"}))] == [1]
        assert [each.seen for each in hf.retry_all(everything=True)] == [0]
        assert [each.blobs for each in hf.sweep_blobs(older_than=86_400)] == [0, 0]

        hf.start(asking_graph, id="d").cancel("enough")
        hf.start(asking_graph, id="e")
        hf.run("e").extend(days(8))
        hf.run("e").extend(days(9))
        assert hf.run("e").get().expires_at - hf.run("e").get().created_at > days(8)
        hf.run("e").cancel("enough")
        for each in (worker.id, worker.counts["finished"] == 3, worker.running <= 2):
            assert each
    assert hf.run("d").get().status == hf.run("e").get().status == "cancelled"
    assert hf.meter.report().calls > 10


def test_a_session_has_an_order(hf: Holdfast) -> None:
    graph = asking()
    hf.start(graph, id="a", session="chat-7", user="u")
    hf.start(graph, id="b", session="chat-7", user="u", on_busy="queue")
    with pytest.raises(SessionBusy):
        hf.start(graph, id="c", session="chat-7", user="u", on_busy="reject")
    assert [entry.id for entry in hf.session_queue("chat-7", user="u")] == ["a", "b"]
    assert hf.session_queue("chat-7") == hf.session_queue("chat-7", user="u", tenant="t") == []
    with hf.worker([graph]):
        for id in ("a", "b"):
            hf.run(id).signal("answer", "yes")
            assert hf.run(id).result(timeout=DEADLINE_SECONDS) == {"answer": "yes"}


def test_children_are_listed(hf: Holdfast) -> None:
    graph, parent = asking(), Graph("parent", State)

    @parent.node
    def delegate(state: State, ctx: Any) -> State:
        return ctx.run(graph, id="child")

    with hf.worker([graph, parent]):
        run = hf.start(parent, id="parent")
        while not hf.run("parent").children():
            pass
        hf.run("child").signal("answer", "yes")
        assert run.result(timeout=DEADLINE_SECONDS) == {"answer": "yes"}
    assert [(child.id, child.status) for child in hf.run("parent").children()] == [
        ("child", "finished")
    ]
    assert (hf.run("child").get().parent, hf.run("parent").get().parent) == ("parent", None)
    assert hf.run("child").children() == []


def test_a_failed_run_is_retried(hf: Holdfast) -> None:
    graph = Graph("failing", State)
    broken = True

    @graph.node
    def work(state: State) -> State:
        if broken:
            raise ValueError("broken")
        return {"answer": "whole"}

    with hf.worker([graph]):
        run, other = hf.start(graph, id="a"), hf.start(graph, id="b")
        for each in (run, other):
            with pytest.raises(RunFailed, match="ValueError: broken"):
                each.result(timeout=DEADLINE_SECONDS)
        broken = False
        run.retry(from_node="work")
        hf.run("b").retry()
        assert run.result(timeout=DEADLINE_SECONDS) == {"answer": "whole"}
        assert other.result(timeout=DEADLINE_SECONDS) == {"answer": "whole"}


def test_a_run_asks_within_its_budget_and_its_text_can_be_followed(url: str) -> None:
    graph = Graph("questions", State)

    @graph.node
    def ask(state: State, ctx: Any) -> State:
        answers = [ctx.model("cheap", "Is it?", stream=True, max_tokens=5) for _ in range(2)]
        ctx.wait(signal("go on"))
        return {"answer": " ".join(answer.text for answer in answers)}

    model = Offline(["yes", "no"], price=ModelPrice(input_usd=1, output_usd=1))
    quota = Quota("cheap", requests=100, per=60)
    with Holdfast(url, models={"cheap": model}, quotas={"cheap": quota}) as hf:
        with hf.worker([graph]):
            run = hf.start(graph, id="a", budget=Budget(usd=0))
            while run.get().reason != "budget":
                pass
            run.set_budget(Budget(usd=0, tokens=1_000))
            assert run.get().budget == Budget(usd=0, tokens=1_000).limits
            hf.run("a").set_budget(Budget(usd=1))
            while run.get().reason != "signal":
                pass
            assert (hf.saved.calls, run.get().cost_usd > 0) == (0, True)
            assert hf.run("a").spending().usd == run.get().cost_usd
            run.signal("go on")
            assert run.result(timeout=DEADLINE_SECONDS) == {"answer": "yes no"}
            assert [piece.text for piece in run.tokens()] == ["yes", "no"]
        assert (hf.saved.calls, hf.saved.tokens) == (2, run.get().tokens)
        assert list(hf.run("a").tokens(follow=False)) == list(run.tokens())


def test_a_call_that_may_have_been_made_is_resolved(hf: Holdfast) -> None:
    graph = Graph("paying", State)

    @tool(at_most_once=True)
    def pay() -> str:
        raise ConnectionError("torn")

    @graph.node
    async def node(state: State, ctx: Context) -> State:
        return {"answer": await ctx.call(pay)}

    with hf.worker([graph]):
        runs = [hf.start(graph, id=id) for id in ("a", "b")]
        while len(calls := {call.run: call.call for call in hf.ambiguous()}) < 2:
            pass
        assert list(hf.ambiguous(tenant="t")) == []
        with pytest.raises(NotAmbiguous):
            hf.run("a").resolve(calls["b"], void=True)
        hf.run("a").resolve(calls["a"], result="paid")
        hf.run("b").resolve(calls["b"], error="the bank closed")
        assert runs[0].result(timeout=DEADLINE_SECONDS) == {"answer": "paid"}
        with pytest.raises(RunFailed, match="the bank closed"):
            runs[1].result(timeout=DEADLINE_SECONDS)


def test_errors_come_through_as_they_are(hf: Holdfast) -> None:
    with pytest.raises(InvalidUrl):
        Holdfast("runs.db")
    with pytest.raises(InvalidInput):
        hf.start(counting(), {"number": "many"})
    with pytest.raises(RunNotFound):
        hf.run("nobody").get()
    with pytest.raises(InvalidRequest, match="no such option"):
        hf.worker([counting()], haste=1)
    with pytest.raises(TimeoutError):
        hf.start(asking()).result(timeout=0.01)


def test_several_threads_share_one(hf: Holdfast) -> None:
    graph = counting()

    def work(number: int) -> int:
        return hf.start(graph, {"number": number}).result(timeout=DEADLINE_SECONDS)["number"]

    with hf.worker([graph]), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(40))) == list(range(1, 41))


async def test_it_works_inside_a_running_event_loop(url: str) -> None:
    graph = counting()
    with Holdfast(url) as hf, hf.worker([graph]):
        assert hf.start(graph).result(timeout=DEADLINE_SECONDS) == {"number": 1}
    assert asyncio.get_running_loop().is_running()


def test_a_plain_node_may_call_what_runs_it_and_a_coroutine_may_not(hf: Holdfast) -> None:
    graph = Graph("calling", State, start="plain")

    @graph.node
    def plain(state: State) -> State:
        return {"number": len(hf.list().runs)}

    @graph.node
    async def coroutine(state: State) -> State:
        hf.list()
        return {}

    graph.route(plain, coroutine)
    with hf.worker([graph]):
        run = hf.start(graph)
        with pytest.raises(RunFailed, match="it would wait for itself"):
            run.result(timeout=DEADLINE_SECONDS)
        assert run.history().entries[0].details["delta"] == {"number": 1}


# --- it ends --------------------------------------------------------------------------------------


def test_after_close_everything_says_so(url: str) -> None:
    before = set(threading.enumerate())
    hf = Holdfast(url)
    graph = counting()
    run = hf.start(graph, id="a")
    worker = hf.worker([graph])
    hf.close()
    calls: list[Callable[[], object]] = [
        lambda: hf.start(graph),
        lambda: hf.run("a"),
        lambda: hf.run("a").get(),
        lambda: hf.list(),
        lambda: hf.run("a").history(),
        lambda: hf.run("a").events(),
        lambda: hf.cancel_all(RunFilter(graph="g")),
        lambda: hf.retry_all(RunFilter(graph="g")),
        lambda: hf.sweep_blobs(),
        lambda: hf.run("a").tokens(),
        lambda: hf.ambiguous(),
        lambda: hf.run("a").resolve("b"),
        lambda: hf.run("a").spending(),
        lambda: hf.run("a").set_budget(Budget(tokens=1)),
        lambda: hf.run("a").signal("b"),
        lambda: hf.run("a").cancel(),
        lambda: hf.run("a").retry(),
        lambda: hf.worker([graph]),
        lambda: hf.create(),
        lambda: run.result(),
        lambda: run.get(),
        lambda: worker.start(),
    ]
    for call in calls:
        with pytest.raises(StoreClosed, match="after it was closed"):
            call()
    assert hf.meter.report().calls > 0
    hf.close()
    worker.stop()
    left = set(threading.enumerate()) - before  # other tests leave threads that nobody can stop
    assert not [each for each in left if each.name.startswith("holdfast")]


def test_closing_ends_a_stream_that_waits(hf: Holdfast) -> None:
    graph = asking()
    with ThreadPoolExecutor(1) as threads, hf.worker([graph]):
        run = hf.start(graph)
        stream = run.events()
        waiting = threads.submit(next, stream)
        while run.get().status != "waiting":
            assert not waiting.done()
        hf.close()
        with pytest.raises(StoreClosed):
            waiting.result(DEADLINE_SECONDS)
    stream.close()


def test_a_stream_that_is_left_early_listens_no_longer(hf: Holdfast) -> None:
    with hf.worker([counting()]):
        run = hf.start(counting())
        run.result(timeout=DEADLINE_SECONDS)
        stream = run.events()
        assert next(stream).kind == "node"
        listeners = hf._holdfast._kernel.notifier._listeners
        assert len(listeners) == 1
        stream.close()
        assert listeners == {}


def test_closing_stops_the_workers_and_whoever_waits(hf: Holdfast) -> None:
    graph = asking()
    with ThreadPoolExecutor(1) as threads, hf.worker([graph]) as worker:
        run = hf.start(graph)
        waiting = threads.submit(run.result)
        while run.get().status != "waiting":
            assert not waiting.done()
        hf.close()
        with pytest.raises(StoreClosed):
            waiting.result(DEADLINE_SECONDS)
        assert worker.running == 0


def test_a_worker_that_never_started_is_left_alone(url: str) -> None:
    with Holdfast(url) as hf:
        hf.worker([counting()]).stop()


def test_a_node_that_ends_the_loop_leaves_nobody_waiting(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("exiting", State)

    @graph.node
    async def leave(state: State) -> State:
        sys.exit(3)

    hf = Holdfast(url)
    hf.worker([graph]).start()
    with pytest.raises(StoreClosed, match=re.escape("ended by SystemExit(3)")):
        hf.start(graph, id="doc-42").result(timeout=DEADLINE_SECONDS)
    with pytest.raises(StoreClosed, match=re.escape("ended by SystemExit(3)")):
        hf.list()
    hf.close()
    told = "run doc-42 of tenant default: a node raised SystemExit(3), which ends the process"
    assert told in [record.getMessage() for record in caplog.records]


# --- processes ------------------------------------------------------------------------------------

PROGRAM = """
    import os, signal, sys, threading
    from typing import TypedDict
    from holdfast import Graph
    from holdfast.errors import StoreClosed
    from holdfast.sync import Holdfast

    class State(TypedDict, total=False):
        number: int

    graph = Graph("graph", State)
"""


def program(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # From 3.12 on Python warns of every fork beside threads, which is what is tried out here.
    warnings = ("-W", "error", "-W", "ignore::DeprecationWarning")
    return subprocess.run(
        [sys.executable, *warnings, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_ends_a_blocking_call(tmp_path: Path) -> None:
    code = """
        waiting = threading.Event()

        @graph.node
        def interrupt(state):
            waiting.wait()
            os.kill(os.getpid(), signal.SIGINT)

        @graph.node
        async def ask(state, ctx):
            await ctx.sleep(1000)

        graph.route(interrupt, ask)
        try:
            with Holdfast("sqlite:///runs.db") as hf, hf.worker([graph]):
                run = hf.start(graph, id="a")
                waiting.set()
                run.result()
        except KeyboardInterrupt:
            print("interrupted")
        with Holdfast("sqlite:///runs.db") as hf:
            print(hf.run("a").get().owner)
    """
    done = program(code, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\nNone\n", "", 0)


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_the_drain(tmp_path: Path) -> None:
    code = """
        never = threading.Event()

        @graph.node
        def block(state):
            os.kill(os.getpid(), signal.SIGINT)
            while not worker._worker.draining:
                never.wait(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            never.wait()

        try:
            with Holdfast("sqlite:///runs.db") as hf:
                worker = hf.worker([graph], drain=3600)
                with worker:
                    hf.start(graph).result()
        except KeyboardInterrupt as error:
            print("interrupted", type(error.__context__).__name__)
    """
    done = program(code, tmp_path)
    assert (done.stdout, done.returncode) == ("interrupted KeyboardInterrupt\n", 0), done.stderr


def test_a_fork_opens_its_own(tmp_path: Path) -> None:
    code = """
        @graph.node
        async def count(state):
            return {"number": 1}

        with Holdfast("sqlite:///runs.db") as hf:
            hf.list()  # then no thread is inside of SQLite, whose locks a fork copies as they are
            child = os.fork()
            if child == 0:
                try:
                    hf.start(graph)
                except StoreClosed as error:
                    print(error)
                with Holdfast("sqlite:///runs.db") as own:
                    print(own.list().runs)
            else:
                assert os.waitpid(child, 0)[1] == 0
                with hf.worker([graph]):
                    print(hf.start(graph).result())
    """
    done = program(code, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == [
        "Holdfast was opened before this process forked; open it again here",
        "[]",
        "{'number': 1}",
    ]


def test_a_stream_can_be_opened_before_its_first_item(tmp_path: Path) -> None:
    graph = counting()
    with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf, hf.worker([graph]):
        for unknown in (hf.run("nothing").events(), hf.run("nothing").tokens()):
            with pytest.raises(RunNotFound), unknown:
                raise AssertionError("opened")
        run = hf.start(graph, id="a")
        assert run.until("finished", timeout=60).status == "finished"
        with run.events(ephemeral=True) as stream:
            kinds = [entry.kind for entry in stream]
        assert kinds[0] == "snapshot"
        assert kinds[-1] == "ended"
        assert list(stream) == []
        with pytest.raises(InvalidQuery):
            run.events(after=f"{'0' * 36}.1.0").open()
