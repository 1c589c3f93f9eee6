"""The webhooks that a server calls when runs change."""

from __future__ import annotations

import builtins
from typing import Any

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import objects_of
from holdfast.model.names import validated_name

__all__ = ["RemoteWebhooks"]


class RemoteWebhooks:
    """Makes, lists and deletes webhooks. Every answer is as the server's JSON has it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(self, **given: Any) -> dict[str, Any]:
        """Make a webhook, and return it with its secret, which is shown this once.

        The arguments are the members of the body of ``POST /v1/webhooks``, such as ``url`` and
        ``events``.
        """
        return await self._connection.call("webhooks_create", body=given)

    async def list(self) -> builtins.list[dict[str, Any]]:
        """Return the webhooks, without their secrets."""
        return objects_of(await self._connection.call("webhooks_list"), "webhooks")

    async def get(self, id: str) -> dict[str, Any]:
        """Return a webhook, without its secret."""
        return await self._connection.call("webhooks_get", names={"id": validated_name(id, "id")})

    async def delete(self, id: str) -> None:
        """Delete a webhook. Deliveries that have not begun are dropped."""
        await self._connection.call("webhooks_delete", names={"id": validated_name(id, "id")})

    async def test(self, id: str) -> dict[str, Any]:
        """Send a test message to a webhook, and return what came of it."""
        return await self._connection.call("webhooks_test", names={"id": validated_name(id, "id")})

    async def deliveries(self, id: str) -> builtins.list[dict[str, Any]]:
        """Return the latest deliveries of a webhook."""
        names = {"id": validated_name(id, "id")}
        shown = await self._connection.call("webhooks_deliveries", names=names)
        return objects_of(shown, "deliveries")
