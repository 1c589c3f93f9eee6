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
from holdfast.storage.dynamodb.errors import ServiceError, TableAddress, store_error
from holdfast.storage.dynamodb.requests import DynamoRequest
from holdfast.storage.dynamodb.transport import (
    HttpResponse,
    HttpTransport,
    NotSent,
    NotTrusted,
    ResponseDamaged,
    ResponseLost,
)

__all__ = ["DynamoClient", "DynamoResponse", "NoResponse", "RequestRefused", "RetryBudget"]

BACKOFF_SECONDS_FIRST = 0.05
BACKOFF_SECONDS_MAX = 5.0

_DESCRIBE = "DescribeTable"
_decode = msgspec.json.Decoder().decode


class DynamoResponse(msgspec.Struct, frozen=True):
    """The answer to a request."""

    data: dict[str, Any]
    response_lost: bool
    """Whether an earlier answer was lost, so that the request may have been carried out twice."""


class RequestRefused(Exception):
    """The service refused the request."""

    def __init__(self, service_error: ServiceError, *, response_lost: bool) -> None:
        super().__init__(str(service_error))
        self.service_error = service_error
        self.response_lost = response_lost
        """Whether an earlier answer was lost, so that the request may have been carried out."""


class NoResponse(Exception):
    """The budget is spent, or an answer was lost that must not be asked for again."""

    def __init__(self, error: HoldfastError, *, response_lost: bool) -> None:
        super().__init__(str(error))
        self.error = error
        """What was in the way last."""
        self.response_lost = response_lost
        """Whether an answer was lost, so that the request may have been carried out."""


class RetryBudget:
    """How long something is tried, and how long to pause in between: full jitter."""

    def __init__(self, seconds: float, *, clock: Clock, ids: Ids) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ids = ids
        self.reset()

    def reset(self) -> None:
        """Begin anew, since there was progress."""
        self._deadline = self._clock.monotonic() + self._seconds
        self._backoff_seconds = BACKOFF_SECONDS_FIRST

    async def back_off(self) -> bool:
        """Wait a moment, each time longer, and return True; return False where time is up."""
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            return False
        await self._clock.sleep(min(self._ids.random() * self._backoff_seconds, left))
        self._backoff_seconds = min(self._backoff_seconds * 2, BACKOFF_SECONDS_MAX)
        return True


class DynamoClient:
    """Sends requests to one table's service until they are answered."""

    def __init__(
        self,
        transport: HttpTransport,
        chain: CredentialChain,
        *,
        table: str,
        clock: Clock,
        ids: Ids,
        budget_seconds: float,
    ) -> None:
        self._transport = transport
        self._chain = chain
        self._table = table
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds

    def new_budget(self) -> RetryBudget:
        """Return a fresh budget."""
        return RetryBudget(self._budget_seconds, clock=self._clock, ids=self._ids)

    async def load_table_address(self) -> TableAddress:
        """Return which table this is about, and where it is."""
        place = await self._chain.load_endpoint()
        return TableAddress(self._table, place.region, place.endpoint)

    async def send(self, request: DynamoRequest, *, resend: bool = True) -> DynamoResponse:
        """Return the answer to a request.

        ``resend`` says whether it may be sent again after an answer was lost.

        Raises:
            Refusal: the service will not do it.
            Unanswered: there is no answer.
        """
        budget = self.new_budget()
        lost = renewed = False
        while True:
            try:
                response = await self._transport.post(request)
                parsed = _parse_response(response, request)
            except NotTrusted as error:
                raise NoResponse(
                    await self._load_unavailable_error(error), response_lost=lost
                ) from error
            except NotSent as error:
                last_error: HoldfastError = await self._load_unavailable_error(error)
            except ResponseLost as error:
                lost, last_error = True, await self._load_unavailable_error(error)
            except HoldfastError as error:
                raise NoResponse(error, response_lost=lost) from error
            else:
                if isinstance(parsed, dict):
                    return DynamoResponse(parsed, lost)
                if parsed.remedy == "credentials" and not renewed:
                    renewed = True
                    await self._renew_keys(response, lost=lost)
                    continue
                lost = lost or parsed.status >= 500
                last_error = await self._load_retryable_error(parsed, request, lost=lost)
            if lost and not resend:
                raise NoResponse(last_error, response_lost=True)
            if not await budget.back_off():
                raise NoResponse(last_error, response_lost=lost)

    async def _load_retryable_error(
        self, fault: ServiceError, request: DynamoRequest, *, lost: bool
    ) -> HoldfastError:
        """Return the error to give up with later, if the request is worth another try."""
        table_address = await self.load_table_address()
        if fault.status >= 500 or fault.remedy == "wait":
            return store_error(fault, table_address)
        asks_for_items = fault.remedy == "table" and request.operation != _DESCRIBE
        if asks_for_items and await self._check_being_created():
            return StoreUnavailable(f"{table_address} is still being created")
        raise RequestRefused(fault, response_lost=lost)

    async def _check_being_created(self) -> bool:
        # The service answers "not found" for a table that is not ready yet.
        try:
            request = describe_request(self._table)
            parsed = _parse_response(await self._transport.post(request), request)
        except (NotSent, ResponseLost, HoldfastError):
            return False
        return isinstance(parsed, dict) and parsed["Table"]["TableStatus"] == "CREATING"

    async def _renew_keys(self, response: HttpResponse, *, lost: bool) -> None:
        try:
            await self._chain.renew(response.keys)
        except HoldfastError as error:
            raise NoResponse(error, response_lost=lost) from error

    async def _load_unavailable_error(self, error: NotSent | ResponseLost) -> StoreUnavailable:
        table_address = await self.load_table_address()
        if isinstance(error, ResponseDamaged):
            return StoreUnavailable(f"{table_address} sends what cannot be read: {error}")
        return EndpointUnreachable(f"{table_address} cannot be reached: {error}")


def describe_request(table: str) -> DynamoRequest:
    """Return the request that asks how the table is made and whether it is ready."""
    return DynamoRequest.of(_DESCRIBE, TableName=table)


def _parse_response(
    response: HttpResponse, request: DynamoRequest
) -> dict[str, Any] | ServiceError:
    try:
        parsed: Any = _decode(response.body)
    except msgspec.DecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        if response.status >= 400:
            return ServiceError(
                response.status, {"message": response.body[:200].decode("utf-8", "replace")}
            )
        raise ResponseDamaged(f"not JSON (HTTP {response.status}): {response.body[:80]!r}")
    fields = cast(dict[str, Any], parsed)
    if response.status != 200:
        return ServiceError(response.status, fields)
    if request.expects is not None and request.expects not in fields:
        raise ResponseDamaged(f"not an answer of DynamoDB: it has no {request.expects}")
    return fields
