"""Asking until there is an answer: retries within a budget, and what a lost answer means.

Whatever did not reach the service, or was turned away because it was busy, is sent again after a
pause. Where an answer was lost (a broken connection, a time-out, a damaged body, HTTP 5xx) the
request may have been carried out: it is sent again byte for byte, unless the caller forbids it,
and the caller learns that it was.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.clock import Clock, Ids
from holdfast.errors import EndpointUnreachable, HoldfastError, StoreUnavailable
from holdfast.storage.dynamodb.credentials import CredentialChain
from holdfast.storage.dynamodb.faults import Fault, Service, error_of
from holdfast.storage.dynamodb.requests import Request
from holdfast.storage.dynamodb.wire import (
    AnswerDamaged,
    AnswerLost,
    NotSent,
    NotTrusted,
    Reply,
    Wire,
)

__all__ = ["Answered", "Budget", "Exchange", "Refusal", "Unanswered"]

PAUSE_SECONDS_FIRST = 0.05
PAUSE_SECONDS_MAX = 5.0

_DESCRIBE = "DescribeTable"
_decode = msgspec.json.Decoder().decode


class Answered(msgspec.Struct, frozen=True):
    """The answer to a request."""

    data: dict[str, Any]
    lost: bool
    """Whether an earlier answer was lost, so that the request may have been carried out twice."""


class Refusal(Exception):
    """The service refused the request."""

    def __init__(self, fault: Fault, *, lost: bool) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.lost = lost
        """Whether an earlier answer was lost, so that the request may have been carried out."""


class Unanswered(Exception):
    """The budget is spent, or an answer was lost that must not be asked for again."""

    def __init__(self, error: HoldfastError, *, lost: bool) -> None:
        super().__init__(str(error))
        self.error = error
        """What was in the way last."""
        self.lost = lost
        """Whether an answer was lost, so that the request may have been carried out."""


class Budget:
    """How long something is tried, and how long to pause in between: full jitter."""

    def __init__(self, seconds: float, *, clock: Clock, ids: Ids) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ids = ids
        self.renew()

    def renew(self) -> None:
        """Begin anew, since there was progress."""
        self._ends = self._clock.monotonic() + self._seconds
        self._pause_seconds = PAUSE_SECONDS_FIRST

    async def pause(self) -> bool:
        """Wait a moment, each time longer, and return True; return False where time is up."""
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            return False
        await self._clock.sleep(min(self._ids.random() * self._pause_seconds, left))
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)
        return True


class Exchange:
    """Sends requests to one table's service until they are answered."""

    def __init__(
        self,
        wire: Wire,
        chain: CredentialChain,
        *,
        table: str,
        clock: Clock,
        ids: Ids,
        budget_seconds: float,
    ) -> None:
        self._wire = wire
        self._chain = chain
        self._table = table
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds

    def budget(self) -> Budget:
        """Return a fresh budget."""
        return Budget(self._budget_seconds, clock=self._clock, ids=self._ids)

    async def service(self) -> Service:
        """Return which table this is about, and where it is."""
        place = await self._chain.place()
        return Service(self._table, place.region, place.endpoint)

    async def ask(self, request: Request, *, resend: bool = True) -> Answered:
        """Return the answer to a request.

        ``resend`` says whether it may be sent again after an answer was lost.

        Raises:
            Refusal: the service will not do it.
            Unanswered: there is no answer.
        """
        budget = self.budget()
        lost = renewed = False
        while True:
            try:
                reply = await self._wire.post(request)
                answer = _parsed(reply, request)
            except NotTrusted as error:
                raise Unanswered(await self._broken(error), lost=lost) from error
            except NotSent as error:
                setback: HoldfastError = await self._broken(error)
            except AnswerLost as error:
                lost, setback = True, await self._broken(error)
            except HoldfastError as error:
                raise Unanswered(error, lost=lost) from error
            else:
                if isinstance(answer, dict):
                    return Answered(answer, lost)
                if answer.cure == "credentials" and not renewed:
                    renewed = True
                    await self._renew(reply, lost=lost)
                    continue
                lost = lost or answer.status >= 500
                setback = await self._setback(answer, request, lost=lost)
            if lost and not resend:
                raise Unanswered(setback, lost=True)
            if not await budget.pause():
                raise Unanswered(setback, lost=lost)

    async def _setback(self, fault: Fault, request: Request, *, lost: bool) -> HoldfastError:
        """Return the error to give up with later, if the request is worth another try."""
        service = await self.service()
        if fault.status >= 500 or fault.cure == "wait":
            return error_of(fault, service)
        asks_for_items = fault.cure == "table" and request.operation != _DESCRIBE
        if asks_for_items and await self._being_created():
            return StoreUnavailable(f"{service} is still being created")
        raise Refusal(fault, lost=lost)

    async def _being_created(self) -> bool:
        # The service answers "not found" for a table that is not ready yet.
        try:
            request = describe_request(self._table)
            answer = _parsed(await self._wire.post(request), request)
        except (NotSent, AnswerLost, HoldfastError):
            return False
        return isinstance(answer, dict) and answer["Table"]["TableStatus"] == "CREATING"

    async def _renew(self, reply: Reply, *, lost: bool) -> None:
        try:
            await self._chain.renew(reply.keys)
        except HoldfastError as error:
            raise Unanswered(error, lost=lost) from error

    async def _broken(self, error: NotSent | AnswerLost) -> StoreUnavailable:
        service = await self.service()
        if isinstance(error, AnswerDamaged):
            return StoreUnavailable(f"{service} sends what cannot be read: {error}")
        return EndpointUnreachable(f"{service} cannot be reached: {error}")


def describe_request(table: str) -> Request:
    """Return the request that asks how the table is made and whether it is ready."""
    return Request.of(_DESCRIBE, TableName=table)


def _parsed(reply: Reply, request: Request) -> dict[str, Any] | Fault:
    try:
        answer: Any = _decode(reply.body)
    except msgspec.DecodeError:
        answer = None
    if not isinstance(answer, dict):
        if reply.status >= 400:
            return Fault(reply.status, {"message": reply.body[:200].decode("utf-8", "replace")})
        raise AnswerDamaged(f"not JSON (HTTP {reply.status}): {reply.body[:80]!r}")
    fields = cast(dict[str, Any], answer)
    if reply.status != 200:
        return Fault(reply.status, fields)
    if request.expects is not None and request.expects not in fields:
        raise AnswerDamaged(f"not an answer of DynamoDB: it has no {request.expects}")
    return fields
