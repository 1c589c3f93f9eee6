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

from holdfast.display import get_logger
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.call_options import admitted_key
from holdfast.engine.effects.charges import FREE, CallPrice, ChargedResult
from holdfast.engine.effects.quotas import Permit, PermitUnavailable
from holdfast.errors import (
    CallChanged,
    CallFailed,
    CallTimedOut,
    HeartbeatTimedOut,
    InvalidRequest,
    InvalidResult,
    NotDone,
    ResultTooLarge,
)
from holdfast.graph.node import is_sync_function
from holdfast.graph.tool import UNKNOWN, VOID, Done, Tool
from holdfast.graph.values import (
    Mismatch,
    TooLarge,
    converted,
    deep_copied,
    durable,
)
from holdfast.model.answer_limits import RETRY_AFTER_SECONDS_MAX
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
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Retry
from holdfast.model.quota import Cost, Quota
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import recheck_key
from holdfast.records.codec import arguments_digest
from holdfast.records.keys import RunKey

__all__ = ["Ambiguous", "CallHost", "CallRequest", "Calls"]

_log = get_logger("holdfast.calls")

_UNKNOWN_CALL = Call()


class CallHost(Protocol):
    """The visit of a node whose calls these are."""

    node: str
    branch: str
    visit: int
    call_ids: CallIds

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

    async def to_durable(self, value: Any) -> Any:
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

    async def flush_before_call(self) -> None:
        """Return when everything that came before is durable, and the run is still ours."""
        ...

    async def record(self, *events: Event, durable: bool) -> None:
        """Write down what happened; if not durable, with what is written next, or soon."""
        ...

    async def persist_run(self) -> None:
        """Make a run durable that was only in memory so far."""
        ...

    def count_savings(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        ...

    async def reserve_budget(self, call: str, max_spending: Spending, unknown_reason: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not."""
        ...

    async def acquire_permit(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the right to begin a call now; let go of the run where it comes later."""
        ...

    async def reacquire_permit(self, missed: Permit) -> Permit:
        """Return the right to begin a call that came too late for its moment."""
        ...

    async def wait_for_quota(self, call: str, quota: Quota, retry_at_ms: int) -> None:
        """Return when it is time to ask a quota again, or let go of the run until then."""
        ...

    async def sleep_or_pause(self, key: str, wake_at_ms: int, about: str) -> None:
        """Return at that time, or let go of the run until then."""
        ...

    async def await_resolution(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return what a person says of a call; pause the run until somebody has."""
        ...


class Ambiguous(msgspec.Struct, frozen=True):
    """A call that may have been made."""

    id: str
    name: str
    key: str
    call: str
    """Which of the visit's calls it is."""
    mismatch: str = ""
    """Why it cannot have returned what somebody said of it."""


class CallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a node asks for it."""

    tool: Tool[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str | None = None
    """The caller's own name for it."""
    needs_stored_run: bool = False
    """Whether other processes are to see what comes of it: then the run's row must stand before."""
    retry: Retry
    timeout_ms: int | None = None
    heartbeat_ms: int | None = None
    context: Any = None
    """What the tool is handed if it takes ``ctx``."""
    price: CallPrice = FREE
    quota: Quota | None = None
    """What limits how many such calls all workers together make."""


class _HeartbeatTimeout:
    """A timeout that every heartbeat renews."""

    def __init__(self, heartbeat_ms: int) -> None:
        self._seconds = heartbeat_ms / 1000
        self.timeout = asyncio.timeout(self._seconds)

    def renew(self) -> None:
        if not self.timeout.expired():
            self.timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)


class Calls:
    """The calls of one visit of a node."""

    def __init__(self, host: CallHost) -> None:
        self._host = host
        self._call_ids = host.call_ids
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        # The calls that must send heartbeats, with the time of the next one.
        self._heartbeats: dict[str, _HeartbeatTimeout] = {}

    def heartbeat(self) -> None:
        """Note that the call inside which this is called is alive."""
        for call, heartbeat in self._heartbeats.items():
            if self._call_ids.is_inside(call):
                heartbeat.renew()

    def next_id(self, name: str, key: str | None) -> str:
        """Return what the next call is known by; to be asked before anything is awaited."""
        return self._call_ids.next_id(name) if key is None else f"={admitted_key(key)}"

    async def call(self, call: str, request: CallRequest) -> Any:
        """Return the result of a call, from its record where there is one.

        Raises:
            ArgumentsTooLarge: its arguments have more bytes than they may have.
            CallFailed: it raised, and was not to be made again.
            CallChanged: its key was used before, with other arguments.
            InvalidResult: what it returned cannot be kept.
        """
        limit = self._host.limits.arguments_bytes_max
        digest = arguments_digest((request.args, request.kwargs), limit, tool=request.tool.name)
        known = self._known_call(call)
        if known is not None and known.over:
            self._host.count_savings(known.spent + known.saved)
        while known is None or not known.over:
            if call in self._in_flight:
                if self._call_ids.is_inside(call):
                    raise InvalidRequest(
                        f"{request.tool.name!r} is called inside of a call under the same key "
                        f"{request.key!r}, which would wait for itself",
                        field="key",
                    )
                await asyncio.wait({self._in_flight[call]})
                known = self._known_call(call)
                continue
            done = self._in_flight[call] = asyncio.get_running_loop().create_future()
            try:
                known = await self._make_until_done(call, digest, request)
            finally:
                del self._in_flight[call]
                done.set_result(None)
        if known.digest != digest:
            _report_changed_arguments(self._host.run, call, request)
        return _result_or_raise(known, request.tool)

    async def _make_until_done(self, call: str, digest: bytes, request: CallRequest) -> Call:
        """Make a call until its end is known, write that down and return it."""
        await self._host.flush_before_call()
        raised: Exception | None = None
        while True:
            known = self._known_call(call) or _UNKNOWN_CALL
            if known.over:
                return known
            if known.intended:
                # Nobody lets go of the run before each that is in doubt is listed.
                self._call_ids.mark_active(call)
                try:
                    await self._resolve_ambiguous(call, known, request, raised)
                finally:
                    self._call_ids.mark_done(call)
                continue
            now = self._host.now_ms()
            if known.retry_at_ms > now:
                key = recheck_key("retry", call)
                await self._host.sleep_or_pause(key, known.retry_at_ms, request.tool.name)
            permit = await self._host.acquire_permit(call, request.quota, request.price.quota_cost)
            started = False
            try:
                await self._host.reserve_budget(
                    call, request.price.max_spending, request.price.unknown_reason
                )
                self._call_ids.mark_active(call)
                if request.tool.at_most_once or request.needs_stored_run:
                    await self._host.persist_run()
                if request.tool.at_most_once:
                    await self._record_event(CallIntended, call, digest, durable=True)
                # A process that stood still meanwhile may have lost the run, and its call may be
                # recorded.
                await self._host.flush_before_call()
                while permit is not None and not permit.confirm():
                    # What was written since took longer than the quota allows for. The run is not
                    # let go of: an intent without an end would be taken for a call.
                    permit = await self._host.reacquire_permit(permit)
                    await self._host.flush_before_call()
                started = True
                raised = await self._attempt(call, digest, request)
            finally:
                self._call_ids.mark_done(call)
                self._return_permit(permit, call if started else None)
            if isinstance(raised, PermitUnavailable):
                await self._host.wait_for_quota(call, raised.quota, raised.retry_at_ms)
                raised = None

    def _return_permit(self, permit: Permit | None, call: str | None) -> None:
        """Give back what a call did not use of its quota: all of it, where none was begun."""
        if permit is None:
            return
        if call is None:
            permit.cancel()
            return
        permit.release()
        known = self._known_call(call)
        if known is not None and known.over:
            permit.report_usage(Cost(1, known.spent.tokens, known.spent.nanodollars))

    async def _attempt(self, call: str, digest: bytes, request: CallRequest) -> Exception | None:
        """Make a call once, and write down what came of it.

        Return what leaves that in doubt, or why the call was not begun.
        """
        key = self._idempotency_key(call, self._known_call(call) or _UNKNOWN_CALL)
        scope_token = self._call_ids.enter_scope(call)
        try:
            value = await self._run_with_heartbeat(call, request, key)
            charged = request.price.charged(value)
            charged.result = await self._host.to_durable(charged.result)
        except PermitUnavailable as later:
            await self._cancel_reservation(call)
            return later
        except Mismatch as error:
            invalid = _invalid_result(request.tool, error)
            await self._record_failure(call, digest, invalid, request)
        except Exception as error:
            if request.tool.at_most_once and not isinstance(error, NotDone):
                # An error is no proof that nothing happened.
                told = "%s: call %s under the key %s is ambiguous: %r"
                _log.warning(told, self._host.run.log_name, call, key, error)
                return error
            await self._record_failed_attempt(call, digest, error, request)
        else:
            await self._record_result(call, digest, charged, request)
        finally:
            self._call_ids.leave_scope(scope_token)
        return None

    async def _cancel_reservation(self, call: str) -> None:
        """Write down that a call which was not begun costs nothing."""
        known = self._known_call(call) or _UNKNOWN_CALL
        if known.reserved != NO_SPENDING:
            await self._record_event(CallReserved, call, NO_SPENDING, durable=False, instead=True)

    async def _record_failed_attempt(
        self, call: str, digest: bytes, error: Exception, request: CallRequest
    ) -> None:
        """Write down that a call raised, and did nothing that must not be done again."""
        known = self._known_call(call) or _UNKNOWN_CALL
        failed = known.failed + 1
        if failed >= request.retry.attempts or not request.retry.covers(error):
            await self._record_failure(call, digest, error, request, lasts=False)
            return
        backoff_ms = request.retry.backoff_ms(failed, self._idempotency_key(call, known))
        at_ms = self._host.now_ms() + max(backoff_ms, _retry_after_ms(error))
        events = [self._build_event(CallRetried, call, failure_of(error), at_ms)]
        if known.reserved != NO_SPENDING and request.price.is_unpaid(error):
            events.append(self._build_event(CallReserved, call, NO_SPENDING, instead=True))
        if known.intended:
            events.append(self._build_event(CallVoided, call, "tool"))
        await self._host.record(*events, durable=False)

    async def _record_result(
        self, call: str, digest: bytes, charged: ChargedResult, request: CallRequest
    ) -> None:
        costs = {"spent": charged.spent, "saved": charged.saved, "by": charged.source}
        try:
            await self._record_event(
                CallFinished, call, digest, charged.result, durable=False, **costs
            )
        except InvalidResult as error:  # it is too large
            await self._record_failure(call, digest, error, request)
        if charged.source:  # somebody else had the answer
            self._host.count_savings(charged.saved)

    async def _run_with_heartbeat(self, call: str, request: CallRequest, key: str) -> Any:
        if request.heartbeat_ms is None:
            return await self._run_with_timeout(request, key)
        heartbeat = self._heartbeats[call] = _HeartbeatTimeout(request.heartbeat_ms)
        try:
            async with heartbeat.timeout:
                return await self._run_with_timeout(request, key)
        except TimeoutError:
            if not heartbeat.timeout.expired():
                raise
            raise HeartbeatTimedOut(
                f"{request.tool.name!r} sent no heartbeat for {request.heartbeat_ms / 1000:g} s"
            ) from None
        finally:
            del self._heartbeats[call]

    async def _run_with_timeout(self, request: CallRequest, key: str) -> Any:
        if request.timeout_ms is None:
            return await self._run_tool(request, key)
        timeout = asyncio.timeout(request.timeout_ms / 1000)
        try:
            async with timeout:
                return await self._run_tool(request, key)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise CallTimedOut(
                f"{request.tool.name!r} took longer than {request.timeout_ms / 1000:g} seconds"
            ) from None

    async def _run_tool(self, request: CallRequest, key: str) -> Any:
        tool, kwargs = request.tool, dict(request.kwargs)
        if tool.takes_key:
            kwargs["idempotency_key"] = key
        if tool.takes_context:
            kwargs["ctx"] = request.context
        return await self._run_function(tool.function, tool.plain, request.args, kwargs)

    async def _run_function(
        self,
        function: Callable[..., Any],
        plain: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if plain:
            call = partial(contextvars.copy_context().run, function, *args, **kwargs)
            loop = asyncio.get_running_loop()
            value = await loop.run_in_executor(self._host.threads, call)
        else:
            value = function(*args, **kwargs)
        return await cast(Awaitable[Any], value) if inspect.isawaitable(value) else value

    # --- calls that may have been made ------------------------------------------------------------

    async def _resolve_ambiguous(
        self, call: str, known: Call, request: CallRequest, raised: Exception | None
    ) -> None:
        """Find out what became of a call that may have been made: the tool says, or a person."""
        key = self._idempotency_key(call, known)
        match await self._probe_tool(request.tool, key):
            case Done(result) if not self._mismatch(result, request.tool):
                kept = durable(result)
                await self._record_event(
                    CallFinished, call, known.digest, kept, durable=True, by="probe"
                )
            case found if found is VOID:
                await self._record_event(CallVoided, call, "probe", durable=True)
                if raised is not None:  # so it failed, and nothing else: it may do so for ever
                    await self._record_failed_attempt(call, known.digest, raised, request)
            case found:
                if found is not UNKNOWN:
                    told = "%s: the probe of %r returned a %s, which is not an answer of a probe"
                    _log.warning(
                        told, self._host.run.log_name, request.tool.name, type(found).__name__
                    )
                await self._ask_person(call, known, request, key)

    async def _probe_tool(self, tool: Tool[..., Any], key: str) -> Any:
        if tool.probe is None:
            return UNKNOWN
        try:
            return await self._run_function(tool.probe, is_sync_function(tool.probe), (key,), {})
        except Exception as error:
            told = "%s: the probe of %r cannot tell what became of %s: %r"
            _log.warning(told, self._host.run.log_name, tool.name, key, error)
            return UNKNOWN

    async def _ask_person(self, call: str, known: Call, request: CallRequest, key: str) -> None:
        # Of this visit alone: elsewhere in the run the same key may be in doubt, too.
        id = hashlib.blake2b(self._key_source(call, known).encode(), digest_size=8).hexdigest()
        told = await self._await_resolution(id, call, request, key)
        if told["outcome"] == "void":
            await self._record_event(CallVoided, call, "person", durable=True)
        elif told["outcome"] == "failed":
            await self._record_failure(
                call, known.digest, CallFailed(told["error"]), request, by="person"
            )
        else:
            result = told["result"]
            await self._record_event(
                CallFinished, call, known.digest, result, durable=True, by="person"
            )

    async def _await_resolution(
        self, id: str, call: str, request: CallRequest, key: str
    ) -> dict[str, Any]:
        """Return what a person says of a call; ask again where the result cannot be one of it."""
        named, number, mismatch = id, 0, ""
        while True:
            ambiguous = Ambiguous(named, request.tool.name, key, call, mismatch)
            told: dict[str, Any] = (await self._host.await_resolution(ambiguous)).payload
            if told["outcome"] == "done":
                mismatch = self._mismatch(told["result"], request.tool)
            if told["outcome"] != "done" or not mismatch:
                return told
            message = "%s: what somebody said that call %s returned is no result of it: %s"
            _log.warning(message, self._host.run.log_name, call, mismatch)
            number += 1
            named = f"{id}.{number}"

    def _mismatch(self, result: Any, tool: Tool[..., Any]) -> str:
        """Return why a call of the tool cannot have returned what others say; nothing if it can."""
        limit = self._host.limits.answer_bytes_max
        try:
            converted(durable(result, bytes_max=limit), tool.returns, objects=False)
        except Mismatch as error:
            return str(error)
        return ""

    # --- records ----------------------------------------------------------------------------------

    def _known_call(self, call: str) -> Call | None:
        return self._host.known_call(call)

    def _idempotency_key(self, call: str, known: Call) -> str:
        """Return the key under which a call is made: another one once that was burned."""
        if call.startswith("="):
            return f"{call[1:]}~{known.voided}" if known.voided else call[1:]
        return hashlib.blake2b(self._key_source(call, known).encode(), digest_size=16).hexdigest()

    def _key_source(self, call: str, known: Call) -> str:
        return f"{self._host.key}.{call}~{known.voided}"

    async def _record_failure(
        self,
        call: str,
        digest: bytes,
        error: Exception,
        request: CallRequest,
        *,
        by: str = "",
        lasts: bool = True,
    ) -> None:
        known = self._known_call(call) or _UNKNOWN_CALL
        await self._record_event(
            CallFinished,
            call,
            digest,
            durable=False,
            failure=failure_of(error),
            kinds=_exception_types(error),
            # What happened once at most is not to be tried again; unless it did not happen.
            lasts=request.tool.at_most_once and lasts,
            spent=NO_SPENDING if request.price.is_unpaid(error) else known.reserved,
            by=by,
        )

    async def _record_event(
        self, kind: Callable[..., Event], call: str, *args: Any, durable: bool, **kwargs: Any
    ) -> None:
        await self._host.record(self._build_event(kind, call, *args, **kwargs), durable=durable)

    def _build_event(
        self, kind: Callable[..., Event], call: str, *args: Any, **kwargs: Any
    ) -> Event:
        host = self._host
        kwargs["branch"] = host.branch
        return kind(host.now_ms(), host.node, host.visit, call, *args, **kwargs)


def _retry_after_ms(error: Exception) -> int:
    """Return how long a service asked not to be called; it cannot park a run for ever."""
    seconds: object = getattr(error, "retry_after_seconds", None)
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        return 0  # it may be anybody's error
    return round(min(seconds, RETRY_AFTER_SECONDS_MAX) * 1000)


def _result_or_raise(known: Call, tool: Tool[..., Any]) -> Any:
    """Return what a call that is over came to, the same whenever somebody asks."""
    if known.failure is not None:
        message = f"{tool.name!r} failed: {known.failure.type}: {known.failure.message}"
        failure = known.failure
        raise CallFailed(message, kinds=known.kinds, reason=failure.message, trace=failure.trace)
    try:
        return converted(deep_copied(known.result), tool.returns, objects=False)
    except Mismatch as error:
        raise InvalidResult(f"what {tool.name!r} returned: {error}") from None


def _invalid_result(tool: Tool[..., Any], error: Mismatch) -> InvalidResult:
    message = f"what {tool.name!r} returned: {error}"
    if isinstance(error, TooLarge):
        message += "; PayloadLimits.answer_bytes_max sets the limit"
        return ResultTooLarge(message, size=error.size, limit=error.limit)
    return InvalidResult(message)


def _report_changed_arguments(run: RunKey, call: str, request: CallRequest) -> None:
    if request.key is not None:
        raise CallChanged(
            f"{request.tool.name!r} was called under the key {request.key!r} before, with other "
            "arguments; another call needs another key"
        )
    _log.warning(
        "%s: call %s has other arguments than when it was recorded; its record answers, and "
        "nothing is called again",
        run.log_name,
        call,
    )


def _exception_types(error: Exception) -> tuple[str, ...]:
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, Exception)]
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
