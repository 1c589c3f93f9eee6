"""The API keys of a server."""

from __future__ import annotations

import builtins
from typing import Any

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import objects_of
from holdfast.model.names import validated_name

__all__ = ["RemoteKeys"]


class RemoteKeys:
    """Makes, lists and revokes API keys. Every answer is as the server's JSON has it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(self, **given: Any) -> dict[str, Any]:
        """Make a key, and return it with its secret, which is shown this once.

        The arguments are the members of the body of ``POST /v1/keys``, such as ``name``, ``role``,
        ``tenant`` and ``expires``.
        """
        return await self._connection.call("keys_create", body=given)

    async def list(self) -> builtins.list[dict[str, Any]]:
        """Return the keys, without their secrets."""
        return objects_of(await self._connection.call("keys_list"), "keys")

    async def revoke(self, id: str) -> None:
        """Revoke a key. Every server refuses it within five seconds."""
        await self._connection.call("keys_revoke", names={"id": validated_name(id, "id")})
