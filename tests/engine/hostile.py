"""What is attacked with hostile input, each in a child process with little memory and time.

Each target is called by `tests.confinement`, with the seed and the number of examples:
``python -m tests.confinement tests.engine.hostile:attack_stored 7 1000`` tries a thousand more.
What it is handed may be refused, with an error of Holdfast's, and by nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import cache
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from holdfast import (
    Budget,
    Graph,
    Holdfast,
    PayloadLimits,
    Retry,
    RunFilter,
    Worker,
    errors,
    signal,
    tool,
)
from holdfast.errors import (
    CallFailed,
    CallTimedOut,
    ChangesOff,
    ChangesTrimmed,
    HoldfastError,
    InvalidBlobKey,
    InvalidName,
    InvalidQuery,
    Unsuccessful,
)
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.offline import Offline
from holdfast.integrations.openai import OpenAI
from holdfast.records.codec import unpack_events, unpack_value
from holdfast.records.index_keys import shard_of
from holdfast.storage.sqlite.item_codec import Unreadable, decode_attributes, encode_attributes
from tests import hostile
from tests.confinement import MB, confine, mapped_bytes, peak_bytes

# Measured over hundreds of examples, a target takes up to 25 MB more than after its warm-up: for
# Hypothesis, for what it draws (texts of a megabyte, a body of 8 MB), and for values of the largest
# size that is allowed here. What is let through although it exceeds its limit takes 200 MB or more.
MORE_BYTES = 48 * MB
CPU_SECONDS = 120
WARM_UP_EXAMPLES = 30
WAIT_SECONDS_MAX = 60
KB = 1024
LIMITS = PayloadLimits(
    input_bytes_max=64 * KB,
    signal_bytes_max=64 * KB,
    state_bytes_max=128 * KB,
    answer_bytes_max=64 * KB,
    arguments_bytes_max=64 * KB,
    inbox_bytes_max=256 * KB,
    record_bytes_max=512 * KB,
)
ONCE = Retry(attempts=1)
NUMBERS = itertools.count()
GIVEN: dict[str, Any] = {}
"""What a run is to return, or is told, by its id."""

# --- the runs that are attacked -------------------------------------------------------------------


@tool(retry=ONCE)
async def returns(run: str) -> Any:
    """Return what is to be returned; it is not an argument."""
    return GIVEN[run]


@tool(retry=ONCE)
async def swallows(value: Any) -> None:
    """Take any argument."""


GRAPH = Graph("g", dict)


@GRAPH.node
async def node(state: Any, ctx: Any) -> Any:
    """Do with a value what the input says."""
    what, value = state.get("what", ""), GIVEN.get(ctx.run_id)
    if what == "signal":
        await ctx.wait(signal("value"))
    if what == "state":
        return value
    try:
        if what == "result":
            await ctx.call(returns, ctx.run_id)
        if what == "argument":
            await ctx.call(swallows, value)
        if what in ("chat", "bedrock"):
            await ctx.model(what, ctx.run_id, stream=state["stream"], retry=ONCE, timeout=30)
    except (CallFailed, CallTimedOut) as failed:
        kinds = getattr(failed, "kinds", ())
        if not any(kind.startswith("holdfast.errors.") for kind in kinds):
            raise AssertionError(f"a call failed with {kinds}: {failed}") from None
    return {}


class Client:
    """What boto3 answers, without boto3."""

    def converse(self, *, messages: Any, **asked: Any) -> Any:
        return GIVEN[_asked_by(messages)]

    def converse_stream(self, *, messages: Any, **asked: Any) -> Any:
        return {"stream": Frames(GIVEN[_asked_by(messages)])}


class Frames(list[Any]):
    """A stream of events."""

    def close(self) -> None: ...


def _asked_by(messages: Any) -> str:
    return messages[0]["content"][0]["text"]


def respond(request: httpx.Request) -> httpx.Response:
    """Answer as a service does that is broken, or worse."""
    (run,) = [name for name in GIVEN if name.encode() in request.content]
    status, headers, body = GIVEN[run]

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    return httpx.Response(status, headers=headers, content=pieces())


@asynccontextmanager
async def opened(folder: str) -> AsyncIterator[tuple[Holdfast, Worker]]:
    """A store and a worker that have done everything once."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    models = {
        "chat": OpenAI("m", client=client),
        "bedrock": Bedrock("m", client=Client()),
        "offline": Offline(lambda request: "a few words"),
    }
    async with (
        client,
        Holdfast(f"sqlite:///{folder}/runs.db", limits=LIMITS, models=models) as hf,
        hf.worker([GRAPH, RICH], drain=0, resumes_max=1) as worker,
    ):
        chat = hostile.completion("content", '"yes"', stream=False)
        await answers(hf, ("result", {}, {"a": "b" * 30 * KB}))
        await answers(hf, ("chat", {"stream": False}, (200, {}, chat)))
        await answers(hf, ("bedrock", {"stream": False}, hostile.converse("yes", 8)))
        run = await hf.start(GRAPH, {"what": "signal"})
        await run.signal("value", ["a" * 30 * KB])
        await run.result(timeout=WAIT_SECONDS_MAX)
        assert (await hf.list()).runs
        yield hf, worker


