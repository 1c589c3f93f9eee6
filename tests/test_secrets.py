"""Secrets are planted where users have them; none may be seen in logs, errors, reprs or outputs.

Keys, passwords and users' names must be seen nowhere. What is in inputs, signals and results
is shown by a run's state and history, to whoever may read the run; but no error and no log line
quotes it.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import logging
import traceback
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import httpx
import msgspec
import pydantic
import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Holdfast, signal, tool
from holdfast.cli import main
from holdfast.clock import SystemClock, SystemIds
from holdfast.engine.kernel import Kernel
from holdfast.errors import HoldfastError, InvalidUrl
from holdfast.integrations.offline import Offline
from holdfast.integrations.openai import OpenAI
from holdfast.model.invocation import Request
from holdfast.records.keys import SETTINGS
from holdfast.records.settings import settings_of
from holdfast.storage import Key
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.open import open as open_store
from holdfast.storage.operations import GetItem
from tests.engine.support import House, StepClock

PLANTED_MIN = 30
WAIT_SECONDS_MAX = 30


class Form(TypedDict, total=False):
    """What a run is given."""

    number: int
    text: str
    said: Any


class Colour(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int = 1


class Strict(TypedDict, total=False):
    """What takes little."""

    choice: Literal["a", "b"]
    colour: Colour
    inner: Inner


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Closed(pydantic.BaseModel, extra="forbid"):
    number: int = 1


class Modelled(pydantic.BaseModel):
    counts: dict[str, int] = {}
    inner: Closed = Closed()
    tagged: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")] | None = None


class Seen:
    """Everything that was shown, and what must not be among it."""

    def __init__(self, url: str, environment: pytest.MonkeyPatch, folder: Path) -> None:
        self.url = url
        self.environment = environment
        self.folder = folder
        self.planted: list[str] = []
        self.shown: list[str] = []

    def secret(self) -> str:
        """Return another secret."""
        self.planted.append(f"hush{len(self.planted):02d}quiet")
        return self.planted[-1]

    def show(self, *values: object) -> None:
        """Take in what somebody could see of values."""
        self.shown += [f"{value!r} {value}" for value in values]

    async def refused(self, asked: Callable[[], Awaitable[object]]) -> None:
        """Do what cannot be done, and take in the error, and whatever led to it."""
        try:
            await asked()
        except HoldfastError as error:
            self.shown += [repr(error), *traceback.format_exception(error, limit=0)]
        else:
            raise AssertionError("it was not refused")

    async def typed(self, *arguments: str) -> None:
        """Type a command, and take in what it prints."""
        # In a thread: a command runs an event loop of its own.
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), arguments
        self.shown.append(result.output)

    def leaks(self) -> Iterator[str]:
        """Yield each secret that is to be seen, with what shows it."""
        for secret in self.planted:
            raw = secret.encode()
            forms = (secret, base64.b64encode(raw).decode()[:-4], raw.hex(), repr(list(raw))[1:-1])
            for form in (*forms, urllib.parse.quote(secret)):
                yield from (f"{secret}: {text:.300}" for text in self.shown if form in text)


Scenario = Callable[[Seen], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[getattr(function, "__name__", "")] = function
    return function


asking = Graph("asking", Form)


@asking.node
async def ask(state: Form, ctx: Context) -> Form:
    return {"said": await ctx.wait(signal("answer"))}


quick = Graph("quick", Form)


@quick.node
async def finish(state: Form) -> None:
    return None


class Opaque:
    """What cannot be kept."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return f"Opaque({self.secret})"


# --- keys and users -------------------------------------------------------------------------------


@scenario
async def the_key_of_users(seen: Seen) -> None:
    given, short, text = seen.secret(), seen.secret()[:14], seen.secret()
    seen.planted[1] = short
    async with Holdfast(seen.url, user_key=given.encode() * 2) as hf:
        run = await hf.start(quick, user="ann")
        kernel = Kernel(hf._store, SystemClock(), SystemIds(), given.encode())
        seen.show(hf, kernel, run, await run.get(), await hf.list())
        item = await hf._store.table.get(SETTINGS)
        assert item is not None
        seen.planted += [repr(item["user_key"])[2:-1], item["user_key"].hex()]
        seen.show(settings_of(item), [settings_of(item)], await kernel.settings())
    for key in (short.encode(), text):

        async def opened(key: Any = key) -> None:
            Holdfast(seen.url, user_key=key)

        await seen.refused(opened)
    await seen.typed("run", "show", run.id, "--url", seen.url, "--json")


