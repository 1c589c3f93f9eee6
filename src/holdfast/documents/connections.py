"""Stores which connections follow a workflow, such as WebSockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.documents.loading import DocumentStore
from holdfast.errors import InvalidRequest, JournalDamaged
from holdfast.model.document import DocumentConnection
from holdfast.model.names import validated_name
from holdfast.records.document import has_expired
from holdfast.records.document_connection import (
    StoredConnection,
    connection_of,
    connection_write,
)
from holdfast.records.document_keys import connection_key, connections_partition
from holdfast.storage import Delete

__all__ = ["DocumentConnections"]

_DATA_BYTES_MAX = 2_048
_TTL_MS_MAX = 7 * 24 * 3600 * 1000


class DocumentConnections:
    """The connections that follow workflows. Each ends by itself."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def add(
        self, tenant: str, workflow: object, id: object, *, data: object, ttl_ms: int
    ) -> DocumentConnection:
        """Store a connection, in place of one with the same id.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            InvalidRequest: the data is not a small dict, or the time is too long.
        """
        store, name = self._store, validated_name(id, "connection_id")
        if ttl_ms > _TTL_MS_MAX:
            raise InvalidRequest("ttl must be at most 7 days", field="ttl")
        values = _validated_data(data)
        steps = await store.read_steps(tenant, workflow)
        now_ms = store.now_ms
        connection = StoredConnection(
            tenant=tenant,
            workflow=steps.workflow,
            id=name,
            connected_ms=now_ms,
            expires_ms=now_ms + ttl_ms,
            data=values,
        )
        await store.kernel.resolve_write(store.items, connection_write(connection))
        return connection.shown()

    async def remove(self, tenant: str, workflow: object, id: object) -> None:
        """Remove a connection; do nothing where there is none."""
        store = self._store
        key = connection_key(
            tenant, validated_name(workflow, "workflow"), validated_name(id, "connection_id")
        )
        await store.kernel.resolve_write(store.items, Delete(key))

    async def all(self, tenant: str, workflow: object) -> list[DocumentConnection]:
        """Return the connections that follow a workflow and have not expired."""
        store = self._store
        partition = connections_partition(tenant, validated_name(workflow, "workflow"))
        found: list[DocumentConnection] = []
        async for item in store.items.query_all(partition):
            if has_expired(item, store.now_ms):
                continue
            try:
                found.append(connection_of(item).shown())
            except JournalDamaged as error:
                store.kernel.note_damage(item, error)
        return found


def _validated_data(data: object) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        if isinstance(data, Mapping):
            encoded = msgspec.json.encode(cast(Any, data))
            if len(encoded) <= _DATA_BYTES_MAX:
                return msgspec.json.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass
    raise InvalidRequest(
        f"data must be a dict of JSON values with at most {_DATA_BYTES_MAX:,} bytes, got "
        f"{data!r:.80}",
        field="data",
    )