def attack(
    act: Callable[[Holdfast, Any], Coroutine[Any, Any, None]],
    drawn: st.SearchStrategy[Any],
    *,
    number: str,
    examples: str,
    first: Sequence[Any] = (),
) -> None:
    """Hand a target those ``first``, and then one value after the other until enough were tried."""

    async def check_worker(worker: Worker) -> None:
        assert worker.health.ok, worker.health

    def drawing(
        test: Callable[[hostile.Drawn], None], *, number: int, examples: int
    ) -> Callable[[], None]:
        how = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        return seed(number)(how(given(drawn.map(hostile.Drawn))(test)))

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        store = opened(folder)
        hf, worker = runner.run(store.__aenter__())
        # Hypothesis makes tables of all characters when it first draws one.
        drawing(lambda drawn: None, number=-1, examples=WARM_UP_EXAMPLES)()
        confine(more_bytes=MORE_BYTES, cpu_seconds=CPU_SECONDS)
        before = mapped_bytes()

        def check(drawn: hostile.Drawn) -> None:
            try:
                runner.run(act(hf, drawn.value))
            except HoldfastError:
                return
            except BaseException:
                traceback.print_exc()
                print(f"It was handed {drawn!r}", file=sys.stderr, flush=True)
                os._exit(1)  # further values would meet what this one left

        for each in first:
            check(hostile.Drawn(each))
        drawing(check, number=int(number), examples=int(examples))()
        runner.run(check_worker(worker))
        print(f"{(peak_bytes() - before) / MB:.0f} MB more than when it was confined")
        runner.run(store.__aexit__(None, None, None))


def _new(what: str) -> str:
    return f"{what}-{next(NUMBERS):06d}"


async def _ended(run: Any) -> None:
    """Wait for the end of a run, which is a result or an error of Holdfast's."""
    try:
        await run.result(timeout=WAIT_SECONDS_MAX)
    except Unsuccessful as ended:
        if not ended.kind or not hasattr(errors, ended.kind):
            raise AssertionError(f"the run ended with {ended.kind}: {ended}") from None


# --- start, signal, state, answers ----------------------------------------------------------------

ANY = hostile.values(surrogates=True, large=True)
ENDLESS = (hostile.shared(12, 10, 1), hostile.wide(100_000, "a" * MB), hostile.wide(10**6, []))
NAMED = st.dictionaries(hostile.texts(surrogates=True), ANY, max_size=3)