@scenario
async def the_names_of_users(seen: Seen) -> None:
    ann, bob, long = seen.secret(), seen.secret(), seen.secret()
    async with Holdfast(seen.url) as hf, hf.worker([asking, quick]):
        run = await hf.start(quick, {}, id="x", user=ann)
        await run.result(timeout=WAIT_SECONDS_MAX)
        await hf.start(asking, {}, id="y", session="chat", user=ann)
        await seen.refused(lambda: hf.start(quick, {}, id="x", user=bob))
        await seen.refused(lambda: hf.start(quick, {}, user=long * 200))
        seen.show(hf, run, await run.get(), await hf.lane("chat", user=ann), await hf.list())
        seen.show((await hf.history("x")).entries)
        for pk in ("RUN#default#x", "RUN#default#y", "SETTINGS"):
            seen.show([item async for item in hf._store.table.every(pk)])
    for typed in (["run", "show", "x"], ["run", "history", "x", "--json"], ["run", "list"]):
        await seen.typed(*typed, "--url", seen.url)
    await seen.typed("run", "lane", "chat", "--user", ann, "--json", "--url", seen.url)


# --- what runs are given, and say -----------------------------------------------------------------


@scenario
async def inputs(seen: Seen) -> None:
    kept, other, misfit, opaque, name = (seen.secret() for _ in range(5))
    async with Holdfast(seen.url) as hf, hf.worker([quick]):
        run = await hf.start(quick, {"text": kept}, id="x")
        await run.result(timeout=WAIT_SECONDS_MAX)
        await seen.refused(lambda: hf.start(quick, {"text": other}, id="x"))
        await seen.refused(lambda: hf.start(quick, {"number": misfit}))
        await seen.refused(lambda: hf.start(quick, {"said": Opaque(opaque)}))
        await seen.refused(lambda: hf.start(quick, {"said": {"deep": [Opaque(name), 2**70]}}))
        seen.show(run, hf)


@scenario
async def what_does_not_fit_its_type(seen: Seen) -> None:
    answer, *secrets = (seen.secret() for _ in range(10))
    choice, colour, name, inner, returned, picked, key, extra, tag = secrets

    async def chosen(state: Any) -> Any:
        return {"choice": returned}

    async def asks(state: Any, ctx: Context) -> Any:
        @tool
        async def pick() -> Literal["a"]:
            return picked  # type: ignore[return-value]

        await ctx.call(pick)

    async def answered(state: Any, ctx: Context) -> Any:
        (await ctx.model("m", "q")).json()

    graphs: list[Graph] = []
    for number, node in enumerate((chosen, asks, answered)):
        graphs.append(Graph(f"strict{number}", Strict))
        graphs[-1].node(name="node")(node)
    modelled = Graph("modelled", Modelled)
    modelled.node(name="node")(chosen)
    models = {"m": Offline([answer])}
    async with Holdfast(seen.url, models=models) as hf, hf.worker([*graphs, modelled]):
        for input in (
            {"choice": choice},
            {"colour": colour},
            {name: 1},
            {"inner": {inner: 1}},
        ):
            await seen.refused(lambda input=input: hf.start(graphs[0], input))
        for input in ({"counts": {key: "x"}}, {"inner": {extra: 1}}, {"tagged": {"kind": tag}}):
            await seen.refused(lambda input=input: hf.start(modelled, input))
        for graph in graphs:
            run = await hf.start(graph)
            await seen.refused(lambda run=run: run.result(timeout=WAIT_SECONDS_MAX))
            seen.show(await run.get())


@scenario
async def signals(seen: Seen) -> None:
    sent, other, opaque, late = (seen.secret() for _ in range(4))
    async with Holdfast(seen.url) as hf, hf.worker([asking]):
        run = await hf.start(asking, id="x")
        await run.signal("answer", sent, signal_id="1")
        await run.result(timeout=WAIT_SECONDS_MAX)
        other_run = await hf.start(asking, id="y")
        await other_run.signal("other", "a", signal_id="1")
        await seen.refused(lambda: other_run.signal("other", other, signal_id="1"))
        await seen.refused(lambda: other_run.signal("other", {"a": Opaque(opaque)}))
        await seen.refused(lambda: run.signal("answer", late))
        seen.show(run, await run.get(), hf)


@scenario
async def what_tools_are_told_and_return(seen: Seen) -> None:
    argument, changed, misfit, probed, told = (seen.secret() for _ in range(5))

    @tool(at_most_once=True, probe=lambda key: probed)
    async def pay(amount: str) -> int:
        raise OSError("no answer")

    @tool
    async def count(text: str) -> int:
        return misfit  # type: ignore[return-value]

    graph = Graph("calling", Form)
    visits: list[int] = []

    @graph.node
    async def call(state: Form, ctx: Context) -> None:
        visits.append(1)
        try:
            await ctx.call(count, argument if len(visits) == 1 else changed)
        except HoldfastError as error:
            seen.show(error)
        await ctx.call(pay, argument)

    house = House(seen.url, StepClock())
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="x")
        await house.quiet(worker)
        (asked,) = [each async for each in hf.ambiguous()]
        await hf.resolve("x", asked.call, result=told)
        await house.quiet(worker)
        (again,) = [each async for each in hf.ambiguous()]
        seen.show(asked, again, worker, await run.get())
        await run.cancel()
        await house.quiet(worker)
    await house.close()
    assert len(visits) > 1


# --- addresses and credentials --------------------------------------------------------------------


