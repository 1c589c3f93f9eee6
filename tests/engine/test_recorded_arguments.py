"""The arguments of calls in the history: what is recorded, what it costs, what is never written."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast import Context, HistoryEntry, Holdfast, RunHandle, agent, signal, tool
from holdfast.engine.effects.plain_arguments import CopyTooLarge, plain_arguments
from holdfast.errors import InvalidRequest
from holdfast.integrations.offline import Offline
from holdfast.model.event import CallFinished, RecordedCall
from holdfast.model.invocation import Request, ToolCall
from holdfast.records.codec import pack, unpack_events, unpack_recorded_events, unpack_value
from holdfast.records.journal import content_of
from tests.engine.asking import graph_of
from tests.engine.support import House, incompressible, journal_items, units_of

SECRET = "hunter2-and-more"


async def charge(order: int, amount: int = 3, **more: Any) -> str:
    return f"receipt {order}"


async def echo(**given: Any) -> None: ...


async def finished(house: House, hf: Holdfast, node: Any) -> RunHandle:
    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
    return run


async def entries_of(run: RunHandle, kind: str = "call") -> list[HistoryEntry]:
    return [entry for entry in (await run.history(limit=1000)).entries if entry.kind == kind]


async def arguments_of(run: RunHandle, kind: str = "call") -> list[Any]:
    return [entry.details.get("arguments") for entry in await entries_of(run, kind)]


# --- what is shown --------------------------------------------------------------------------------


async def test_a_history_shows_arguments_by_name(either: House) -> None:
    async def many(first: int, *rest: int, idempotency_key: str, ctx: Any) -> None: ...

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(charge, 42, note="x")
        await ctx.call(many, 1, 2, 3)
        await ctx.call(lambda: None)

    run = await finished(either, either.open(), node)
    assert await arguments_of(run) == [
        {"order": 42, "note": "x"},
        {"first": 1, "*args": [2, 3]},
        {},
    ]


async def test_the_arguments_are_those_before_the_call(either: House) -> None:
    async def changes(given: list[int]) -> None:
        given.append(2)

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(changes, [1])

    assert await arguments_of(await finished(either, either.open(), node)) == [{"given": [1]}]


async def test_a_failed_call_shows_its_arguments(either: House) -> None:
    async def fails(order: int) -> None:
        raise ValueError("no")

    async def node(state: Any, ctx: Context) -> Any:
        try:
            await ctx.call(fails, 7)
        except Exception:
            return {"failed": True}

    assert await arguments_of(await finished(either, either.open(), node)) == [{"order": 7}]


async def test_a_prompt_is_shown_with_model_tools_and_parameters(either: House) -> None:
    async def node(state: Any, ctx: Context) -> Any:
        await ctx.model("m", "Hello?", temperature=0, max_tokens=9)

    run = await finished(either, either.open(models={"m": Offline(["Hi."])}), node)
    (shown,) = await arguments_of(run)
    message = {"role": "user", "content": "Hello?"}
    assert shown == {"model": "offline", "messages": [message], "temperature": 0, "max_tokens": 9}


async def test_an_intent_and_the_list_of_ambiguous_calls_show_arguments(either: House) -> None:
    @tool(at_most_once=True)
    async def pay(amount: int, token: str) -> None:
        raise ConnectionError("torn")

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(pay, 7, token=SECRET)

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        (listed,) = [call async for call in hf.ambiguous()]
        await run.resolve(listed.call, result=None)
        await run.result(timeout=60)
    assert listed.arguments == {"amount": 7, "token": "***"}
    assert await arguments_of(run, "intent") == [{"amount": 7, "token": "***"}]
    assert await arguments_of(run) == [None]  # the intent has them


async def test_large_arguments_of_an_ambiguous_call_are_only_in_the_history(either: House) -> None:
    @tool(at_most_once=True)
    async def pay(note: str) -> None:
        raise ConnectionError("torn")

    note = incompressible(1, 500).hex()

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.with_options(record="full").call(pay, note)

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        (listed,) = [call async for call in hf.ambiguous()]
    assert listed.arguments is None
    assert await arguments_of(run, "intent") == [{"note": note}]


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [*range(500, 900, 13), *range(1_600, 1_900, 29)])
async def test_by_default_arguments_never_cost_a_unit(either: House, size: int) -> None:
    """On the way the sizes pass the limits of two units, with the arguments and without them."""

    async def answers(text: str) -> str:
        return incompressible(size, size).hex()

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(answers, incompressible(1, 100).hex())

    cost: list[Any] = []
    for record in ("fitting", "none"):
        hf = either.open(record=record)
        graph = graph_of(node)
        async with either.worker(hf, graph) as worker:
            hf.meter.reset()
            run = await hf.start(graph, id=record.ljust(7, "-"))
            await either.quiet(worker)
        cost.append(units_of(hf, "journal"))
        shown = (await entries_of(run))[0].details
        if record == "fitting":
            assert ("arguments" in shown) != ("arguments_omitted" in shown) or cost[0].write == 1
    assert cost[0] == cost[1]


async def test_arguments_that_do_not_fit_are_left_out_and_the_history_says_so(
    either: House,
) -> None:
    text = incompressible(1, 2_000).hex()

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(echo, text=text)
        await ctx.with_options(record="full").call(echo, text=text)
        await ctx.call(echo, text=text * 100)

    entries = await entries_of(await finished(either, either.open(), node))
    assert "arguments" not in entries[0].details
    assert "would cost more" in entries[0].details["arguments_omitted"]
    assert entries[1].details["arguments"] == {"text": text}
    assert entries[2].details["arguments_omitted"] == "they are too large for the record"


async def test_full_arguments_that_no_item_can_hold_do_not_fail_the_call(house: House) -> None:
    text = incompressible(1, 126_000).hex()

    async def answers(text: str) -> str:
        return incompressible(2, 180_000).hex()

    async def node(state: Any, ctx: Context) -> Any:
        return {"size": len(await ctx.with_options(record="full").call(answers, text))}

    run = await finished(house, house.open(), node)
    assert (await run.result())["size"] == 360_000


# --- conversations --------------------------------------------------------------------------------


class Talkative(Offline):
    """Calls a tool in each answer but the last, and remembers what it was asked."""

    def __init__(self, turns: int) -> None:
        answers = [ToolCall(str(n), "look_up", {"order": n}) for n in range(turns - 1)]
        super().__init__([*answers, "done"])
        self.asked: list[Request] = []

    async def answer(self, request: Request, emit: Any) -> Any:
        self.asked.append(request)
        return await super().answer(request, emit)


async def look_up(order: int) -> str:
    """Look up an order."""
    return incompressible(order, 200).hex()


async def conversation(house: House, turns: int, *, record: Any, pauses: bool = False) -> Any:
    model = Talkative(turns)

    async def asks(order: int, ctx: Context) -> str:
        """Look up an order."""
        if pauses:
            await ctx.wait(signal(f"go-{order}"))
        return await look_up(order)

    asks.__name__ = asks.__qualname__ = "look_up"
    talk = agent("m", [asks], system="Be kind.", turns_max=turns, record=record)

    async def node(state: Any, ctx: Context) -> Any:
        return {"text": (await talk(ctx, "Where are my orders?")).text}

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id=f"{record}-{turns}")
        for order in range(turns - 1 if pauses else 0):
            await house.quiet(worker)
            await run.signal(f"go-{order}")
        assert await run.result(timeout=60) == {"text": "done"}
    return run, model


@pytest.mark.parametrize("pauses", [False, True], ids=["at once", "paused in each turn"])
async def test_the_bytes_of_a_conversation_are_linear_in_its_turns(
    either: House, pauses: bool
) -> None:
    size = {}
    for turns in (25, 50):
        run, _ = await conversation(either, turns, record="full", pauses=pauses)
        bare, _ = await conversation(either, turns, record="none", pauses=pauses)
        size[turns] = (await run.get()).journal_bytes - (await bare.get()).journal_bytes
    assert size[50] < 2.2 * size[25]


async def test_a_history_shows_each_prompt_as_the_model_got_it(either: House) -> None:
    run, model = await conversation(either, 12, record="full")
    prompts = [shown for shown in await arguments_of(run) if shown and "messages" in shown]
    assert [shown["messages"] for shown in prompts] == [asked.messages for asked in model.asked]


@pytest.mark.parametrize("limit", [1, 7])
async def test_prompts_are_put_together_across_pages(either: House, limit: int) -> None:
    run, model = await conversation(either, 12, record="full", pauses=True)
    shown: list[Any] = []
    cursor = None
    while True:
        page = await run.history(limit=limit, cursor=cursor)
        shown += [entry.details.get("arguments") or {} for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    prompts = [each["messages"] for each in shown if "messages" in each]
    assert prompts == [asked.messages for asked in model.asked]


async def test_a_prompt_after_one_that_was_left_out_shows_what_is_new(either: House) -> None:
    model = Offline(["one", "two"])
    text = incompressible(1, 30_000).hex()

    async def node(state: Any, ctx: Context) -> Any:
        first: list[dict[str, Any]] = [{"role": "user", "content": text}]
        answer = await ctx.model("m", first)
        await ctx.model("m", [*first, answer.message(), {"role": "user", "content": "And?"}])

    run = await finished(either, either.open(models={"m": model}), node)
    first, second = await entries_of(run)
    assert "arguments" not in first.details
    assert second.details["arguments"]["messages"] == [{"role": "user", "content": "And?"}]
    assert second.details["arguments_omitted"] == (
        "the messages before these: those of call model.m#1, and its answer"
    )


# --- what is never written ------------------------------------------------------------------------


async def test_secrets_are_nowhere_in_the_file(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Login:
        user: str
        PASSWORD: str

    async def log_in(user: str, password: str, **more: Any) -> None: ...

    @tool(at_most_once=True)
    async def pay(amount: int, api_key: str) -> None: ...

    async def node(state: Any, ctx: Context) -> Any:
        headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
        await ctx.call(log_in, "ann", SECRET, headers=headers, login=Login("ann", SECRET))
        await ctx.call(log_in, "ann", SECRET, address=f"https://ann:{SECRET}@example.com/x")
        await ctx.call(
            log_in, "ann", SECRET, pairs=[("api-key", SECRET)], nested=[{"a": [headers]}]
        )
        await ctx.call(pay, 3, SECRET)
        await ctx.model("m", "Hello?", extra={"access_token": SECRET})

    for record in ("fitting", "full"):
        hf = Holdfast(
            f"sqlite:///{tmp_path}/runs.db", models={"m": Offline(["Hi."])}, record=record
        )
        graph = graph_of(node)
        async with hf, hf.worker([graph]):
            run = await hf.start(graph, id=record)
            await run.result(timeout=60)
            shown = [*await arguments_of(run), *await arguments_of(run, "intent")]
            records = [content_of(item).data or b"" for item in await journal_items(hf, record)]
        assert len(records) > 5
        # Compression would hide a secret from a search in the file.
        assert SECRET not in repr([unpack_value(data) for data in records])
        assert shown[0]["login"] == {"user": "ann", "PASSWORD": "***"}
        assert shown[1]["address"] == "https://***@example.com/x"
        assert shown[-1] == {"amount": 3, "api_key": "***"}
    assert SECRET.encode() not in _bytes_in(tmp_path)


def _bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.parametrize("record", ["fitting", "full"])
async def test_redact_decides_what_is_written(either: House, record: Any) -> None:
    def redact(arguments: dict[str, Any]) -> Any:
        if "order" in arguments:
            arguments["order"] = "gone"
            return arguments
        return None

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(charge, 42, 5)
        await ctx.call(echo, text="x")

    run = await finished(either, either.open(record=record, redact=redact), node)
    assert await arguments_of(run) == [{"order": "gone", "amount": 5}, None]


async def test_an_error_of_redact_is_logged_without_the_arguments(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    def redact(arguments: Any) -> Any:
        raise KeyError(arguments)

    async def node(state: Any, ctx: Context) -> Any:
        return {"done": await ctx.call(charge, 42, note=SECRET)}

    with caplog.at_level(logging.WARNING):
        run = await finished(either, either.open(redact=redact), node)
    assert (await run.result())["done"] == "receipt 42"
    (entry,) = await entries_of(run)
    assert "arguments" not in entry.details
    assert entry.details["arguments_omitted"] == "redact raised an error"
    assert "redact raised KeyError for call charge#1" in caplog.text
    assert SECRET not in caplog.text


async def test_the_narrowest_option_wins_and_the_none_of_a_tool_always(either: House) -> None:
    @tool(record="none")
    async def secret(text: str) -> None: ...

    @tool(record="fitting")
    async def public(text: str) -> None: ...

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.with_options(record="full").call(secret, "a")
        await ctx.call(public, "b")
        await ctx.with_options(record="none").call(public, "c")
        await ctx.call(echo, text="d")
        await ctx.model("m", "e", record="full")
        await ctx.model("m", "f")

    hf = either.open(record="none", models={"m": Offline(["1", "2"])})
    entries = await entries_of(await finished(either, hf, node))
    shown = [entry.details.get("arguments") for entry in entries]
    assert shown[:4] == [None, {"text": "b"}, None, None]
    assert shown[4]["messages"] == [{"role": "user", "content": "e"}]
    assert shown[5] is None
    assert not any("arguments_omitted" in entry.details for entry in entries)


async def test_a_call_without_arguments_has_the_bytes_of_earlier_releases(either: House) -> None:
    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(charge, 42)

    hf = either.open(record="none")
    await finished(either, hf, node)
    items = await journal_items(hf, "doc-42")
    for item in items:
        data = content_of(item).data or b""
        assert pack(unpack_events(data)) == data


def test_events_without_arguments_are_read_as_before() -> None:
    old = CallFinished(1, "node", 0, "charge#1", b"digest", "ok")
    (read,) = unpack_recorded_events(pack([old]))
    assert isinstance(read, RecordedCall)
    assert read.arguments is None
    assert unpack_events(pack([read])) == [old]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record": "all"}, "record must be 'fitting', 'full' or 'none', got 'all'"),
        ({"record": None}, "record must be"),
        ({"redact": "x"}, "redact must be a plain function"),
    ],
)
def test_invalid_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Holdfast("sqlite://", **options)


async def test_a_coroutine_function_cannot_redact(either: House) -> None:
    async def redact(arguments: Any) -> Any: ...

    with pytest.raises(InvalidRequest, match="redact must be a plain function"):
        either.open(redact=redact)
    with pytest.raises(InvalidRequest, match="record must be"):
        tool(record=cast(Any, "some"))(charge)


# --- hostile arguments ----------------------------------------------------------------------------


class Raises:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Leaks:
    def __repr__(self) -> str:
        return f"Leaks(api_key={SECRET!r})"


class Fielded(msgspec.Struct):
    number: int
    secret_key: str


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop += [loop, loop]
    return loop


HOSTILE: list[tuple[Any, Any]] = [
    (Raises(), "<Raises>"),
    (Leaks(), "<Leaks>"),
    (Fielded(1, SECRET), {"number": 1, "secret_key": "***"}),
    (2**70, "<int of 71 bits>"),
    (float, "<class 'float'>"),
    ("\ud800x", "?x"),
    (b"x" * 1000, "<1,000 bytes>"),
    ({2, 1}, [1, 2]),
    ({(1, 2): 3}, {"[1, 2]": 3}),
    ({True: 1, 2: 3}, {"True": 1, 2: 3}),
    (
        {"max_tokens": 5, "token": "t", "password": None},
        {"max_tokens": 5, "token": "***", "password": None},
    ),
    (object(), "<object object>"),
]


@pytest.mark.parametrize(("value", "shown"), HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
def test_any_value_becomes_a_plain_one(value: Any, shown: Any) -> None:
    copied = plain_arguments({"value": value}, 10_000, cut=False)
    assert copied == {"value": shown}
    assert "0x" not in str(copied)
    msgspec.msgpack.encode(copied)
    msgspec.json.encode(copied)


@pytest.mark.parametrize(
    "value", [_endless(), "x" * 10_000_000, list(range(1_000_000)), {"a": ["y" * 100] * 100_000}]
)
def test_the_copy_is_bounded(value: Any) -> None:
    with pytest.raises(CopyTooLarge):
        plain_arguments(value, 32_000, cut=False)
    assert len(msgspec.msgpack.encode(plain_arguments(value, 32_000, cut=True))) < 100_000


async def test_no_argument_fails_its_call(either: House) -> None:
    async def node(state: Any, ctx: Context) -> Any:
        for value in [*(value for value, _ in HOSTILE), iter([1])]:
            await ctx.call(echo, value=value)
        return {"done": True}

    run = await finished(either, either.open(), node)
    assert (await run.result())["done"] is True