def attack_start(number: str, examples: str) -> None:
    """Attack inputs, and the names that come with them."""
    names = st.none() | hostile.texts(surrogates=True)
    names |= hostile.values(surrogates=True, max_leaves=3)
    drawn = st.tuples(ANY | NAMED, st.integers(0, 9), names)
    first = [({"a": value}, 0, "x") for value in ENDLESS]
    attack(starts, drawn, number=number, examples=examples, first=first)


async def starts(hf: Holdfast, handed: tuple[Any, int, Any]) -> None:
    value, at, name = handed
    with suppress(HoldfastError):
        await hf.start(GRAPH, value, id=_new("start"))
    option = ("id", "session", "user", "tenant", "pool", "labels", "graph")[at % 7]
    if option == "graph":
        await hf.start(name, {})
    else:
        await hf.start(
            GRAPH,
            {},
            **{option: {name: name} if option == "labels" and isinstance(name, str) else name},
        )


def attack_signal(number: str, examples: str) -> None:
    """Attack payloads, and the names of signals."""
    names = hostile.texts(surrogates=True) | st.just("value")
    first = [(value, "value", "1") for value in ENDLESS]
    attack(signals, st.tuples(ANY, names, names), number=number, examples=examples, first=first)


async def signals(hf: Holdfast, handed: tuple[Any, str, str]) -> None:
    value, name, id = handed
    run = await hf.start(GRAPH, {"what": "signal"}, id=_new("signal"))
    for sent in ((name, value, id), ("noise", value, None), ("value", value, None)):
        with suppress(HoldfastError):
            await run.signal(sent[0], sent[1], signal_id=sent[2])
    await run.signal("value", "enough", signal_id="enough")
    await _ended(run)


def attack_state(number: str, examples: str) -> None:
    """Attack states: what nodes return."""
    first = [{"a": value} for value in ENDLESS]
    attack(states, ANY | NAMED, number=number, examples=examples, first=first)


async def states(hf: Holdfast, value: Any) -> None:
    await answers(hf, ("state", {}, value))


def attack_answers(number: str, examples: str) -> None:
    """Attack answers of tools and of models, whole and streamed, and arguments of calls."""
    drawn = st.one_of(
        st.tuples(st.sampled_from(("result", "argument")), st.just({}), ANY),
        *(
            st.tuples(st.just("chat"), st.just({"stream": stream}), _responses(stream=stream))
            for stream in (False, True)
        ),
        *(
            st.tuples(
                st.just("bedrock"), st.just({"stream": stream}), hostile.converses(stream=stream)
            )
            for stream in (False, True)
        ),
    )
    first = [("result", {}, value) for value in ENDLESS]
    attack(answers, drawn, number=number, examples=examples, first=first)


def _responses(*, stream: bool) -> st.SearchStrategy[tuple[int, dict[str, str], bytes]]:
    kind = {"content-type": "text/event-stream"} if stream else {}
    packed = {**kind, "content-encoding": "gzip"}
    bombs = st.sampled_from((b" ", b"\n", b"[", b'{"a":', b"data: {}\n\n", b"data: x"))
    return st.one_of(
        st.tuples(
            st.sampled_from((200, 200, 429, 500)), st.just(kind), hostile.completions(stream=stream)
        ),
        st.tuples(
            st.sampled_from((200, 500)),
            st.just(packed),
            bombs.map(_bomb),
        ),
    )


@cache
def _bomb(fill: bytes) -> bytes:
    return hostile.bomb(300 * MB, fill=fill)


async def answers(hf: Holdfast, handed: tuple[str, dict[str, Any], Any]) -> None:
    what, how, value = handed
    id = _new(what)
    GIVEN[id] = value
    try:
        await _ended(await hf.start(GRAPH, {"what": what, **how}, id=id))
    finally:
        del GIVEN[id]


# --- cursors --------------------------------------------------------------------------------------


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


