"""Makes the calls of a node: each once; its record answers when the node runs again."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.display import get_logger
from holdfast.engine.effects.ambiguous_calls import AmbiguousCalls
from holdfast.engine.effects.call_arguments import CallArguments
from holdfast.engine.effects.call_host import CallHost, CallRequest
from holdfast.engine.effects.call_options import admitted_key
from holdfast.engine.effects.call_records import CallRecords
from holdfast.engine.effects.charges import ChargedResult
from holdfast.engine.effects.quotas import Permit, PermitUnavailable
from holdfast.engine.effects.tool_functions import run_tool
from holdfast.errors import (
    CallChanged,
    CallFailed,
    HeartbeatTimedOut,
    InvalidRequest,
    InvalidResult,
    NotDone,
    ResultTooLarge,
)
from holdfast.graph.lost_types import check_kept_type
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.tool import Tool
from holdfast.graph.values import converted, deep_copied
from holdfast.model.call import Call
from holdfast.model.durations import duration_text
from holdfast.model.event import (
    CallFinished,
    CallIntended,
)
from holdfast.model.quota import Cost
from holdfast.model.traces import trace_note
from holdfast.model.wait import BackoffWait
from holdfast.records.codec import arguments_digest
from holdfast.records.keys import RunKey

__all__ = ["Calls"]

_log = get_logger("holdfast.calls")


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
        self._arguments = CallArguments(host)
        self._records = CallRecords(host, self._arguments)
        self._ambiguous = AmbiguousCalls(host, self._records)
        self._in_flight: dict[str, asyncio.Future[None]] = {}
        # The calls that must send heartbeats, with the time of the next one.
        self._heartbeats: dict[str, _HeartbeatTimeout] = {}

    def heartbeat(self) -> None:
        """Note that the call inside which this is called is alive."""
        for call, heartbeat in self._heartbeats.items():
            if self._call_ids.is_inside(call):
                heartbeat.renew()

    def next_id(self, name: str, key: str | None) -> str:
        """Return the identity of the next call; use it before awaiting anything."""
        call = self._call_ids.next_id(name) if key is None else f"={admitted_key(key)}"
        self._call_ids.asked.add(call)
        return call

    async def call(self, call: str, request: CallRequest) -> Any:
        """Return the result of a call, from its record if there is one.

        Raises:
            ArgumentsTooLarge: its arguments have more bytes than the limit allows.
            CallFailed: it raised, and no attempt is left.
            CallChanged: its key was used before, with other arguments.
            InvalidResult: what it returned cannot be stored.
        """
        limit = self._host.limits.arguments_bytes_max
        digest = arguments_digest((request.args, request.kwargs), limit, tool=request.tool.name)
        known = self._records.known_call(call)
        if known.over:
            self._host.count_savings(known.spent + known.saved)
        while not known.over:
            if call in self._in_flight:
                if self._call_ids.is_inside(call):
                    raise InvalidRequest(
                        f"{request.tool.name!r} is called inside of a call with the same key "
                        f"{request.key!r}, and would wait for itself: use another key",
                        field="key",
                    )
                await asyncio.wait({self._in_flight[call]})
                known = self._records.known_call(call)
                continue
            done = self._in_flight[call] = asyncio.get_running_loop().create_future()
            try:
                self._arguments.prepare(call, request)
                known = await self._make_until_done(call, digest, request)
            finally:
                self._arguments.discard(call)
                del self._in_flight[call]
                done.set_result(None)
        if known.digest != digest:
            _report_changed_arguments(self._host.run, call, request)
        elif known.failure is None:
            self._arguments.note_answer(call, request, known.result)
        return _result_or_raise(known, request.tool)

    async def _make_until_done(self, call: str, digest: bytes, request: CallRequest) -> Call:
        """Make a call until its end is recorded, and return the record."""
        await self._host.flush_before_call()
        raised: Exception | None = None
        while True:
            known = self._records.known_call(call)
            if known.over:
                return known
            if known.intended:
                # The run is released only after every ambiguous call is listed.
                self._call_ids.mark_active(call)
                try:
                    await self._ambiguous.resolve(call, known, request, raised=raised)
                finally:
                    self._call_ids.mark_done(call)
                continue
            now = self._host.now_ms()
            if known.retry_at_ms > now:
                backoff = BackoffWait(call)
                await self._host.waits.sleep_or_pause(backoff, known.retry_at_ms, request.tool.name)
            permit = await self._host.permits.acquire(call, request.quota, request.price.quota_cost)
            started = False
            try:
                await self._host.reserve_budget(call, request.price)
                self._call_ids.mark_active(call)
                if request.tool.at_most_once or request.needs_stored_run:
                    await self._host.persist_run()
                if request.tool.at_most_once:
                    await self._records.record(CallIntended, call, digest, durable=True)
                # If this process was stalled, another one may have claimed the run and recorded
                # the call.
                await self._host.flush_before_call()
                while permit is not None and not permit.confirm():
                    # The writes since then took longer than the quota allows for. The run is not
                    # released here: its intent without an end would look like an ambiguous call.
                    permit = await self._host.permits.reacquire(permit)
                    await self._host.flush_before_call()
                started = True
                raised = await self._attempt(call, digest, request)
            finally:
                self._call_ids.mark_done(call)
                self._return_permit(permit, call if started else None)
            if isinstance(raised, PermitUnavailable):
                await self._host.permits.wait_for_quota(call, raised.quota, raised.retry_at_ms)
                raised = None

    def _return_permit(self, permit: Permit | None, call: str | None) -> None:
        """Give back what a call did not use of its permit; all of it if no call began."""
        if permit is None:
            return
        if call is None:
            permit.cancel()
            return
        permit.release()
        known = self._records.known_call(call)
        if known.over:
            permit.report_usage(Cost(1, known.spent.tokens, known.spent.nanodollars))

    async def _attempt(self, call: str, digest: bytes, request: CallRequest) -> Exception | None:
        """Make a call once, and record its outcome.

        Return the error that leaves the outcome unknown, or the reason why the call did not begin.
        """
        key = self._records.idempotency_key(call)
        scope_token = self._call_ids.enter_scope(call)
        reported = self._host.report_attempt(call, request)
        try:
            if request.heartbeat_ms is None:
                value = await run_tool(request, key, self._host.threads)
            else:
                value = await self._run_with_heartbeat(
                    call, request, key, heartbeat_ms=request.heartbeat_ms
                )
            if request.tool.takes_context:
                await self._host.requests.check_finished(request.tool.name, within=f"{call}>")
            if request.tool.returns is Any and request.tool.remedy is not None:
                check_kept_type(value, remedy=request.tool.remedy)
            charged = request.price.charged(value)
            charged.result = await self._host.to_durable(charged.result)
        except PermitUnavailable as later:
            await self._records.cancel_reservation(call)
            return later
        except Mismatch as error:
            invalid = _invalid_result(request.tool, error)
            await self._records.record_failure(call, digest, invalid, request)
            if reported is not None:
                reported.record(call, error=type(invalid).__qualname__)
        except Exception as error:
            if request.tool.at_most_once and not isinstance(error, NotDone):
                # An error does not prove that the call had no effect.
                message = "%s: call %s with the key %s is ambiguous: %r"
                _log.warning(message, self._host.run.log_name, call, key, error)
                return error
            await self._records.record_failed_attempt(call, digest, error, request)
            if reported is not None:
                reported.record(call, error=type(error).__qualname__)
        else:
            await self._record_result(call, digest, charged, request)
            if reported is not None and not charged.source:  # another run asked for that answer
                reported.record(call, result=charged.result)
        finally:
            if reported is not None:
                reported.leave()
            self._call_ids.leave_scope(scope_token)
        return None

    async def _run_with_heartbeat(
        self, call: str, request: CallRequest, key: str, *, heartbeat_ms: int
    ) -> Any:
        """Run the tool of a call that must send heartbeats.

        Raises:
            HeartbeatTimedOut: the tool sent no heartbeat for ``heartbeat_ms``.
        """
        heartbeat = self._heartbeats[call] = _HeartbeatTimeout(heartbeat_ms)
        try:
            async with heartbeat.timeout:
                return await run_tool(request, key, self._host.threads)
        except TimeoutError:
            if not heartbeat.timeout.expired():
                raise
            raise HeartbeatTimedOut(
                f"{request.tool.name!r} sent no heartbeat for {duration_text(heartbeat_ms)}"
            ) from None
        finally:
            del self._heartbeats[call]

    async def _record_result(
        self, call: str, digest: bytes, charged: ChargedResult, request: CallRequest
    ) -> None:
        costs = {"spent": charged.spent, "saved": charged.saved, "by": charged.source}
        try:
            await self._records.record(
                CallFinished, call, digest, charged.result, durable=False, **costs
            )
        except InvalidResult as error:  # the result is too large
            await self._records.record_failure(call, digest, error, request)
        if charged.source:  # another run had the answer
            self._host.count_savings(charged.saved)


def _result_or_raise(known: Call, tool: Tool[..., Any]) -> Any:
    """Return the recorded result of a finished call, or raise its recorded error."""
    if known.failure is not None:
        failure = known.failure
        error = CallFailed(
            f"{tool.name!r} failed: {failure.type}: {failure.message}",
            kinds=known.kinds,
            reason=failure.message,
            trace=failure.trace,
        )
        if note := trace_note(f"Where call {tool.name!r} failed:", failure.trace):
            error.add_note(note)
        raise error
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
    """Raise for a call with an explicit key; otherwise only log that the record answers."""
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
