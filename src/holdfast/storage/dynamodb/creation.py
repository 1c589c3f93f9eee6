"""Making the table: created where it is absent, compared where it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreMismatched, StoreUnavailable
from holdfast.storage.dynamodb.definition import definition, differences
from holdfast.storage.dynamodb.exchange import Exchange, Refusal, Unanswered, describe_request
from holdfast.storage.dynamodb.faults import Fault, error_of
from holdfast.storage.dynamodb.requests import Request
from holdfast.storage.layout import TTL, Layout

__all__ = ["Creation"]

READY_SECONDS_MAX = 600.0
POLL_SECONDS = 1.0


class Creation:
    """Makes one table ready for use. Several may do so at once, and any may be repeated."""

    def __init__(self, exchange: Exchange, *, table: str, layout: Layout, clock: Clock) -> None:
        self._exchange = exchange
        self._table = table
        self._layout = layout
        self._clock = clock

    async def run(self) -> None:
        """Make the table ready.

        Raises:
            StoreMismatched: there is a table of that name that is made otherwise.
            AccessDenied: the credentials do not allow to make or to look at it.
        """
        if await self._described() is None:
            await self._create()
        await self._await_ready()
        await self._expire_items()
        await self._keep_backups()

    async def _described(self) -> Mapping[str, Any] | None:
        try:
            return (await self._ask(describe_request(self._table)))["Table"]
        except Refusal as refusal:
            if refusal.fault.cure == "table":
                return None
            raise await self._error(refusal.fault) from None

    async def _create(self) -> None:
        try:
            await self._ask(Request.of("CreateTable", **definition(self._table, self._layout)))
        except Refusal as refusal:
            # Somebody else was faster, or an answer was lost.
            if refusal.fault.code != "ResourceInUseException":
                raise await self._error(refusal.fault) from None

    async def _await_ready(self) -> None:
        ends = self._clock.monotonic() + READY_SECONDS_MAX
        while True:
            table = await self._described()
            if table is not None:
                if table["TableStatus"] == "DELETING":
                    raise StoreUnavailable(f"{await self._exchange.service()} is being deleted")
                self._compare(table)
                if _is_ready(table):
                    return
            await self._poll(ends, "does not become ready")

    def _compare(self, table: Mapping[str, Any]) -> None:
        found = differences(table, self._layout)
        if found:
            raise StoreMismatched(
                f"there is a table {self._table!r}, but {'; '.join(found)}. Holdfast does not "
                "change a table that is made otherwise: choose another name, or mend it"
            )

    async def _expire_items(self) -> None:
        """Let the store delete items after their ``ttl``."""
        specification = {"AttributeName": TTL, "Enabled": True}
        try:
            await self._call("UpdateTimeToLive", TimeToLiveSpecification=specification)
        except Refusal as refusal:
            # It refuses to do again what was done, or what another does at this moment.
            if refusal.fault.code != "ValidationException" or not await self._items_expire():
                raise await self._error(refusal.fault) from None

    async def _items_expire(self) -> bool:
        try:
            answer = await self._call("DescribeTimeToLive")
        except Refusal as refusal:
            raise await self._error(refusal.fault) from None
        expiry = answer.get("TimeToLiveDescription", {})
        if expiry.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return False
        if expiry["AttributeName"] != TTL:
            raise StoreMismatched(
                f"items of the table {self._table!r} expire by the attribute "
                f"{expiry['AttributeName']!r}, not by {TTL!r}"
            )
        return True

    async def _keep_backups(self) -> None:
        """Let the table be restored to any second of the last 35 days.

        DynamoDB Local has no backups, and says that it does not know the operation; the service
        itself knows it, so that every other refusal is an error.
        """
        specification = {"PointInTimeRecoveryEnabled": True}
        ends = self._clock.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                await self._call(
                    "UpdateContinuousBackups", PointInTimeRecoverySpecification=specification
                )
                return
            except Refusal as refusal:
                if refusal.fault.code == "UnknownOperationException":
                    return
                # For a while after a table was made the service is still preparing its backups.
                if refusal.fault.code != "ContinuousBackupsUnavailableException":
                    raise await self._error(refusal.fault) from None
            await self._poll(ends, "does not get its backups ready")

    async def _poll(self, ends: float, complaint: str) -> None:
        if self._clock.monotonic() >= ends:
            raise StoreUnavailable(f"{await self._exchange.service()} {complaint}")
        await self._clock.sleep(POLL_SECONDS)

    async def _call(self, operation: str, **fields: Any) -> dict[str, Any]:
        return await self._ask(Request.of(operation, TableName=self._table, **fields))

    async def _ask(self, request: Request) -> dict[str, Any]:
        try:
            return (await self._exchange.ask(request)).data
        except Unanswered as unanswered:
            raise unanswered.error from None

    async def _error(self, fault: Fault) -> HoldfastError:
        return error_of(fault, await self._exchange.service())


def _is_ready(table: Mapping[str, Any]) -> bool:
    indexes: list[dict[str, Any]] = table.get("GlobalSecondaryIndexes") or []
    states = [index.get("IndexStatus", "ACTIVE") for index in indexes]
    return all(state == "ACTIVE" for state in [table["TableStatus"], *states])