ASKS: dict[str, Callable[[Holdfast, Any], Coroutine[Any, Any, object]]] = {
    "list": lambda hf, cursor: hf.list(cursor=cursor),
    "list of some": lambda hf, cursor: hf.list(RunFilter(status="failed"), cursor=cursor, limit=1),
    "history": lambda hf, cursor: hf.run("doc-1").history(cursor=cursor),
    "events": lambda hf, cursor: _all(hf.run("doc-1").events(after=cursor, follow=False)),
    "tokens": lambda hf, cursor: _all(hf.run("doc-1").tokens(after=cursor, follow=False)),
    "cancel_all": lambda hf, cursor: _all(
        hf.cancel_all(everything=True, dry_run=True, cursor=cursor)
    ),
    "retry_all": lambda hf, cursor: _all(
        hf.retry_all(everything=True, dry_run=True, cursor=cursor)
    ),
    "session queue": lambda hf, cursor: hf.session_queue(cursor),
    "session queue of a user": lambda hf, cursor: hf.session_queue("chat", user=cursor),
    "table": lambda hf, cursor: hf._store.table.query("RUN#default#doc-1", cursor=cursor),
    "index": lambda hf, cursor: hf._store.table.query("WORKERS", index="GSI1", cursor=cursor),
    "changes": lambda hf, cursor: hf._store.table.read_changes(cursor),
    "blobs": lambda hf, cursor: hf._store.blobs.list(after=cursor),
}


def attack_cursors(number: str, examples: str) -> None:
    """Attack everything that takes a cursor."""
    attack(cursors, hostile.cursors(), number=number, examples=examples)


async def cursors(hf: Holdfast, handed: Any) -> None:
    if not hasattr(cursors, "started"):
        await hf.start(GRAPH, {"what": "signal"}, id="doc-1", session="chat")
        cursors.started = True  # type: ignore[attr-defined]
    for asked, ask in ASKS.items():
        try:
            await ask(hf, handed)
        except (InvalidQuery, InvalidBlobKey, InvalidName, ChangesOff, ChangesTrimmed) as error:
            refused = error
        else:
            continue
        assert len(str(refused)) < 500
        fields = ("session", "user") if asked.startswith("session queue") else ("cursor", "after")
        assert isinstance(refused, ChangesOff) or refused.field in fields, refused


# --- stored bytes ---------------------------------------------------------------------------------

RICH = Graph("rich", dict)


@tool(at_most_once=True)
async def unsure() -> None:
    """Fail so that nobody knows whether it was done."""
    raise OSError("no answer")


@RICH.node
async def rich(state: Any, ctx: Any) -> Any:
    """Leave a row of every kind."""
    if state.get("small"):
        await ctx.wait(signal("go"))
        return {"done": True}
    await ctx.start(RICH, {"small": True}, id=f"{ctx.run_id}-child", budget=Budget(tokens=5_000))
    await ctx.model("offline", "Say something.", stream=True, share=True)
    if state.get("unsure"):
        await ctx.call(unsure)
    await ctx.wait(signal("go"))
    return {"done": True}


def attack_stored(number: str, examples: str) -> None:
    """Attack the rows and records of a file while a worker goes over them."""
    damage = st.one_of(
        st.tuples(st.just("row"), hostile.damages()),
        st.tuples(st.just("body"), st.binary(max_size=60) | hostile.packed()),
        st.tuples(st.just("data"), hostile.packed()),
    )
    drawn = st.tuples(st.integers(0, 200), st.booleans(), damage)
    bombs = (hostile.frame_bomb(200 * MB), hostile.framed(hostile.empty_lists(2_000_000)))
    first = [(at, False, ("data", bomb)) for bomb in bombs for at in range(0, 16, 3)]
    attack(damaged, drawn, number=number, examples=examples, first=first)


