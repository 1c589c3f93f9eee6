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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
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
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import HoldfastError, InvalidUrl
from holdfast.integrations.offline import Offline
from holdfast.integrations.openai import OpenAI
from holdfast.model.invocation import Request
from holdfast.records.keys import SETTINGS, RunKey
from holdfast.records.settings import settings_of, user_hash
from holdfast.storage import Key
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.open import open as open_store
from holdfast.storage.operations import GetItem
from tests.engine.support import House, StepClock

PLANTED_MIN = 30
MISFITS = (
    *("choice", "colour", "name", "inner", "key", "extra", "tag"),
    *("returned", "picked", "answered"),
)
PLANTED = {
    "the_key_of_users": ("given", "short", "text", "stored"),
    "the_names_of_users": ("of a run", "of another", "too long"),
    "inputs": ("kept", "other", "misfit", "opaque", "deep"),
    "what_does_not_fit_its_type": MISFITS,
    "signals": ("taken", "other", "opaque", "late"),
    "what_tools_are_told_and_return": ("argument", "changed", "misfit", "probed", "resolved"),
    "store_addresses": ("unknown", "sqlite", "dynamodb", "s3"),
    "addresses_on_the_command_line": ("unknown", "sqlite", "dynamodb", "s3"),
    "credentials_of_the_environment": ("id", "key", "token"),
    "credentials_of_a_file": ("id", "key", "token"),
    "proxies": ("https", "http"),
    "keys_of_models": ("environment", "given", "password", "elsewhere", "broken"),
}
"""The secrets that each scenario plants, and shows to have been used."""
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

    def __init__(
        self, scenario: str, url: str, environment: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self.url = url
        self.environment = environment
        self.folder = folder
        self.planted: dict[str, str] = {}
        self.used: set[str] = set()
        self.shown: list[str] = []
        self._names = PLANTED.get(scenario, ())
        self._number = [*PLANTED].index(scenario) if scenario in PLANTED else 99

    def secret(self, name: str, *, length: int | None = None) -> str:
        """Return the secret of that name."""
        place = self._names.index(name) if name in self._names else 99
        self.planted[name] = f"hush{self._number:02d}x{place:02d}quiet"[:length]
        return self.planted[name]

    def use(self, *names: str) -> None:
        """Note that secrets have reached the code that might show them."""
        self.used.update(names)

    def show(self, *values: object) -> None:
        """Take in what somebody could see of values."""
        self.shown += [f"{value!r} {value}" for value in values]

    async def refused(self, name: str, asked: Callable[[], Awaitable[object]]) -> None:
        """Do what cannot be done with a secret, and take in the error, and whatever led to it."""
        try:
            await asked()
        except HoldfastError as error:
            self.shown += [repr(error), *traceback.format_exception(error, limit=0)]
        else:
            raise AssertionError("it was not refused")
        self.use(name)

    async def typed(self, *arguments: str) -> int:
        """Type a command, take in what it prints, and return its exit code."""
        # In a thread: a command runs an event loop of its own.
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), arguments
        self.shown.append(result.output)
        return result.exit_code

    def leaks(self) -> Iterator[str]:
        """Yield each secret that is to be seen, with what shows it."""
        for secret in self.planted.values():
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
    given, text = seen.secret("given"), seen.secret("text")
    short = seen.secret("short", length=14)
    async with Holdfast(seen.url, user_key=given.encode() * 2) as hf:
        run = await hf.start(quick, user="ann")
        kernel = Kernel(hf._store, SystemClock(), SystemIds(), given.encode())
        seen.show(hf, kernel, run, await run.get(), await hf.list())
        item = await hf._store.table.get(SETTINGS)
        assert item is not None
        seen.planted["stored"] = item["user_key"].hex()
        seen.planted["stored, as bytes"] = repr(item["user_key"])[2:-1]
        seen.use("stored", "stored, as bytes")
        row = await hf._store.table.get(RunKey("default", run.id).head)
        assert row is not None
        if user_hash("ann", "default", key=given.encode() * 2).matches(row["user"]):
            seen.use("given")
        seen.show(settings_of(item), [settings_of(item)], await kernel.get_settings())
    for name, key in (("short", short.encode()), ("text", text)):

        async def opened(key: Any = key) -> None:
            Holdfast(seen.url, user_key=key)

        await seen.refused(name, opened)
    await seen.typed("run", "show", run.id, "--url", seen.url, "--json")


