"""`DynamoEngine`: the storage engine for a table in Amazon DynamoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.errors import ChangesOff, InvalidRequest, StoreClosed
from holdfast.storage.aws import configured_region, validate_endpoint
from holdfast.storage.cursors import cursor_at
from holdfast.storage.dynamodb.attributes import item_of
from holdfast.storage.dynamodb.batches import Batches
from holdfast.storage.dynamodb.capacity import reported_units
from holdfast.storage.dynamodb.client import (
    DynamoClient,
    DynamoResponse,
    NoResponse,
    RequestRefused,
)
from holdfast.storage.dynamodb.credentials import CredentialChain
from holdfast.storage.dynamodb.errors import store_error
from holdfast.storage.dynamodb.requests import DynamoRequest, get_request, query_request
from holdfast.storage.dynamodb.table_creation import TableCreator
from holdfast.storage.dynamodb.table_definition import validate_table_name
from holdfast.storage.dynamodb.transport import HttpTransport
from holdfast.storage.dynamodb.writer import DynamoWriter
from holdfast.storage.layout import LAYOUT, Layout
from holdfast.storage.operations import (
    ChangePage,
    GetItem,
    GetItems,
    Operation,
    Page,
    QueryItems,
    Reply,
    TransactItems,
    WriteItem,
    WriteItems,
)

__all__ = ["DynamoEngine"]

IN_FLIGHT_MAX = 64
RETRY_BUDGET_SECONDS = 20.0
TIMEOUT_SECONDS = 5.0
# The service remembers a transaction for ten minutes. All attempts must fall within that time.
RETRY_BUDGET_SECONDS_MAX = 300.0
TIMEOUT_SECONDS_MAX = 60.0


class DynamoEngine:
    """One table in DynamoDB.

    It reads and sends nothing before the first operation, and binds itself to the event loop of
    that operation. At most ``in_flight_max`` requests are in flight at a time. Each attempt of a
    request takes at most ``timeout_seconds``, and all attempts together ``retry_budget_seconds``
    (see `client.py`). `writer.py` says what happens to writes whose response was lost.

    Raises:
        InvalidUrl: the name of the table or the endpoint is not valid.
        InvalidRequest: a number is out of bounds.
    """

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        profile: str | None = None,
        layout: Layout = LAYOUT,
        clock: Clock | None = None,
        ids: Ids | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        retry_budget_seconds: float = RETRY_BUDGET_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        on_retry: Callable[[str], None] | None = None,
    ) -> None:
        """``on_retry`` gets the code of each error after which a request is sent again."""
        validate_table_name(table)
        _check_bounds("in_flight_max", in_flight_max, 1, 10_000)
        _check_bounds("retry_budget_seconds", retry_budget_seconds, 0, RETRY_BUDGET_SECONDS_MAX)
        _check_bounds("timeout_seconds", timeout_seconds, 0.001, TIMEOUT_SECONDS_MAX)
        clock = clock or SystemClock()
        ids = ids or SystemIds(clock)
        self._table = table
        self._layout = layout
        chain = CredentialChain(
            profile=profile,
            region=configured_region(region) if region else None,
            endpoint=endpoint and validate_endpoint(endpoint),
            clock=clock,
        )
        self._transport = HttpTransport(
            chain,
            clock=clock,
            in_flight_max=in_flight_max,
            timeout_seconds=timeout_seconds,
            wait_seconds_max=retry_budget_seconds,
        )
        self._client = DynamoClient(
            self._transport,
            chain,
            table=table,
            clock=clock,
            ids=ids,
            budget_seconds=retry_budget_seconds,
            on_retry=on_retry or (lambda code: None),
        )
        self._writer = DynamoWriter(self._client, table=table, layout=layout, ids=ids)
        self._batches = Batches(self._client, table=table)
        self._table_creator = TableCreator(self._client, table=table, layout=layout, clock=clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._in_flight = 0
        self._idle = asyncio.Event()

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def poll_seconds(self) -> float:
        return 0.9  # a read of an empty partition costs half a read unit

    async def perform(self, operation: Operation) -> Reply:
        """Perform one validated operation (see `TableEngine.perform`)."""
        with self._track_operation():
            match operation:
                case WriteItem():
                    return await self._writer.write(operation)
                case GetItem():
                    return await self._get(operation)
                case QueryItems():
                    return await self._query(operation)
                case TransactItems():
                    return await self._writer.transact(operation)
                case GetItems():
                    return await self._batches.get(operation)
                case WriteItems():
                    return await self._batches.write(operation)

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Raise an error: this release cannot read DynamoDB Streams.

        Tables are created with the stream on, so that a later release can read it.

        Raises:
            ChangesOff: always.
        """
        raise ChangesOff(
            "this release cannot read the change feed of a DynamoDB table; a later release will"
        )

    async def create(self) -> None:
        """Create the table, with expiry of items and backups, if it does not exist.

        Raises:
            StoreMismatched: there is a table of that name with another definition.
        """
        with self._track_operation():
            await self._table_creator.ensure_table()

    async def close(self) -> None:
        """Finish the operations under way and close the connections."""
        self._closed = True
        if self._in_flight and self._loop is asyncio.get_running_loop():
            await self._idle.wait()
        await self._transport.close()

    async def _get(self, operation: GetItem) -> Reply:
        request = get_request(self._table, operation.key, eventual=operation.eventual)
        response = await self._send_read(request, f"{operation.key}")
        attributes = response.data.get("Item")
        item = item_of(attributes) if attributes else None
        return Reply(item, reported_units(response.data, "read"))

    async def _query(self, operation: QueryItems) -> Reply:
        request = query_request(self._table, operation)
        response = await self._send_read(request, f"the query of {operation.pk!r}")
        last = response.data.get("LastEvaluatedKey")
        page = Page(
            [item_of(attributes) for attributes in response.data.get("Items", ())],
            cursor_at(item_of(last), operation.index) if last else None,
        )
        return Reply(page, reported_units(response.data, "read"))

    async def _send_read(self, request: DynamoRequest, about: str) -> DynamoResponse:
        try:
            return await self._client.send(request)
        except NoResponse as unanswered:
            raise unanswered.error from None
        except RequestRefused as refusal:
            raise store_error(
                refusal.service_error, await self._client.load_table_address(), about
            ) from None

    def _bind_loop(self) -> None:
        """Bind the engine to the event loop of its first operation.

        Raises:
            StoreClosed: the engine belongs to another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            # Its connections belong to that loop, which may be closed.
            raise StoreClosed(
                f"the table {self._table!r} was opened in another event loop; open it in this one"
            )

    @contextmanager
    def _track_operation(self) -> Generator[None]:
        if self._closed:
            raise StoreClosed(f"the table {self._table!r} was used after its Holdfast was closed")
        self._bind_loop()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._closed and not self._in_flight:
                self._idle.set()


def _check_bounds(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise InvalidRequest(
            f"{name} must be from {minimum:g} to {maximum:g}, got {value!r}", field=name
        )