async def damaged(hf: Holdfast, handed: tuple[int, bool, tuple[str, Any]]) -> None:
    """Spoil something of one run; another one in its shards ends, and every method is typed."""
    at, calls, (kind, damage) = handed
    if kind == "data":
        for unpack in (unpack_value, unpack_events):
            with suppress(HoldfastError):
                unpack(damage, LIMITS.record_bytes_max)
    id = _new("bad")
    bad = await hf.start(
        RICH, {"unsure": calls}, id=id, session=id, user="ann", budget=Budget(tokens=50_000)
    )
    good_id = next(name for name in (_new("good") for _ in range(99)) if _shard(name) == _shard(id))
    good = await hf.start(RICH, {"small": True}, id=good_id)
    await bad.signal("noise", "x" * 2_000)
    await _waits(hf, id)
    path = hf._store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        spoil(connection, id, at, kind, damage)
    for method in METHODS[:6]:
        with suppress(HoldfastError):
            await method(hf, id)
    await good.signal("go")
    assert await good.result(timeout=WAIT_SECONDS_MAX) == {"small": True, "done": True}
    page = await hf.list(limit=50)
    assert good_id in {run.id for run in page.runs}
    for method in METHODS:
        with suppress(HoldfastError, TimeoutError):
            await method(hf, id)
    if at % 10 == 0:
        with suppress(HoldfastError):
            await _all(hf.sweep_blobs())


METHODS: list[Callable[[Holdfast, str], Coroutine[Any, Any, object]]] = [
    lambda hf, id: hf.run(id).signal("noise", 1),
    lambda hf, id: hf.run(id).signal("go"),
    lambda hf, id: hf.run(f"{id}-child").signal("go"),
    lambda hf, id: hf.start(RICH, {"small": True}, session=id, user="ann"),
    lambda hf, id: hf.start(RICH, {}, id=id),
    lambda hf, id: hf.run(id).set_budget(Budget(tokens=60_000)),
    lambda hf, id: hf.run(id).get(),
    lambda hf, id: hf.run(f"{id}-child").get(),
    lambda hf, id: hf.run(id).history(),
    lambda hf, id: _all(hf.run(id).events(follow=False)),
    lambda hf, id: _all(hf.run(id).tokens(follow=False)),
    lambda hf, id: hf.run(id).children(),
    lambda hf, id: hf.session_queue(id, user="ann"),
    lambda hf, id: hf.run(id).spending(),
    lambda hf, id: _all(hf.ambiguous()),
    lambda hf, id: hf.run(id).extend("40d"),
    lambda hf, id: hf.run(id).retry(),
    lambda hf, id: hf.run(f"{id}-child").cancel(),
    lambda hf, id: hf.run(id).cancel(),
    lambda hf, id: hf.run(id).get(),
    lambda hf, id: hf.run(id).result(timeout=0.01),
]


def spoil(connection: sqlite3.Connection, id: str, at: int, kind: str, damage: Any) -> None:
    """Change one of the rows of a run, of its child or of its session."""
    rows = connection.execute(
        "SELECT pk, sk, body FROM items WHERE pk IN (?, ?) OR pk LIKE ? OR pk LIKE 'ANSWER#%' "
        "ORDER BY pk, sk",
        (f"RUN#default#{id}", f"RUN#default#{id}-child", f"LANE#%#{id}"),
    ).fetchall()
    pk, sk, body = rows[at % len(rows)]
    if kind != "body":
        try:
            item = decode_attributes(body)
        except Unreadable:
            return  # an answer that was spoilt before
        if kind == "row":
            item = damage.done_to(item, kept=lambda name: name.startswith("GSI"))
        elif "input" in item or "data" in item:
            item["input" if "input" in item else "data"] = damage
        damage = encode_attributes(item)
    connection.execute("UPDATE items SET body = ? WHERE pk = ? AND sk = ?", (damage, pk, sk))


async def _waits(hf: Holdfast, id: str) -> None:
    """Return when a run waits for what comes."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while (run := await hf.run(id).get()).status != "waiting" or run.owner is not None:
            assert run.failure is None, run.failure


def _shard(id: str) -> int:
    return shard_of(id, 2)
