"""Calls of a node: each is made once, and its record answers whenever the node runs again."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from holdfast.display import log_named
from holdfast.engine.effects.call_ids import Lines
from holdfast.engine.effects.call_options import admitted_key
from holdfast.engine.effects.charges import FREE, Charged, Price
from holdfast.engine.effects.quotas import NotYet, Pass
from holdfast.errors import (
    CallChanged,
    CallFailed,
    CallTimedOut,
    InvalidRequest,
    InvalidResult,
    NotDone,
    ResultTooLarge,
)
from holdfast.graph.node import is_plain
from holdfast.graph.tool import UNKNOWN, VOID, Done, Tool
from holdfast.graph.values import (
    Misfit,
    Oversize,
    converted,
    durable,
    separate,
)
from holdfast.model.bounds import RETRY_AFTER_SECONDS_MAX
from holdfast.model.call import Call
from holdfast.model.event import (
    CallFinished,
    CallIntended,
    CallReserved,
    CallRetried,
    CallVoided,
    Event,
    SignalTaken,
)
from holdfast.model.failure import failure_of
from holdfast.model.limits import PayloadLimits
from holdfast.model.policy import Retry
from holdfast.model.quota import Cost, Quota
from holdfast.model.spending import NOTHING, Spending
from holdfast.model.wait import asking_key
from holdfast.records.codec import arguments_digest
from holdfast.records.keys import RunKey

__all__ = ["Ambiguous", "Asked", "Calls", "Visit"]

_log = log_named("holdfast.calls")

_UNKNOWN_CALL = Call()


class Visit(Protocol):
    """The visit of a node whose calls these are."""

    node: str
    branch: str
    visit: int
    lines: Lines

    @property
    def key(self) -> str:
        """What names the visit, and no other."""
        ...

    @property
    def run(self) -> RunKey:
        """The run in which the node is."""
        ...

    @property
    def limits(self) -> PayloadLimits:
        """How large values may be."""
        ...

    async def durable(self, value: Any) -> Any:
        """Return the durable form of what a call returned."""
        ...

    @property
    def threads(self) -> Executor:
        """Where plain functions run."""
        ...

    def known_call(self, call: str) -> Call | None:
        """Return what the journal tells of a call."""
        ...

    def now_ms(self) -> int: ...

    async def begin_call(self) -> None:
        """Return when everything that came before is durable, and the run is still ours."""
        ...

    async def record(self, *events: Event, durable: bool) -> None:
        """Write down what happened; if not durable, with what is written next, or soon."""
        ...

    async def write_down(self) -> None:
        """Make a run durable that was only in memory so far."""
        ...

    def saved(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        ...

    async def set_aside(self, call: str, most: Spending, unknown: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not."""
        ...

    async def admitted(self, call: str, quota: Quota | None, cost: Cost) -> Pass | None:
        """Return the right to begin a call now; let go of the run where it comes later."""
        ...

    async def readmitted(self, missed: Pass) -> Pass:
        """Return the right to begin a call that came too late for its moment."""
        ...

    async def await_quota(self, call: str, quota: Quota, until_ms: int) -> None:
        """Return when it is time to ask a quota again, or let go of the run until then."""
        ...

    async def put_off(self, key: str, until_ms: int, about: str) -> None:
        """Return at that time, or let go of the run until then."""
        ...

    async def ambiguous(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return what a person says of a call; pause the run until somebody has."""
        ...


class Ambiguous(msgspec.Struct, frozen=True):
    """A call that may have been made."""

    id: str
    name: str
    key: str
    call: str
    """Which of the visit's calls it is."""
    misfit: str = ""
    """Why it cannot have returned what somebody said of it."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a node asks for it."""

    tool: Tool[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str | None = None
    """The caller's own name for it."""
    written: bool = False
    """Whether other processes are to see what comes of it: then the run's row must stand before."""
    retry: Retry
    timeout_ms: int | None = None
    context: Any = None
    """What the tool is handed if it takes ``ctx``."""
    price: Price = FREE
    quota: Quota | None = None
    """What limits how many such calls all workers together make."""


class Calls:
    """The calls of one visit of a node."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._lines = visit.lines
        self._under_way: dict[str, asyncio.Future[None]] = {}

    def name(self, name: str, key: str | None) -> str:
        """Return what the next call is known by; to be asked before anything is awaited."""
        return self._lines.next(name) if key is None else f"={admitted_key(key)}"

    async def call(self, call: str, asked: Asked) -> Any:
        """Return the result of a call, from its record where there is one.

        Raises:
            ArgumentsTooLarge: its arguments have more bytes than they may have.
            CallFailed: it raised, and was not to be made again.
            CallChanged: its key was used before, with other arguments.
            InvalidResult: what it returned cannot be kept.
        """
        limit = self._visit.limits.arguments_bytes_max
        digest = arguments_digest((asked.args, asked.kwargs), limit, tool=asked.tool.name)
        known = self._known(call)
        if known is not None and known.over:
            self._visit.saved(known.spent + known.saved)
        while known is None or not known.over:
            if call in self._under_way:
                if self._lines.is_inside(call):
                    raise InvalidRequest(
                        f"{asked.tool.name!r} is called inside of a call under the same key "
                        f"{asked.key!r}, which would wait for itself",
                        field="key",
                    )
                await asyncio.wait({self._under_way[call]})
                known = self._known(call)
                continue
            done = self._under_way[call] = asyncio.get_running_loop().create_future()
            try:
                known = await self._made(call, digest, asked)
            finally:
                del self._under_way[call]
                done.set_result(None)
        if known.digest != digest:
            _changed(self._visit.run, call, asked)
        return _outcome(known, asked.tool)

    async def _made(self, call: str, digest: bytes, asked: Asked) -> Call:
        """Make a call until its end is known, write that down and return it."""
        await self._visit.begin_call()
        raised: Exception | None = None
        while True:
            known = self._known(call) or _UNKNOWN_CALL
            if known.over:
                return known
            if known.intended:
                # Nobody lets go of the run before each that is in doubt is listed.
                self._lines.begin(call)
                try:
                    await self._settle(call, known, asked, raised)
                finally:
                    self._lines.end(call)
                continue
            now = self._visit.now_ms()
            if known.retry_at_ms > now:
                key = asking_key("retry", call)
                await self._visit.put_off(key, known.retry_at_ms, asked.tool.name)
            admission = await self._visit.admitted(call, asked.quota, asked.price.cost)
            begun = False
            try:
                await self._visit.set_aside(call, asked.price.most, asked.price.unknown)
                self._lines.begin(call)
                if asked.tool.at_most_once or asked.written:
                    await self._visit.write_down()
                if asked.tool.at_most_once:
                    await self._record(CallIntended, call, digest, durable=True)
                # A process that stood still meanwhile may have lost the run, and its call may be
                # recorded.
                await self._visit.begin_call()
                while admission is not None and not admission.confirm():
                    # What was written since took longer than the quota allows for. The run is not
                    # let go of: an intent without an end would be taken for a call.
                    admission = await self._visit.readmitted(admission)
                    await self._visit.begin_call()
                begun = True
                raised = await self._tried(call, digest, asked)
            finally:
                self._lines.end(call)
                self._leave(admission, call if begun else None)
            if isinstance(raised, NotYet):
                await self._visit.await_quota(call, raised.quota, raised.until_ms)
                raised = None

    def _leave(self, admission: Pass | None, call: str | None) -> None:
        """Give back what a call did not use of its quota: all of it, where none was begun."""
        if admission is None:
            return
        if call is None:
            admission.give_back()
            return
        admission.release()
        known = self._known(call)
        if known is not None and known.over:
            admission.settle(Cost(1, known.spent.tokens, known.spent.nanodollars))

    async def _tried(self, call: str, digest: bytes, asked: Asked) -> Exception | None:
        """Make a call once, and write down what came of it.

        Return what leaves that in doubt, or why the call was not begun.
        """
        key = self._key_of(call, self._known(call) or _UNKNOWN_CALL)
        inside = self._lines.enter(call)
        try:
            value = await self._performed(asked, key)
            charged = asked.price.charged(value)
            charged.result = await self._visit.durable(charged.result)
        except NotYet as later:
            await self._unreserve(call)
            return later
        except Misfit as error:
            refused = _refused(asked.tool, error)
            await self._failed(call, digest, refused, asked)
        except Exception as error:
            if asked.tool.at_most_once and not isinstance(error, NotDone):
                # An error is no proof that nothing happened.
                told = "%s: call %s under the key %s is ambiguous: %r"
                _log.warning(told, self._visit.run.told, call, key, error)
                return error
            await self._in_vain(call, digest, error, asked)
        else:
            await self._returned(call, digest, charged, asked)
        finally:
            self._lines.leave(inside)
        return None

    async def _unreserve(self, call: str) -> None:
        """Write down that a call which was not begun costs nothing."""
        known = self._known(call) or _UNKNOWN_CALL
        if known.reserved != NOTHING:
            await self._record(CallReserved, call, NOTHING, durable=False, instead=True)

    async def _in_vain(self, call: str, digest: bytes, error: Exception, asked: Asked) -> None:
        """Write down that a call raised, and did nothing that must not be done again."""
        known = self._known(call) or _UNKNOWN_CALL
        failed = known.failed + 1
        if failed >= asked.retry.attempts or not asked.retry.covers(error):
            await self._failed(call, digest, error, asked, lasts=False)
            return
        pause_ms = asked.retry.pause_ms(failed, self._key_of(call, known))
        at_ms = self._visit.now_ms() + max(pause_ms, _asked_to_wait_ms(error))
        events = [self._event(CallRetried, call, failure_of(error), at_ms)]
        if known.reserved != NOTHING and asked.price.unpaid(error):
            events.append(self._event(CallReserved, call, NOTHING, instead=True))
        if known.intended:
            events.append(self._event(CallVoided, call, "tool"))
        await self._visit.record(*events, durable=False)

    async def _returned(self, call: str, digest: bytes, charged: Charged, asked: Asked) -> None:
        costs = {"spent": charged.spent, "saved": charged.saved, "by": charged.by}
        try:
            await self._record(CallFinished, call, digest, charged.result, durable=False, **costs)
        except InvalidResult as error:  # it is too large
            await self._failed(call, digest, error, asked)
        if charged.by:  # somebody else had the answer
            self._visit.saved(charged.saved)

    async def _performed(self, asked: Asked, key: str) -> Any:
        if asked.timeout_ms is None:
            return await self._called(asked, key)
        timeout = asyncio.timeout(asked.timeout_ms / 1000)
        try:
            async with timeout:
                return await self._called(asked, key)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise CallTimedOut(
                f"{asked.tool.name!r} took longer than {asked.timeout_ms / 1000:g} seconds"
            ) from None

    async def _called(self, asked: Asked, key: str) -> Any:
        tool, kwargs = asked.tool, dict(asked.kwargs)
        if tool.takes_key:
            kwargs["idempotency_key"] = key
        if tool.takes_context:
            kwargs["ctx"] = asked.context
        return await self._run(tool.function, tool.plain, asked.args, kwargs)

    async def _run(
        self,
        function: Callable[..., Any],
        plain: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if plain:
            call = partial(contextvars.copy_context().run, function, *args, **kwargs)
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(self._visit.threads, call)
        else:
            value = function(*args, **kwargs)
        return await cast(Awaitable[Any], value) if inspect.isawaitable(value) else value

    # --- calls that may have been made ------------------------------------------------------------

    async def _settle(self, call: str, known: Call, asked: Asked, raised: Exception | None) -> None:
        """Find out what became of a call that may have been made: the tool says, or a person."""
        key = self._key_of(call, known)
        match await self._probed(asked.tool, key):
            case Done(result) if not self._misfit(result, asked.tool):
                kept = durable(result)
                await self._record(CallFinished, call, known.digest, kept, durable=True, by="probe")
            case found if found is VOID:
                await self._record(CallVoided, call, "probe", durable=True)
                if raised is not None:  # so it failed, and nothing else: it may do so for ever
                    await self._in_vain(call, known.digest, raised, asked)
            case found:
                if found is not UNKNOWN:
                    told = "%s: the probe of %r returned a %s, which is not an answer of a probe"
                    _log.warning(told, self._visit.run.told, asked.tool.name, type(found).__name__)
                await self._ask(call, known, asked, key)

    async def _probed(self, tool: Tool[..., Any], key: str) -> Any:
        if tool.probe is None:
            return UNKNOWN
        try:
            return await self._run(tool.probe, is_plain(tool.probe), (key,), {})
        except Exception as error:
            told = "%s: the probe of %r cannot tell what became of %s: %r"
            _log.warning(told, self._visit.run.told, tool.name, key, error)
            return UNKNOWN

    async def _ask(self, call: str, known: Call, asked: Asked, key: str) -> None:
        # Of this visit alone: elsewhere in the run the same key may be in doubt, too.
        id = hashlib.blake2b(self._derived(call, known).encode(), digest_size=8).hexdigest()
        told = await self._told(id, call, asked, key)
        if told["outcome"] == "void":
            await self._record(CallVoided, call, "person", durable=True)
        elif told["outcome"] == "failed":
            await self._failed(call, known.digest, CallFailed(told["error"]), asked, by="person")
        else:
            result = told["result"]
            await self._record(CallFinished, call, known.digest, result, durable=True, by="person")

    async def _told(self, id: str, call: str, asked: Asked, key: str) -> dict[str, Any]:
        """Return what a person says of a call; ask again where the result cannot be one of it."""
        named, number, misfit = id, 0, ""
        while True:
            ambiguous = Ambiguous(named, asked.tool.name, key, call, misfit)
            told: dict[str, Any] = (await self._visit.ambiguous(ambiguous)).payload
            if told["outcome"] == "done":
                misfit = self._misfit(told["result"], asked.tool)
            if told["outcome"] != "done" or not misfit:
                return told
            told_so = "%s: what somebody said that call %s returned is no result of it: %s"
            _log.warning(told_so, self._visit.run.told, call, misfit)
            number += 1
            named = f"{id}.{number}"

    def _misfit(self, result: Any, tool: Tool[..., Any]) -> str:
        """Return why a call of the tool cannot have returned what others say; nothing if it can."""
        limit = self._visit.limits.answer_bytes_max
        try:
            converted(durable(result, bytes_max=limit), tool.returns, objects=False)
        except Misfit as error:
            return str(error)
        return ""

    # --- records ----------------------------------------------------------------------------------

    def _known(self, call: str) -> Call | None:
        return self._visit.known_call(call)

    def _key_of(self, call: str, known: Call) -> str:
        """Return the key under which a call is made: another one once that was burned."""
        if call.startswith("="):
            return f"{call[1:]}~{known.voided}" if known.voided else call[1:]
        return hashlib.blake2b(self._derived(call, known).encode(), digest_size=16).hexdigest()

    def _derived(self, call: str, known: Call) -> str:
        return f"{self._visit.key}.{call}~{known.voided}"

    async def _failed(
        self,
        call: str,
        digest: bytes,
        error: Exception,
        asked: Asked,
        *,
        by: str = "",
        lasts: bool = True,
    ) -> None:
        known = self._known(call) or _UNKNOWN_CALL
        await self._record(
            CallFinished,
            call,
            digest,
            durable=False,
            failure=failure_of(error),
            kinds=_kinds(error),
            # What happened once at most is not to be tried again; unless it did not happen.
            lasts=asked.tool.at_most_once and lasts,
            spent=NOTHING if asked.price.unpaid(error) else known.reserved,
            by=by,
        )

    async def _record(
        self, kind: Callable[..., Event], call: str, *args: Any, durable: bool, **kwargs: Any
    ) -> None:
        await self._visit.record(self._event(kind, call, *args, **kwargs), durable=durable)

    def _event(self, kind: Callable[..., Event], call: str, *args: Any, **kwargs: Any) -> Event:
        visit = self._visit
        kwargs["branch"] = visit.branch
        return kind(visit.now_ms(), visit.node, visit.visit, call, *args, **kwargs)


def _asked_to_wait_ms(error: Exception) -> int:
    """Return how long a service asked not to be called; it cannot park a run for ever."""
    seconds: object = getattr(error, "retry_after_seconds", None)
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        return 0  # it may be anybody's error
    return round(min(seconds, RETRY_AFTER_SECONDS_MAX) * 1000)


def _outcome(known: Call, tool: Tool[..., Any]) -> Any:
    """Return what a call that is over came to, the same whenever somebody asks."""
    if known.failure is not None:
        message = f"{tool.name!r} failed: {known.failure.type}: {known.failure.message}"
        raise CallFailed(message, kinds=known.kinds, trace=known.failure.trace)
    try:
        return converted(separate(known.result), tool.returns, objects=False)
    except Misfit as error:
        raise InvalidResult(f"what {tool.name!r} returned: {error}") from None


def _refused(tool: Tool[..., Any], error: Misfit) -> InvalidResult:
    message = f"what {tool.name!r} returned: {error}"
    if isinstance(error, Oversize):
        message += "; PayloadLimits.answer_bytes_max sets the limit"
        return ResultTooLarge(message, size=error.size, limit=error.limit)
    return InvalidResult(message)


def _changed(run: RunKey, call: str, asked: Asked) -> None:
    if asked.key is not None:
        raise CallChanged(
            f"{asked.tool.name!r} was called under the key {asked.key!r} before, with other "
            "arguments; another call needs another key"
        )
    _log.warning(
        "%s: call %s has other arguments than when it was recorded; its record answers, and "
        "nothing is called again",
        run.told,
        call,
    )


def _kinds(error: Exception) -> tuple[str, ...]:
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, Exception)]
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
