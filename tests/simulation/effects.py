"""The world outside that calls touch, and the steps of a plan that touch it.

========= ==========================================================================================
``guess`` answers something else whenever it is asked, as a model does
``post``  honours keys: under one it acts once, and answers the same however often it is asked
``wire``  acts whenever it is asked; its probe burns the key of what has not arrived
``mail``  as much without a probe: a person looks, and burns
``gated`` honours keys, and has a quota that all workers share
`oracle`  answers something else whenever it is asked, and is paid for that
``sage``  as much, with a quota; what it answers the runs of a tenant share: see `shared`
========= ==========================================================================================

A request travels by itself: whoever sent it may crash or stall meanwhile, and it arrives, or is
lost, all the same. What a step ``call chain`` does, in a node of its own or in a branch:

=========== ========================================================================================
``chain``   guesses, and posts the guess
``linger``  the same, with so much time between them that nothing else writes the guess down
``nap``     the same, with a pause of the run between them
``kid``     guesses, and starts another run then
``beside``  several side by side
``named``   posts under a key of its own
``again``   posts, and fails once
``once``    wires
``mail``    mails
``relay``   wires, posts the receipt, and mails what came of that
``model``   asks a model, and posts its answer
``models``  asks it several things side by side
``gate``    makes several calls side by side that have a quota
``heirs``   lets three runs ask it that share the budget, and asks it itself
``slice``   lets a run ask it that has a part of the budget for itself
``torn``    lets a run ask it that shares the budget, and fails until it is retried
``tear``    what that run does
``estate``  lets a run with a part of the budget ask it, and leave other runs behind that ask it
``leave``   what that run does
``told``    asks it, and lets its text be followed: see `streams`
``tolds``   as much, several side by side
``shared``  asks what other runs ask
``twins``   asks it twice side by side
``retold``  asks it, and lets the text be followed
=========== ========================================================================================
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine.execution.child import Child
from holdfast.engine.execution.context import Context
from holdfast.errors import CallFailed, NotDone
from holdfast.graph.tool import UNKNOWN, VOID, Tool, done, tool
from holdfast.model.budget import Budget
from holdfast.model.invocation import Answer
from holdfast.model.invocation import Request as ModelRequest
from holdfast.model.policy import Retry
from holdfast.records.codec import arguments_digest
from tests.simulation.faults import drawn
from tests.simulation.gate import QUOTA, Gate
from tests.simulation.loop import OWNER
from tests.simulation.oracle import MOST_TOKENS, Books, Oracle, asked_of, budget_of, digest_of
from tests.simulation.process import Process
from tests.simulation.shared import KEEP_SECONDS, SAGE, TOPICS, Shared, sides
from tests.simulation.streams import Streams

if TYPE_CHECKING:
    from tests.simulation.once import Journey, Once
    from tests.simulation.world import World

__all__ = ["CALLS", "TELLING", "Outside"]

CALLS = (
    *("chain", "linger", "nap", "kid", "beside", "named", "again"),
    *("once", "mail", "relay", "model", "models", "heirs", "slice", "gate", "torn", "estate"),
)
"""What a step can call."""
TELLING = ("told", "told", "tolds", "shared", "shared", "twins", "retold", "retold")
"""What it can call besides, in fleets that share answers and follow texts."""
ORACLE = "oracle"

_RETRY = Retry(attempts=4, backoff=0.4, factor=3, jitter=0.3)
_SECONDS_MIN = 0.002
_SECONDS_MAX = 4.0
_SAGE_SECONDS_MAX = 50.0
_LINGER_SECONDS = 0.3
_MENDED_SECONDS = 10.0
"""Long enough for a worker that stalled to wake up meanwhile."""
_PROBE_SECONDS = 0.02
_PROBE_UNSURE = 0.25
_NOT_DONE = 0.04
_FAILED_BY_PERSON = 0.4

_NOISE_BYTES = 12_000

_caller: ContextVar[Context] = ContextVar("caller")
_sides: ContextVar[int] = ContextVar("sides")

HEIR = ["work 0.1", "nap 3.5", "call model"]
TORN = ["work 0.1", "call tear"]
ESTATE = ["work 0.1", "call leave"]
LEFT = ["nap 2", "call models", "nap 6", "call models"]
SLICE_TOKENS = 40 * MOST_TOKENS
"""Enough, however much of it is lost."""


class Start(Protocol):
    """Starts a run of a plan."""

    async def __call__(
        self, ctx: Context, plan: list[str] | None = None, budget: Budget | None = None
    ) -> Child: ...


class End(Protocol):
    """Waits for a run that was started."""

    async def __call__(self, child: Child) -> str: ...


class Refused(Exception):
    """The key was burned."""


@dataclass
class Request:
    """What was sent, and what is to come back."""

    journey: Journey
    process: Process
    answer: asyncio.Future[Any]
    found: Any = None


class Outside:
    """Everything that calls reach, with what ever happened there."""

    def __init__(
        self,
        world: World,
        seen: Counter[str],
        *,
        once: Once,
        books: Books,
        gate: Gate,
        shared: Shared,
        streams: Streams,
    ) -> None:
        self._world = world
        self._once = once
        self._gate = gate
        self._books = books
        self._shared = shared
        self._streams = streams
        self.models = {
            ORACLE: Oracle(ORACLE, self._ask, streams.tell, input_max=books.input_max),
            SAGE: Oracle(SAGE, self._consult, streams.tell),
        }
        self._seen = seen
        self._receipts: dict[str, str] = {}
        """What was done, by the key under which it was asked for."""
        self._burned: set[str] = set()
        self._said: dict[str, dict[str, Any]] = {}
        """What a person says of a key, once and for all."""
        self._sources: dict[str, bytes] = {}
        """Which call's answer another one is made with."""
        self._digests: dict[str, bytes] = {}
        self._asked_by: dict[str, Context] = {}
        self.torn: dict[str, bool] = {}
        """Runs that fail until they are mended, and retried; and whether they have not ended."""
        self.mended: set[str] = set()
        self.slices: dict[str, bool] = {}
        """Runs with a part of another one's budget; and whether it is still to be altered."""
        self.begun_again: frozenset[str] = frozenset()
        """Runs that may be begun in memory, die with it, and be begun again."""
        self._guesses = 0
        self._guess = self._tool("guess", self._guessed)
        self._post = self._tool("post", self._posted)
        self._wire = self._tool("wire", self._acted, at_most_once=True, probe=self._probe)
        self._mail = self._tool("mail", self._acted, at_most_once=True)
        self._gated = self._tool("gated", self._posted, quota=QUOTA)

    # --- what a person does -----------------------------------------------------------------------

    def said_of(self, key: str) -> dict[str, Any]:
        """Return what became of a call, as somebody says who has looked; then it stays so."""
        if key not in self._said:
            if key in self._receipts:
                self._said[key] = {"result": self._receipts[key]}
            else:
                self._burn(key)
                failed = self._world.random.random() < _FAILED_BY_PERSON
                self._said[key] = {"error": "it came to nothing"} if failed else {"void": True}
        return self._said[key]

    # --- what a step does -------------------------------------------------------------------------

    async def step(self, ctx: Context, kind: str, start: Start, end: End) -> str:
        """Make the calls of a step; return what it adds."""
        _caller.set(ctx)
        match kind:
            case "chain" | "linger" | "nap" | "kid":
                guess = await self._call(ctx, self._guess, 1)
                await self._between(ctx, kind, guess, start)
                await self._call(ctx, self._post, 2, guess, source=_digest(self._name(ctx, 1)))
            case "beside":
                await self._beside(ctx)
            case "named":
                await self._call(ctx, self._post, 1, key=self._name(ctx, 1))
            case "again":
                await self._call(ctx, self._post, 1)
                if ctx.attempt == 1:
                    raise ValueError("once more")
            case "once":
                await self._call(ctx, self._wire, 1)
            case "mail":
                await self._call(ctx, self._mail, 1)
            case "relay":
                receipt = await self._call(ctx, self._wire, 1)
                source = _digest(self._name(ctx, 1))
                posted = await self._call(ctx, self._post, 2, receipt, source=source)
                source = _digest(self._name(ctx, 2), receipt)
                await self._call(ctx, self._mail, 3, posted, source=source)
            case "model":
                answer = await self._model(ctx, 1)
                await self._call(ctx, self._post, 2, answer)
            case "models":
                await self._side_by_side([lambda n=n: self._model(ctx, n) for n in range(3)])
            case "heirs":
                heirs = [await start(ctx, HEIR) for _ in range(3)]
                await self._model(ctx, 1)
                await asyncio.gather(*(end(heir) for heir in heirs))
            case "slice":
                await end(await self._sliced(ctx, start, HEIR))
            case "estate":
                await end(await self._sliced(ctx, start, ESTATE))
            case "leave":
                await start(ctx, LEFT)
                await self._model(ctx, 1)
            case "torn":
                child = await start(ctx, TORN)
                self.torn.setdefault(child.id, True)
                await end(child)
                await self._mended(ctx, child)
            case "tear":
                await self._model(ctx, 1)
                if ctx.run_id not in self.mended:
                    raise ValueError("torn")
                await self._model(ctx, 2)
                await ctx.sleep(_MENDED_SECONDS)
                await self._model(ctx, 3)
            case "told":
                await self._model(ctx, 1, stream=True)
            case "tolds":
                calls = [lambda n=n: self._model(ctx, n, stream=True) for n in range(3)]
                await self._side_by_side(calls)
            case "shared" | "twins" | "retold":
                topic = TOPICS[ctx.visit % len(TOPICS)]
                await self._side_by_side(
                    [lambda: self._sage(ctx, topic, kind) for _ in range(sides(kind))]
                )
            case "gate":
                await self._side_by_side(
                    [lambda n=n: self._call(ctx, self._gated, n) for n in range(3)]
                )
            case _:
                raise AssertionError(kind)
        return kind

    async def _sliced(self, ctx: Context, start: Start, plan: list[str]) -> Child:
        child = await start(ctx, plan, budget_of(SLICE_TOKENS))
        self.slices.setdefault(child.id, True)
        return child

    async def _mended(self, ctx: Context, child: Child) -> None:
        """Stay until a run that failed was retried and has ended, or for some time."""
        for _ in range(8):
            if self.torn[child.id]:
                await ctx.sleep(_MENDED_SECONDS)

    async def _between(self, ctx: Context, kind: str, guess: str | None, start: Start) -> None:
        process = _process()
        digest = _digest(self._name(ctx, 1))
        if kind == "linger":
            await process.clock.sleep(_LINGER_SECONDS)
            self._seen["written by its timer"] += not ctx.branch and self._once.stands(digest)
        elif kind == "nap":
            await ctx.sleep(3.0)
        elif kind == "kid":
            await start(ctx)
            if guess is not None:
                self._once.uses(guess, digest, f"a child of {ctx.run_id}")

    async def _beside(self, ctx: Context) -> None:
        tools = [self._post, self._guess, self._post, self._wire]
        await self._side_by_side(
            [lambda n=n: self._call(ctx, tools[n], n) for n in range(len(tools))]
        )

    async def _side_by_side(self, calls: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
        """Call several side by side, begun in their order, as asyncio's own loop begins tasks."""
        loop = self._world.loop
        turns = [loop.create_future() for _ in range(len(calls) + 1)]

        async def one(number: int) -> None:
            await turns[number]
            loop.call_soon(_let, turns[number + 1])  # once this one has asked
            await calls[number]()

        _let(turns[0])
        await asyncio.gather(*(one(number) for number in range(len(calls))))

    async def _model(self, ctx: Context, number: int, *, stream: bool = False) -> str | None:
        """Ask the model; return what it said, None where it failed for good."""
        of = self._name(ctx, number)
        try:
            answer = await ctx.model(ORACLE, of, stream=stream)
        except CallFailed:
            self._seen["a node went another way"] += 1
            return None
        if stream:
            self._streams.answered(ctx, answer.text)
        digest = self._digests[of]
        self._once.answered(ctx, digest, answer.text, inside=self._asked_by.get(of) is ctx)
        if number == 1:
            self._sources[self._name(ctx, 2)] = digest
        return answer.text

    async def _ask(self, request: ModelRequest) -> Answer:
        """Let a question travel to the model."""
        ctx, of, digest = _caller.get(), asked_of(request), digest_of(request)
        self._digests[of], self._asked_by[of] = digest, ctx
        journey = self._once.sets_out(
            ctx, ORACLE, of, digest=digest, key=request.idempotency_key, once=False
        )
        self._books.estimates.sets_out(journey, ctx)
        answer = await self._answer(journey, lambda key: self._books.reached(journey))
        self._once.returns(journey)
        self._streams.tells(of, answer.text)
        return answer

    async def _sage(self, ctx: Context, topic: str, kind: str) -> None:
        """Ask what other runs ask, too."""
        _caller.set(ctx)
        _sides.set(sides(kind))
        try:
            answer = await ctx.model(SAGE, topic, share=KEEP_SECONDS, stream=kind == "retold")
        except CallFailed:
            self._seen["a node went another way"] += 1
            return
        self._shared.answered(ctx, topic, answer.text)
        if kind == "retold":
            self._streams.answered(ctx, answer.text)

    async def _consult(self, request: ModelRequest) -> Answer:
        """Let a question travel that one run asks for all."""
        topic = asked_of(request)
        question = self._shared.sets_out(_caller.get(), _process(), request, _sides.get())
        what = "sage" if topic == TOPICS[0] else f"sage {self._noise()}"

        def arrived(key: str) -> Any:
            answer = self._books.reached(question, what)
            self._shared.reached(question, answer)
            return answer

        try:
            answer = await self._answer(question, arrived, seconds_max=_SAGE_SECONDS_MAX)
            self._streams.tells(topic, answer.text)
            return answer
        finally:
            self._shared.over(question)

    def _noise(self) -> str:
        """Return what does not fit an item, however it is compressed."""
        return self._world.random.randbytes(_NOISE_BYTES).hex()

    async def _call(
        self,
        ctx: Context,
        called: Tool[..., Any],
        number: int,
        *what: Any,
        source: bytes | None = None,
        key: str | None = None,
    ) -> Any:
        """Make one call; return what it came to, None where it failed for good."""
        of = self._name(ctx, number)
        if source is not None and what[0] is not None:
            self._sources[of] = source
        digest = _digest(of, *what)
        before = self._once.times(digest)
        try:
            answer = await ctx.with_options(key=key).call(called, of, *what)
        except CallFailed:
            self._seen["a node went another way"] += 1
            return None
        self._once.answered(ctx, digest, answer, inside=self._once.times(digest) > before)
        return answer

    def _name(self, ctx: Context, number: int) -> str:
        """Return what names a call, whoever makes it and however often.

        In a run that is begun again it is the same call: how the kernel tells lives apart, and
        whether it names them alike, is not asked.
        """
        head = ctx._visit.claimed.head
        life = head.key.id if head.key.id in self.begun_again else head.seed
        return f"{life}.{ctx.branch}.{ctx.visit}.{number}"

    # --- tools ------------------------------------------------------------------------------------

    def _tool(self, name: str, arrived: Callable[[str], Any], **contract: Any) -> Tool[..., Any]:
        once = contract.get("at_most_once", False)

        async def call(of: str, *what: Any, idempotency_key: str) -> Any:
            journey = self._once.sets_out(
                _caller.get(), name, of, digest=_digest(of, *what), key=idempotency_key, once=once
            )
            if of in self._sources:
                self._once.uses(what[0], self._sources[of], of)
            passage = self._gate.passes(_process()) if "quota" in contract else None
            try:
                answer = await self._answer(journey, arrived)
            finally:
                if passage is not None:
                    self._gate.leaves(passage)
            self._once.returns(journey)
            return answer

        return tool(name=name, retry=_RETRY, **contract)(call)

    def _guessed(self, key: str) -> str:
        self._guesses += 1
        return f"guess {self._guesses}"

    def _posted(self, key: str) -> str:
        return self._receipts.setdefault(key, f"receipt {len(self._receipts)}")

    def _acted(self, key: str) -> str | Exception:
        if key in self._burned:
            self._seen["refused under a burned key"] += 1
            return Refused(key)
        if self._world.random.random() < _NOT_DONE:
            self._burn(key)
            return NotDone(key)
        return self._posted(key)

    async def _probe(self, key: str) -> Any:
        process = _process()
        await process.clock.sleep(_PROBE_SECONDS)
        if self._world.random.random() < _PROBE_UNSURE:
            self._seen["probe unknown"] += 1
            return UNKNOWN
        if key in self._receipts:
            return done(self._receipts[key])
        self._burn(key)
        return VOID

    def _burn(self, key: str) -> None:
        """See to it that nothing ever happens under a key."""
        self._burned.add(key)

    # --- a request --------------------------------------------------------------------------------

    async def _answer(
        self,
        journey: Journey,
        arrived: Callable[[str], Any],
        *,
        seconds_max: float = _SECONDS_MAX,
    ) -> Any:
        """Send a request, and wait for what comes back."""
        world, process = self._world, _process()
        request = Request(journey, process, process.promise())
        if not process.silent:
            draw, now = world.random.random, world.loop.time()
            seconds = _SECONDS_MIN + draw() ** 6 * (seconds_max - _SECONDS_MIN)
            fault = drawn(world.plan.effects, draw())
            self._send(request, arrived, seconds, fault)
            if fault in ("effect_crash", "effect_stall"):
                world.at(now + draw() * seconds, self._strike, request, fault)
            elif fault is not None:
                request.found = ConnectionError(fault)
                world.note(process, fault, journey.of, count=True)
            world.loop.call_at(now + seconds, _deliver, request, context=process.context)
        found = await request.answer
        if isinstance(found, Exception):
            raise found
        return found

    def _send(
        self, request: Request, arrived: Callable[[str], Any], seconds: float, fault: str | None
    ) -> None:
        world, process = self._world, request.process
        moment = world.loop.time() + world.random.random() * seconds
        flight = world.serial()
        if fault == "effect_late":
            late = seconds + world.random.random() * world.plan.late_seconds_max
            world.at(moment + late, self._arrive, request, arrived, flight)
        elif fault != "effect_lost":
            process.in_flight[flight] = world.at(moment, self._arrive, request, arrived, flight)

    def _arrive(self, request: Request, arrived: Callable[[str], Any], flight: int) -> None:
        request.process.in_flight.pop(flight, None)
        before = len(self._receipts)
        found = arrived(request.journey.key)
        self._once.arrives(request.journey, found, happens=len(self._receipts) > before)
        if request.found is None:
            request.found = found

    def _strike(self, request: Request, fault: str) -> None:
        """Let whoever is inside a call crash, or stand still past its lease."""
        process, world = request.process, self._world
        if process.silent or request.answer.done():
            return
        world.note(process, fault, request.journey.of, count=True)
        if fault == "effect_stall":
            process.stall(world.random.random() * world.plan.stall_seconds_max)
        else:
            early = request.found is None
            where = "before the effect" if early else "between the effect and its record"
            self._seen[f"crash {where}"] += 1
            process.crash()


def _process() -> Process:
    process = OWNER.get()
    assert isinstance(process, Process)
    return process


def _let(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # whoever waited for it may have been cancelled
        turn.set_result(None)


def _deliver(request: Request) -> None:
    if not request.answer.done():
        request.answer.set_result(request.found)


def _digest(of: str, *what: Any) -> bytes:
    return arguments_digest(((of, *what), {}))
