"""`TableCreator`: creates a table, or compares an existing one with the layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreMismatched, StoreUnavailable
from holdfast.storage.dynamodb.client import (
    DynamoClient,
    NoResponse,
    RequestRefused,
    describe_request,
)
from holdfast.storage.dynamodb.errors import ServiceError, store_error
from holdfast.storage.dynamodb.requests import DynamoRequest
from holdfast.storage.dynamodb.table_definition import create_table_params, differences
from holdfast.storage.layout import TTL, Layout

__all__ = ["TableCreator"]

READY_SECONDS_MAX = 600.0
POLL_SECONDS = 1.0


class TableCreator:
    """Creates one table. Several processes may do so at once, and it may be repeated."""

    def __init__(self, client: DynamoClient, *, table: str, layout: Layout, clock: Clock) -> None:
        self._client = client
        self._table = table
        self._layout = layout
        self._clock = clock

    async def ensure_table(self) -> None:
        """Create the table if it does not exist, and wait until it is ready.

        Raises:
            StoreMismatched: there is a table of that name with another definition.
            AccessDenied: the credentials do not permit creating or describing the table.
        """
        if await self._describe_table() is None:
            await self._create_table()
        await self._wait_until_ready()
        await self._enable_ttl()
        await self._enable_backups()

    async def _describe_table(self) -> Mapping[str, Any] | None:
        try:
            return (await self._send(describe_request(self._table)))["Table"]
        except RequestRefused as refusal:
            if refusal.service_error.remedy == "table":
                return None
            raise await self._load_error(refusal.service_error) from None

    async def _create_table(self) -> None:
        try:
            await self._send(
                DynamoRequest.of("CreateTable", **create_table_params(self._table, self._layout))
            )
        except RequestRefused as refusal:
            # Another process created it, or our first response was lost.
            if refusal.service_error.code != "ResourceInUseException":
                raise await self._load_error(refusal.service_error) from None

    async def _wait_until_ready(self) -> None:
        deadline = self._clock.monotonic() + READY_SECONDS_MAX
        while True:
            table = await self._describe_table()
            if table is not None:
                if table["TableStatus"] == "DELETING":
                    raise StoreUnavailable(
                        f"{await self._client.load_table_address()} is being deleted"
                    )
                self._check_layout(table)
                if _is_ready(table):
                    return
            await self._poll(deadline, "does not become ready")

    def _check_layout(self, table: Mapping[str, Any]) -> None:
        found = differences(table, self._layout)
        if found:
            raise StoreMismatched(
                f"there is a table {self._table!r}, but {'; '.join(found)}. Holdfast does not "
                "change the definition of a table: choose another name, or correct the table"
            )

    async def _enable_ttl(self) -> None:
        """Enable the expiry of items by their ``ttl``."""
        specification = {"AttributeName": TTL, "Enabled": True}
        try:
            await self._call("UpdateTimeToLive", TimeToLiveSpecification=specification)
        except RequestRefused as refusal:
            # DynamoDB refuses to enable it twice, or while another process enables it.
            if (
                refusal.service_error.code != "ValidationException"
                or not await self._check_ttl_enabled()
            ):
                raise await self._load_error(refusal.service_error) from None

    async def _check_ttl_enabled(self) -> bool:
        try:
            response = await self._call("DescribeTimeToLive")
        except RequestRefused as refusal:
            raise await self._load_error(refusal.service_error) from None
        expiry = response.get("TimeToLiveDescription", {})
        if expiry.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return False
        if expiry["AttributeName"] != TTL:
            raise StoreMismatched(
                f"the items of the table {self._table!r} must expire by the attribute {TTL!r}, and "
                f"expire by {expiry['AttributeName']!r}"
            )
        return True

    async def _enable_backups(self) -> None:
        """Enable point-in-time recovery to any second of the last 35 days.

        DynamoDB Local has no backups and does not know the operation, which is fine. Every other
        refusal is an error.
        """
        specification = {"PointInTimeRecoveryEnabled": True}
        deadline = self._clock.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                await self._call(
                    "UpdateContinuousBackups", PointInTimeRecoverySpecification=specification
                )
                return
            except RequestRefused as refusal:
                if refusal.service_error.code == "UnknownOperationException":
                    return
                # The service prepares backups for a while after it created a table.
                if refusal.service_error.code != "ContinuousBackupsUnavailableException":
                    raise await self._load_error(refusal.service_error) from None
            await self._poll(deadline, "does not get its backups ready")

    async def _poll(self, deadline: float, complaint: str) -> None:
        if self._clock.monotonic() >= deadline:
            raise StoreUnavailable(f"{await self._client.load_table_address()} {complaint}")
        await self._clock.sleep(POLL_SECONDS)

    async def _call(self, operation: str, **fields: Any) -> dict[str, Any]:
        return await self._send(DynamoRequest.of(operation, TableName=self._table, **fields))

    async def _send(self, request: DynamoRequest) -> dict[str, Any]:
        try:
            return (await self._client.send(request)).data
        except NoResponse as unanswered:
            raise unanswered.error from None

    async def _load_error(self, service_error: ServiceError) -> HoldfastError:
        return store_error(service_error, await self._client.load_table_address())


def _is_ready(table: Mapping[str, Any]) -> bool:
    indexes: list[dict[str, Any]] = table.get("GlobalSecondaryIndexes") or []
    states = [index.get("IndexStatus", "ACTIVE") for index in indexes]
    return all(state == "ACTIVE" for state in [table["TableStatus"], *states])
