"""Reads and writes the records of the calls of one visit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from holdfast.display import IndentedLines, get_logger
from holdfast.engine.effects.call_arguments import CallArguments
from holdfast.engine.effects.call_host import CallHost, CallRequest
from holdfast.errors import CallRejected
from holdfast.model.answer_limits import RETRY_AFTER_SECONDS_MAX
from holdfast.model.arguments import Recorded
from holdfast.model.call import Call
from holdfast.model.event import (
    CallFinished,
    CallIntended,
    CallReserved,
    CallRetried,
    CallVoided,
    Event,
    Failure,
    RecordedCall,
    RecordedIntent,
)
from holdfast.model.failure import failure_of
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.traces import innermost_place

__all__ = ["CallRecords"]

_log = get_logger("holdfast.calls")

_UNKNOWN_CALL = Call()


class CallRecords:
    """The records of the calls of one visit."""

    def __init__(self, host: CallHost, arguments: CallArguments) -> None:
        self._host = host
        self._arguments = arguments

    def known_call(self, call: str) -> Call:
        """Return what the journal says about a call; an empty record if it says nothing."""
        return self._host.known_call(call) or _UNKNOWN_CALL

    def recorded_arguments(self, call: str) -> Recorded | None:
        """Return the arguments of a call that is being made; None if none are recorded."""
        return self._arguments.recorded(call)

    def idempotency_key(self, call: str) -> str:
        """Return the key under which a call is made: a new one after the last one was voided."""
        if call.startswith("="):
            voided = self.known_call(call).voided
            return f"{call[1:]}~{voided}" if voided else call[1:]
        return hashlib.blake2b(self._key_source(call).encode(), digest_size=16).hexdigest()

    def resolution_id(self, call: str) -> str:
        """Return the id under which a person resolves a call.

        It belongs to this visit alone: calls of other visits may use the same idempotency key.
        """
        return hashlib.blake2b(self._key_source(call).encode(), digest_size=8).hexdigest()

    def _key_source(self, call: str) -> str:
        return f"{self._host.key}.{call}~{self.known_call(call).voided}"

    async def cancel_reservation(self, call: str) -> None:
        """Record that a call that did not begin costs nothing."""
        if self.known_call(call).reserved != NO_SPENDING:
            await self.record(CallReserved, call, NO_SPENDING, durable=False, instead=True)

    async def record_failed_attempt(
        self, call: str, digest: bytes, error: Exception, request: CallRequest
    ) -> None:
        """Record that an attempt raised and had no effect: retry the call, or end it as failed."""
        known = self.known_call(call)
        failed = known.failed + 1
        if failed >= request.retry.attempts or not request.retry.covers(error):
            await self.record_failure(call, digest, error, request, lasts=False)
            return
        backoff_ms = request.retry.backoff_ms(failed, self.idempotency_key(call))
        wait_ms = max(backoff_ms, _retry_after_ms(error))
        at_ms = self._host.now_ms() + wait_ms
        failure = failure_of(error)
        events = [self._build(CallRetried, call, failure, at_ms)]
        if known.reserved != NO_SPENDING and request.price.is_unpaid(error):
            events.append(self._build(CallReserved, call, NO_SPENDING, instead=True))
        if known.intended:
            events.append(self._build(CallVoided, call, "tool"))
        await self._host.record(*events, durable=False)
        follows = f"is made again in {wait_ms / 1000:,.1f} seconds"
        self._log_failure(request, failure, attempt=failed, follows=follows)

    async def record_failure(
        self,
        call: str,
        digest: bytes,
        error: Exception,
        request: CallRequest,
        *,
        by: str = "",
        lasts: bool = True,
    ) -> None:
        """Record that a call ended with an error."""
        failure, failed = failure_of(error), self.known_call(call).failed + 1
        await self.record(
            CallFinished,
            call,
            digest,
            durable=False,
            failure=failure,
            kinds=_exception_types(error),
            # A retry of the node must not repeat an at-most-once call that may have had an effect.
            lasts=request.tool.at_most_once and lasts,
            spent=self._spent_by_failure(call, error, request),
            by=by,
        )
        if not by:
            self._log_failure(request, failure, attempt=failed, follows="is not made again")

    async def record_rejection(self, call: str, digest: bytes, error: CallRejected) -> None:
        """Record that a call ends without being made, also for the next attempts of the node."""
        await self.record(
            CallFinished,
            call,
            digest,
            durable=False,
            failure=failure_of(error),
            kinds=_exception_types(error),
            lasts=True,
            by="person",
        )

    def _log_failure(
        self, request: CallRequest, failure: Failure, *, attempt: int, follows: str
    ) -> None:
        host, most = self._host, request.retry.attempts
        place = innermost_place(failure.trace)
        _log.warning(
            "%s: call %r of node %r failed%s%s and %s: %s: %s%s",
            host.run.log_name,
            request.tool.name,
            host.node,
            f" in attempt {attempt} of {most}" if most > 1 else "",
            f" at {place}" if place else "",
            follows,
            failure.type,
            failure.message,
            IndentedLines(failure.trace if place else ""),
        )

    def _spent_by_failure(self, call: str, error: Exception, request: CallRequest) -> Spending:
        """Return what counts for an attempt that failed: all that it may have cost."""
        price, reserved = request.price, self.known_call(call).reserved
        if reserved == NO_SPENDING or price.is_unpaid(error):
            return NO_SPENDING
        if price.bounds is None or not price.bounds.is_estimated:
            return reserved
        return reserved.at_least(price.max_spending)

    async def record(
        self, kind: Callable[..., Event], call: str, *args: Any, durable: bool, **kwargs: Any
    ) -> None:
        """Record one event of a call."""
        await self._host.record(self._build(kind, call, *args, **kwargs), durable=durable)

    def _build(self, kind: Callable[..., Event], call: str, *args: Any, **kwargs: Any) -> Event:
        host = self._host
        kwargs["branch"] = host.branch
        arguments = self.recorded_arguments(call)
        # The intent of a call has its arguments: they are not recorded again at its end.
        if kind is CallIntended and arguments is not None:
            kind, kwargs["arguments"] = RecordedIntent, arguments
        elif kind is CallFinished and arguments is not None and not self.known_call(call).intended:
            kind, kwargs["arguments"] = RecordedCall, arguments
        return kind(host.now_ms(), host.node, host.visit, call, *args, **kwargs)


def _retry_after_ms(error: Exception) -> int:
    """Return how long a service asked not to be called again, at most the limit for it."""
    seconds: object = getattr(error, "retry_after_seconds", None)
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        return 0  # any class of error may have an attribute of this name
    return round(min(seconds, RETRY_AFTER_SECONDS_MAX) * 1000)


def _exception_types(error: Exception) -> tuple[str, ...]:
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, Exception)]
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
