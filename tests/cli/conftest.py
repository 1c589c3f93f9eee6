"""Fixtures for the command line: a folder to stand in, and a person who types."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from tests.cli.serving import serving

FLOWS = """
from typing import TypedDict

from holdfast import Graph, Retry, hours, signal
from holdfast.engine.history.text_stream import TokenWriter


class State(TypedDict, total=False):
    number: int
    answer: str
    mood: str


counting = Graph("counting", State)


@counting.node
async def count(state):
    return {"number": state.get("number", 0) + 1}


asking = Graph("asking", State, version=2)


@asking.node
async def ask(state, ctx):
    return {"answer": await ctx.wait(signal("answer"))}


approving = Graph("approving", State, signals=[signal("approved", bool)])


@approving.node
async def approve(state, ctx):
    if not await ctx.wait(signal("approved")):
        raise ValueError("not approved")


failing = Graph("failing", State, expires=hours(3))


@failing.node
async def fail(state):
    if state["mood"] == "bad":
        raise ValueError("a\\x1b[31mred\\nerror")


stubborn = Graph("stubborn", State)


@stubborn.node(retry=Retry(attempts=2, backoff=0))
async def try_again(state, ctx):
    if ctx.attempt == 1:
        raise ValueError("not yet")


speaking = Graph("speaking", State)


@speaking.node
async def speak(state, ctx):
    hold = ctx._visit.claimed
    held = {"is_claimed": hold.claim.alive, "is_lost": hold.claim.is_lost}
    for attempt in ("not ", "a\\x1b[31m", "b\\n"):
        async with TokenWriter(hold.kernel, hold.head, **held, call="c", name="small") as writer:
            writer.emit(attempt)
            if attempt == "not ":
                writer.abandon()
    async with TokenWriter(hold.kernel, hold.head, **held, call="d", name="large") as writer:
        writer.emit("done")


parent = Graph("parent", State)


@parent.node
async def delegate(state, ctx):
    return await ctx.run(asking, id="child", labels={"kind": "page"})


class Warranty(TypedDict):
    months: int
    note: str
    parts: dict[str, int]


selling = Graph("selling", State)


@selling.node
async def sell(state, ctx):
    decision = await ctx.review(
        state.get("mood") or "Sell it?",
        show={"item": "a\x1b[31mlamp"},
        form=Warranty,
        values={"months": 24, "note": "", "parts": {"bulb": 1}},
        assignees=["ana", "bob"][: state.get("number", 0)],
        quorum=max(state.get("number", 0), 1),
    )
    if decision.approved:
        told = f"{decision.values['months']} {decision.values['note']}"
        return {"answer": f"{decision.by} {told} {decision.values['parts']}"}
    return {"answer": f"{decision.by} {decision.status}: {decision.comment}"}


deciding = Graph("deciding", State)


@deciding.node
async def decide(state, ctx):
    return {"answer": str(await ctx.wait(signal("approved", bool)))}


all_of_them = (counting, asking)
nothing = []
number = 7
"""


class Holdfast(Protocol):
    """Types ``holdfast …``."""

    def __call__(self, *arguments: str, input: str | None = None) -> Result: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module ``flows``; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "flows.py").write_text(FLOWS)
    before = set(sys.modules)
    yield tmp_path
    # Only these: httpx keeps classes of modules that it imports when it needs them.
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(place.startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


# The modules with tests that must pass on a store and on a server.
ON_BOTH = (
    "test_run", "test_effects", "test_run_state", "test_waits",
    "test_key", "test_webhook", "test_fleet", "test_review",
    "test_documents",
)  # fmt: skip
GROUPS = ("run", "key", "webhook", "fleet", "review", "documents", "projects")
ON_SERVERS = (*GROUPS, "cost", "doctor")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of commands that work on a server on both, unless they need a store."""
    module = metafunc.module.__name__.rpartition(".")[2]
    marked = metafunc.definition.get_closest_marker("only_on_a_store")
    if "holdfast" in metafunc.fixturenames and module in ON_BOTH and marked is None:
        metafunc.parametrize("holdfast", ["store", "server"], indirect=True)


@pytest.fixture
def holdfast(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Holdfast]:
    """The command line, in the folder and with the store ``runs.db`` there.

    As ``server``, the commands that can do so act on a server in front of that store.
    """
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///runs.db")

    def typed(*arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=input)

    if getattr(request, "param", "store") == "store":
        yield typed
        return
    with ExitStack() as stack:
        urls: list[str] = []

        def typed_on_server(*arguments: str, input: str | None = None) -> Result:
            if arguments[0] not in ON_SERVERS or "--url" in arguments or "--help" in arguments:
                return typed(*arguments, input=input)
            if not urls:  # the test has written its modules by now
                urls.append(stack.enter_context(serving(folder)))
            given = list(arguments)
            if given[:2] == ["run", "start"]:  # a server knows the graph by its name
                given[2] = given[2].partition(":")[2] or given[2]
            name = 2 if arguments[0] in GROUPS else 1
            return typed(*given[:name], "--server", urls[0], *given[name:], input=input)

        yield typed_on_server
