"""Makes the calls of a node: each once; its record answers when the node runs again."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from holdfast.display import get_logger
from holdfast.engine.effects.ambiguous_calls import AmbiguousCalls
from holdfast.engine.effects.approvals import Approvals
from holdfast.engine.effects.call_arguments import CallArguments
from holdfast.engine.effects.call_host import CallHost, CallRequest, ReviewedCall
from holdfast.engine.effects.call_options import admitted_key
from holdfast.engine.effects.call_records import CallRecords
from holdfast.engine.effects.charges import ChargedResult
from holdfast.engine.effects.quotas import Permit, PermitUnavailable
from holdfast.engine.effects.tool_functions import run_tool
from holdfast.errors import (
    CallChanged,
    CallFailed,
    CallRejected,
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

_REJECTED = f"{CallRejected.__module__}.{CallRejected.__qualname__}"


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
            CallChanged: its key was used before, with other arguments, or it is not what was
                approved.
            CallRejected: it needs an approval, and did not get it.
            InvalidResult: what it returned cannot be stored.
        """
        if request.tool.approval is not None and self._approvals is not None:
            request = self._approvals.prepared(call, request)
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
                if request.filled is None:
                    self._arguments.prepare(call, request)
                    known = await self._make_until_done(call, digest, request)
                else:
                    known = await self._make_if_approved(call, digest, request)
            finally:
                self._arguments.discard(call)
                del self._in_flight[call]
                done.set_result(None)
        if request.tool.approval is not None:
            return await self._approved_result(call, digest, known, request)
        if known.digest != digest:
            _report_changed_arguments(self._host.run, call, request)
        elif known.failure is None:
            self._arguments.note_answer(call, request, known.result)
        return _result_or_raise(known, request.tool)

    @functools.cached_property
    def _approvals(self) -> Approvals | None:
        reviews = self._host.approvals
        return None if reviews is None else Approvals(self._host, reviews)

    async def _make_if_approved(self, call: str, digest: bytes, request: CallRequest) -> Call:
        """Make a call with the arguments that a person approves, or record that it is rejected."""
        assert self._approvals is not None
        approved = await self._approvals.approved(call, request)
        if isinstance(approved, CallRejected):
            self._arguments.prepare(call, request)
            await self._records.record_rejection(call, digest, approved)
            return self._records.known_call(call)
        self._arguments.prepare(call, approved)
        if approved.reviewed is None:
            return await self._make_until_done(call, digest, approved)
        digest = arguments_digest((approved.args, approved.kwargs))
        # Other calls that wait for reviewers must not pause the run before this one begins.
        mark = self._call_ids.begin_keeping(_before(call))
        try:
            return await self._make_until_done(call, digest, approved)
        finally:
            self._call_ids.mark_done(mark)

    async def _approved_result(
        self, call: str, digest: bytes, known: Call, request: CallRequest
    ) -> Any:
        """Return the result of a call whose tool needs an approval, or raise its error."""
        rejection: CallRejected | None = None
        if self._approvals is not None:
            if known.digest != digest and await self._approvals.has_changed(call, request):
                _warn_of_changed_arguments(self._host.run, call)
            if known.failure is not None:
                rejection = self._approvals.rejection(call, request)
            if request.tell_edit is not None and (edit := self._approvals.edit(call, request)):
                request.tell_edit(edit)
        elif known.failure is not None and _REJECTED in known.kinds:  # a test says so
            reason = known.failure.message
            rejection = CallRejected(reason, kinds=known.kinds, reason=reason)
        if rejection is not None:
            raise rejection
        return _result_or_raise(known, request.tool)

    async def needing_approval(
        self, subject: str, calls: Mapping[str, CallRequest]
    ) -> dict[str, CallRequest]:
        """Return which of several calls need an approval; see `Approvals.needing`."""
        if self._approvals is None:
            return {}
        prepared = {name: self._approvals.prepared("", each) for name, each in calls.items()}
        return await self._approvals.needing(subject, prepared)

    async def decided_together(
        self, subject: str, calls: Mapping[str, CallRequest]
    ) -> dict[str, ReviewedCall]:
        """Return the review that decided about calls; see `Approvals.decided_together`."""
        assert self._approvals is not None
        return await self._approvals.decided_together(subject, calls)

    async def let_others_begin(self) -> None:
        """Return after the other tasks of the node have begun, and do not let the run pause."""
        with self._call_ids.keep_running():
            await self._call_ids.let_others_begin()

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
                if request.reviewed is not None and self._approvals is not None:
                    await self._approvals.check(call, request)
                self._call_ids.mark_active(call)
                if request.reviewed is not None:
                    self._call_ids.mark_done(_before(call))
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


def _before(call: str) -> str:
    """Return the mark of an approved call that is about to begin."""
    return f"approved {call}"


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
    _warn_of_changed_arguments(run, call)


def _warn_of_changed_arguments(run: RunKey, call: str) -> None:
    _log.warning(
        "%s: call %s has other arguments than when it was recorded; its record answers, and "
        "nothing is called again",
        run.log_name,
        call,
    )