@scenario
async def the_names_of_users(seen: Seen) -> None:
    ann, bob, long = (seen.secret(name) for name in ("of a run", "of another", "too long"))
    async with Holdfast(seen.url) as hf, hf.worker([asking, quick]):
        run = await hf.start(quick, {}, id="x", user=ann)
        await run.result(timeout=WAIT_SECONDS_MAX)
        await hf.start(asking, {}, id="y", session="chat", user=ann)
        await seen.refused("of another", lambda: hf.start(quick, {}, id="x", user=bob))
        await seen.refused("too long", lambda: hf.start(quick, {}, user=long * 200))
        if (await hf.start(quick, {}, id="x", user=ann)).id == "x":  # the same user
            seen.use("of a run")
        seen.show(
            hf, run, await run.get(), await hf.session_queue("chat", user=ann), await hf.list()
        )
        seen.show((await hf.run("x").history()).entries)
        for pk in ("RUN#default#x", "RUN#default#y", "SETTINGS"):
            seen.show([item async for item in hf._store.table.query_all(pk)])
    for typed in (["run", "show", "x"], ["run", "history", "x", "--json"], ["run", "list"]):
        await seen.typed(*typed, "--url", seen.url)
    await seen.typed("run", "queue", "chat", "--user", ann, "--json", "--url", seen.url)


# --- what runs are given, and say -----------------------------------------------------------------


@scenario
async def inputs(seen: Seen) -> None:
    kept, other, misfit, opaque, deep = map(seen.secret, PLANTED["inputs"])
    async with Holdfast(seen.url) as hf, hf.worker([quick]):
        run = await hf.start(quick, {"text": kept}, id="x")
        if (await run.result(timeout=WAIT_SECONDS_MAX))["text"] == kept:
            seen.use("kept")
        await seen.refused("other", lambda: hf.start(quick, {"text": other}, id="x"))
        await seen.refused("misfit", lambda: hf.start(quick, {"number": misfit}))
        await seen.refused("opaque", lambda: hf.start(quick, {"said": Opaque(opaque)}))
        await seen.refused(
            "deep", lambda: hf.start(quick, {"said": {"deep": [Opaque(deep), 2**70]}})
        )
        seen.show(run, hf)


@scenario
async def what_does_not_fit_its_type(seen: Seen) -> None:
    secrets = dict(zip(MISFITS, map(seen.secret, MISFITS), strict=True))

    async def returns(state: Any) -> Any:
        return {"choice": secrets["returned"]}

    async def calls(state: Any, ctx: Context) -> None:
        @tool
        async def pick() -> Literal["a"]:
            return secrets["picked"]  # type: ignore[return-value]

        await ctx.call(pick)

    async def asks(state: Any, ctx: Context) -> None:
        (await ctx.model("m", "q")).json()

    nodes = {"returned": returns, "picked": calls, "answered": asks}
    graphs = {name: Graph(name, Strict) for name in nodes}
    for name, graph in graphs.items():
        graph.node(name="node")(nodes[name])
    modelled = Graph("modelled", Modelled)
    modelled.node(name="node")(returns)
    inputs: dict[str, tuple[Graph, dict[str, Any]]] = {
        "choice": (graphs["returned"], {"choice": secrets["choice"]}),
        "colour": (graphs["returned"], {"colour": secrets["colour"]}),
        "name": (graphs["returned"], {secrets["name"]: 1}),
        "inner": (graphs["returned"], {"inner": {secrets["inner"]: 1}}),
        "key": (modelled, {"counts": {secrets["key"]: "x"}}),
        "extra": (modelled, {"inner": {secrets["extra"]: 1}}),
        "tag": (modelled, {"tagged": {"kind": secrets["tag"]}}),
    }
    models = {"m": Offline([secrets["answered"]])}
    async with Holdfast(seen.url, models=models) as hf, hf.worker([*graphs.values()]):
        for name, (graph, input) in inputs.items():
            await seen.refused(name, partial(hf.start, graph, input))
        for name, graph in graphs.items():
            run = await hf.start(graph)
            await seen.refused(name, partial(run.result, timeout=WAIT_SECONDS_MAX))
            seen.show(await run.get())