def store_urls(seen: Seen) -> list[str]:
    passwords = [seen.secret() for _ in range(4)]
    endpoint = "dynamodb://runs?region=us-east-1&"
    return [
        f"postgres://ann:{passwords[0]}@db.example.com/runs",
        f"sqlite://ann:{passwords[1]}@somewhere/runs.db",
        f"{endpoint}endpoint=http://ann:{passwords[2]}@127.0.0.1:1",
        f"{endpoint}bucket=b&bucket_endpoint=http://ann:{passwords[3]}@127.0.0.1:1",
    ]


@scenario
async def store_addresses(seen: Seen) -> None:
    for url in store_urls(seen):
        with pytest.raises(InvalidUrl) as refused:
            open_store(url)
        seen.show(refused.value)


@scenario
async def addresses_on_the_command_line(seen: Seen) -> None:
    for url in store_urls(seen):
        for typed in (["store", "check", url], ["store", "create", url]):
            await seen.typed(*typed)
        seen.environment.setenv("HOLDFAST_URL", url)
        await seen.typed("run", "list", "--json")


async def asked_dynamodb(seen: Seen, endpoint: str | None) -> None:
    engine = DynamoEngine("runs", region="eu-west-1", endpoint=endpoint, retry_budget_seconds=0.1)
    seen.show(engine, vars(engine))
    await seen.refused(lambda: engine.perform(GetItem(Key("a", "b"), False)))
    seen.show(engine, vars(engine))
    await engine.close()


@scenario
async def credentials_of_the_environment(seen: Seen) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        seen.environment.setenv(name, seen.secret())
    await asked_dynamodb(seen, "http://127.0.0.1:1")


@scenario
async def credentials_of_a_file(seen: Seen) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        seen.environment.delenv(name, raising=False)
    file = seen.folder / "credentials"
    seen.environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    lines = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    file.write_text("[default]\n" + "".join(f"{name} = {seen.secret()}\n" for name in lines))
    await asked_dynamodb(seen, "http://127.0.0.1:1")


@scenario
async def proxies(seen: Seen) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"):
        seen.environment.delenv(name, raising=False)
    seen.environment.setenv("HTTPS_PROXY", f"http://ann:{seen.secret()}@127.0.0.1:{port}")
    seen.environment.setenv("HTTP_PROXY", f"http://ann:{seen.secret()}@127.0.0.1:{port}")
    await asked_dynamodb(seen, None)
    await asked_dynamodb(seen, "http://dynamodb.example.com")
    server.close()
    await server.wait_closed()


@scenario
async def keys_of_models(seen: Seen) -> None:
    environment, given, password, echoed, broken = (seen.secret() for _ in range(5))
    seen.environment.setenv("OPENAI_API_KEY", environment)

    def echo(request: httpx.Request) -> httpx.Response:
        told = f"wrong key {request.headers.get('authorization')} at {request.url}"
        return httpx.Response(401, json={"error": {"message": told, "code": "invalid_api_key"}})

    client = httpx.AsyncClient(transport=httpx.MockTransport(echo))
    elsewhere = "https://models.example.com/v1"
    models: list[Callable[[], OpenAI]] = [
        lambda: OpenAI("m", base_url=elsewhere, client=client),
        lambda: OpenAI("m", api_key=given, client=client),
        lambda: OpenAI(
            "m", base_url=f"https://ann:{password}@models.example.com/v1", client=client
        ),
        lambda: OpenAI("m", base_url=elsewhere, api_key=echoed, client=client),
        lambda: OpenAI("m", api_key=f"{broken}\nkey", client=client),
    ]
    for made in models:

        async def ask(made: Callable[[], OpenAI] = made) -> None:
            model = made()
            seen.show(model, {"m": model})
            await model.answer(Request.of("m", "hi"), None)

        await seen.refused(ask)
    await client.aclose()


# --- the search -----------------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    monkeypatch.chdir(tmp_path)
    return Seen(f"sqlite:///{tmp_path}/runs.db", monkeypatch, tmp_path)


COUNTS: dict[str, int] = {}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_no_secret_is_shown(name: str, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "holdfast")
    async with asyncio.timeout(2 * WAIT_SECONDS_MAX):
        await SCENARIOS[name](seen)
    COUNTS[name] = len(seen.planted)
    seen.shown += [record.getMessage() for record in caplog.records]
    seen.shown += [record.exc_text or "" for record in caplog.records]
    assert list(seen.leaks()) == []


def test_so_many_secrets_were_planted() -> None:
    if set(COUNTS) == set(SCENARIOS):  # all of them ran, in this process
        assert sum(COUNTS.values()) >= PLANTED_MIN


async def test_a_secret_that_is_shown_is_found(seen: Seen) -> None:
    """The search itself: in each form, wherever it is."""
    secret = seen.secret()
    for text in (secret, repr(secret.encode()), secret.encode().hex(), f"a {secret!r} b"):
        seen.shown = [text]
        assert list(seen.leaks())
    seen.shown = ["nothing"]
    assert not list(seen.leaks())
