"""The items of connections that follow a workflow, such as WebSockets. They end at their ttl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.document import DocumentConnection
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document_keys import connection_key
from holdfast.records.item_json import item_value, json_value
from holdfast.records.times import utc_datetime
from holdfast.storage import Key, Put

__all__ = ["StoredConnection", "connection_of", "connection_write"]


class StoredConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection as it is stored."""

    tenant: str
    workflow: str
    id: str
    connected_ms: int
    expires_ms: int
    data: dict[str, Any] = {}

    @property
    def key(self) -> Key:
        return connection_key(self.tenant, self.workflow, self.id)

    def shown(self) -> DocumentConnection:
        """Return it as callers see it."""
        return DocumentConnection(
            id=self.id,
            tenant=self.tenant,
            workflow=self.workflow,
            connected_at=utc_datetime(self.connected_ms),
            expires_at=utc_datetime(self.expires_ms),
            data=self.data,
        )


def connection_write(connection: StoredConnection) -> Put:
    """Return the write that stores a connection, in place of one with the same id."""
    return Put(
        {
            "PK": connection.key.pk,
            "SK": connection.key.sk,
            "connected_ms": connection.connected_ms,
            "expires_ms": connection.expires_ms,
            "ttl": -(-connection.expires_ms // 1000),
            "data": item_value(connection.data),
        }
    )


def connection_of(item: Mapping[str, Any]) -> StoredConnection:
    """Return the connection in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, workflow = item["PK"].split("#")
        return StoredConnection(
            tenant=tenant,
            workflow=workflow,
            id=item["SK"],
            connected_ms=typed_attribute(item, "connected_ms", int),
            expires_ms=typed_attribute(item, "expires_ms", int),
            data=msgspec.convert(json_value(item["data"]), dict[str, Any]),
        )
    except (*DECODE_ERRORS, msgspec.ValidationError) as error:
        raise damaged_item_error(item, "the connection", error) from error