@scenario
async def signals(seen: Seen) -> None:
    taken, other, opaque, late = map(seen.secret, PLANTED["signals"])
    async with Holdfast(seen.url) as hf, hf.worker([asking]):
        run = await hf.start(asking, id="x")
        await run.signal("answer", taken, signal_id="1")
        if (await run.result(timeout=WAIT_SECONDS_MAX))["said"] == taken:
            seen.use("taken")
        other_run = await hf.start(asking, id="y")
        await other_run.signal("other", "a", signal_id="1")
        await seen.refused("other", lambda: other_run.signal("other", other, signal_id="1"))
        await seen.refused("opaque", lambda: other_run.signal("other", {"a": Opaque(opaque)}))
        await seen.refused("late", lambda: run.signal("answer", late))
        seen.show(run, await run.get(), hf)


@scenario
async def what_tools_are_told_and_return(seen: Seen) -> None:
    argument, changed, misfit, probed, resolved = map(
        seen.secret, PLANTED["what_tools_are_told_and_return"]
    )

    def probe(key: str) -> Any:
        seen.use("probed")
        return probed

    @tool(at_most_once=True, probe=probe)
    async def pay(amount: str) -> int:
        raise OSError("no answer")

    @tool
    async def count(text: str) -> int:
        seen.use("argument", "misfit")
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
            if len(visits) > 1:
                seen.use("changed")
        await ctx.call(pay, argument)

    house = House(seen.url, StepClock())
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="x")
        await house.quiet(worker)
        (asked,) = [each async for each in hf.ambiguous()]
        await hf.run("x").resolve(asked.call, result=resolved)
        await house.quiet(worker)
        (again,) = [each async for each in hf.ambiguous()]
        if again.call != asked.call:  # what it was told is not what the tool can return
            seen.use("resolved")
        seen.show(asked, again, worker, await run.get())
        await run.cancel()
        await house.quiet(worker)
    await house.close()
    assert len(visits) > 1


# --- addresses and credentials --------------------------------------------------------------------


def store_urls(seen: Seen) -> dict[str, str]:
    endpoint = "dynamodb://runs?region=us-east-1&"
    urls = {
        "unknown": "postgres://ann:{}@db.example.com/runs",
        "sqlite": "sqlite://ann:{}@somewhere/runs.db",
        "dynamodb": endpoint + "endpoint=http://ann:{}@127.0.0.1:1",
        "s3": endpoint + "bucket=b&bucket_endpoint=http://ann:{}@127.0.0.1:1",
    }
    return {name: url.format(seen.secret(name)) for name, url in urls.items()}


@scenario
async def store_addresses(seen: Seen) -> None:
    for name, url in store_urls(seen).items():
        with pytest.raises(InvalidUrl) as refused:
            open_store(url)
        seen.show(refused.value)
        seen.use(name)


@scenario
async def addresses_on_the_command_line(seen: Seen) -> None:
    for name, url in store_urls(seen).items():
        codes = [await seen.typed("store", command, url) for command in ("check", "create")]
        seen.environment.setenv("HOLDFAST_URL", url)
        codes.append(await seen.typed("run", "list", "--json"))
        if 0 not in codes:
            seen.use(name)


