"""`DynamoClient`: sends requests, with retries within a budget, and tracks lost responses.

A request that did not reach the service, or that the service was too busy for, is sent again after
a backoff. If a response was lost (a broken connection, a timeout, a damaged body, HTTP 5xx), the
service may have performed the request. Then it is sent again byte for byte, unless the caller
forbids it, and the caller learns that a response was lost.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The response to a request."""

    data: dict[str, Any]
    response_lost: bool
    """Whether an earlier response was lost: the request may have been performed twice."""


class RequestRefused(Exception):
    """The service refused the request."""

    def __init__(self, service_error: ServiceError, *, response_lost: bool) -> None:
        super().__init__(str(service_error))
        self.service_error = service_error
        self.response_lost = response_lost
        """Whether an earlier response was lost: the request may have been performed."""


class NoResponse(Exception):
    """There is no response within the budget, or it was lost and must not be requested again."""

    def __init__(self, error: HoldfastError, *, response_lost: bool) -> None:
        super().__init__(str(error))
        self.error = error
        """The last error."""
        self.response_lost = response_lost
        """Whether a response was lost: the request may have been performed."""


class RetryBudget:
    """The time for all attempts of a request, with a backoff between them (full jitter)."""

    def __init__(
        self, seconds: float, *, clock: Clock, ids: Ids, on_retry: Callable[[str], None]
    ) -> None:
        self._on_retry = on_retry
        self._seconds = seconds
        self._clock = clock
        self._ids = ids
        self.reset()

    def reset(self) -> None:
        """Start the budget again, because there was progress."""
        self._deadline = self._clock.monotonic() + self._seconds
        self._backoff_seconds = BACKOFF_SECONDS_FIRST

    async def back_off(self, code: str) -> bool:
        """Wait, longer each time, and return True; return False if the time is up.

        ``code`` is that of the error after which the request is sent again.
        """
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            return False
        self._on_retry(code)
        await self._clock.sleep(min(self._ids.random() * self._backoff_seconds, left))
        self._backoff_seconds = min(self._backoff_seconds * 2, BACKOFF_SECONDS_MAX)
        return True


class DynamoClient:
    """Sends requests about one table until there is a response."""

    def __init__(
        self,
        transport: HttpTransport,
        chain: CredentialChain,
        *,
        table: str,
        clock: Clock,
        ids: Ids,
        budget_seconds: float,
        on_retry: Callable[[str], None],
    ) -> None:
        self._on_retry = on_retry
        self._transport = transport
        self._chain = chain
        self._table = table
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds

    def new_budget(self) -> RetryBudget:
        """Return a new budget."""
        return RetryBudget(
            self._budget_seconds, clock=self._clock, ids=self._ids, on_retry=self._on_retry
        )

    async def load_table_address(self) -> TableAddress:
        """Return the table with its region and endpoint, for error messages."""
        place = await self._chain.load_endpoint()
        return TableAddress(self._table, place.region, place.endpoint)

    async def send(self, request: DynamoRequest, *, resend: bool = True) -> DynamoResponse:
        """Send a request and return the response.

        ``resend`` says whether to send it again after a response was lost.

        Raises:
            RequestRefused: the service refused the request.
            NoResponse: there is no response.
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
            if not await budget.back_off(last_error.code):
                raise NoResponse(last_error, response_lost=lost)

    async def _load_retryable_error(
        self, fault: ServiceError, request: DynamoRequest, *, lost: bool
    ) -> HoldfastError:
        """Return the error to raise if retries fail, or raise if a retry cannot help."""
        table_address = await self.load_table_address()
        if fault.status >= 500 or fault.remedy == "wait":
            return store_error(fault, table_address)
        asks_for_items = fault.remedy == "table" and request.operation != _DESCRIBE
        if asks_for_items and await self._check_being_created():
            return StoreUnavailable(f"{table_address} is still being created")
        raise RequestRefused(fault, response_lost=lost)

    async def _check_being_created(self) -> bool:
        # The service says "not found" about a table that is not ready yet.
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
            return StoreUnavailable(f"{table_address} sent a response that cannot be read: {error}")
        return EndpointUnreachable(f"{table_address} cannot be reached: {error}")


def describe_request(table: str) -> DynamoRequest:
    """Return the request for the definition and the status of a table."""
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
        raise ResponseDamaged(f"not a response of DynamoDB: it has no {request.expects}")
    return fields