@asynccontextmanager
async def answering(response: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives one answer, and keeps what it was sent."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(8192))
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def asked_dynamodb(seen: Seen, endpoint: str | None) -> None:
    engine = DynamoEngine("runs", region="eu-west-1", endpoint=endpoint, retry_budget_seconds=0.1)
    seen.show(engine, vars(engine))
    with pytest.raises(HoldfastError) as failed:
        await engine.perform(GetItem(Key("a", "b"), False))
    seen.shown += traceback.format_exception(failed.value, limit=0)
    seen.show(engine, vars(engine))
    await engine.close()


REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


async def asked_with_credentials(seen: Seen) -> None:
    async with answering(REFUSED) as (port, heard):
        await asked_dynamodb(seen, f"http://127.0.0.1:{port}")
    sent = b"".join(heard)
    for name in ("id", "token"):
        if seen.planted[name].encode() in sent:
            seen.use(name)
    if b"Signature=" in sent:  # which is made with the secret key
        seen.use("key")


@scenario
async def credentials_of_the_environment(seen: Seen) -> None:
    seen.environment.setenv("AWS_ACCESS_KEY_ID", seen.secret("id"))
    seen.environment.setenv("AWS_SECRET_ACCESS_KEY", seen.secret("key"))
    seen.environment.setenv("AWS_SESSION_TOKEN", seen.secret("token"))
    await asked_with_credentials(seen)


@scenario
async def credentials_of_a_file(seen: Seen) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        seen.environment.delenv(name, raising=False)
    file = seen.folder / "credentials"
    seen.environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text(
        f"[default]\naws_access_key_id = {seen.secret('id')}\n"
        f"aws_secret_access_key = {seen.secret('key')}\n"
        f"aws_session_token = {seen.secret('token')}\n"
    )
    await asked_with_credentials(seen)


@scenario
async def proxies(seen: Seen) -> None:
    refused = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"):
        seen.environment.delenv(name, raising=False)
    for scheme, endpoint in (("https", None), ("http", "http://dynamodb.example.com")):
        async with answering(refused) as (port, heard):
            address = f"ann:{seen.secret(scheme)}"
            seen.environment.setenv(f"{scheme.upper()}_PROXY", f"http://{address}@127.0.0.1:{port}")
            await asked_dynamodb(seen, endpoint)
        if base64.b64encode(address.encode()) in b"".join(heard):
            seen.use(scheme)


@scenario
async def keys_of_models(seen: Seen) -> None:
    environment, given, password, elsewhere, broken = map(seen.secret, PLANTED["keys_of_models"])
    seen.environment.setenv("OPENAI_API_KEY", environment)

    def echo(request: httpx.Request) -> httpx.Response:
        sent = request.headers.get("authorization", "")
        seen.use(*(name for name, secret in seen.planted.items() if secret in sent))
        told = f"wrong key {sent} at {request.url}"
        return httpx.Response(401, json={"error": {"message": told, "code": "invalid_api_key"}})

    client = httpx.AsyncClient(transport=httpx.MockTransport(echo))
    other = "https://models.example.com/v1"
    models: list[Callable[[], OpenAI]] = [
        lambda: OpenAI("m", client=client),
        lambda: OpenAI("m", base_url=other, client=client),
        lambda: OpenAI("m", api_key=given, client=client),
        lambda: OpenAI("m", base_url=other, api_key=elsewhere, client=client),
        lambda: OpenAI("m", base_url=f"https://ann:{password}@models.example.com", client=client),
        lambda: OpenAI("m", api_key=f"{broken}\nkey", client=client),
    ]

    async def ask(made: Callable[[], OpenAI]) -> None:
        model = made()
        seen.show(model, {"m": model})
        await model.answer(Request.of("m", "hi"), None)

    for made in models:
        with pytest.raises(HoldfastError) as failed:
            await ask(made)
        seen.shown += traceback.format_exception(failed.value, limit=0)
        # Those two are refused before anything is sent.
        field = getattr(failed.value, "field", "")
        seen.use(*({"base_url": ["password"], "api_key": ["broken"]}.get(field, [])))
    await client.aclose()


# --- the search -----------------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Seen:
    monkeypatch.chdir(tmp_path)
    name = request.node.callspec.params["name"] if hasattr(request.node, "callspec") else ""
    return Seen(name, f"sqlite:///{tmp_path}/runs.db", monkeypatch, tmp_path)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_no_secret_is_shown(name: str, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "holdfast")
    async with asyncio.timeout(2 * WAIT_SECONDS_MAX):
        await SCENARIOS[name](seen)
    assert set(PLANTED[name]) <= set(seen.planted)
    assert seen.used == set(seen.planted)  # one that reached nothing would prove nothing
    seen.shown += [record.getMessage() for record in caplog.records]
    seen.shown += [record.exc_text or "" for record in caplog.records]
    assert list(seen.leaks()) == []


def test_so_many_secrets_are_planted() -> None:
    assert PLANTED.keys() == SCENARIOS.keys()
    planted = [(scenario, name) for scenario, names in PLANTED.items() for name in names]
    assert len(set(planted)) == len(planted) >= PLANTED_MIN


async def test_a_secret_that_is_shown_is_found(seen: Seen) -> None:
    """The search itself: in each form, wherever it is."""
    secret = seen.secret("of the search")
    for text in (secret, repr(secret.encode()), secret.encode().hex(), f"a {secret!r} b"):
        seen.shown = [text]
        assert list(seen.leaks())
    seen.shown = ["nothing"]
    assert not list(seen.leaks())
