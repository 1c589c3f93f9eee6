"""`RemoteKeys`: creates, lists and revokes the API keys of a server."""

from __future__ import annotations

import builtins

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import page_of, read
from holdfast.engine.runs.argument_checks import positive_ms
from holdfast.model.api_key import ANY_TENANT, ApiKey, KeyRole, NewKey, validated_role
from holdfast.model.durations import Duration
from holdfast.model.names import validated_name, validated_tenant

__all__ = ["RemoteKeys"]


class RemoteKeys:
    """The API keys that a server accepts. Every call needs the role admin."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        *,
        tenant: str | None = None,
        role: KeyRole,
        expires: Duration | None = None,
    ) -> NewKey:
        """Create a key. Its secret is in the result only: the server does not have it.

        The key acts on the runs of ``tenant``, by default the one of the client, or of every tenant
        if that is ``*``. It is valid for the duration ``expires``, or until it is revoked.

        Raises:
            InvalidName: an invalid name or tenant.
            InvalidRequest: an unknown role, or ``expires`` is not a positive duration.
            Forbidden: the credentials are not for this tenant, or not for every tenant.
            ServerUnavailable: the server did not answer in time; the key may exist.
        """
        body = {
            "name": validated_name(name, "name"),
            "role": validated_role(role),
            "expires_seconds": None if expires is None else positive_ms(expires, "expires") / 1000,
            "all_tenants": tenant == ANY_TENANT,
        }
        acting = None if tenant == ANY_TENANT else tenant
        return read(NewKey, await self._connection.call("keys_create", body=body, tenant=acting))

    async def list(self, tenant: str | None = None) -> builtins.list[ApiKey]:
        """Return the keys of a tenant, or of all tenants that the credentials are for.

        Those for every tenant have ``*``. A new key may appear a moment later. Expired keys are
        listed for 30 days.

        Raises:
            InvalidName: an invalid tenant.
            Forbidden: the credentials are for another tenant.
        """
        if tenant is not None:
            validated_tenant(tenant)
        shown = await self._connection.call(
            "keys_list",
            query={"all_tenants": tenant in (None, ANY_TENANT)},
            tenant=None if tenant == ANY_TENANT else tenant,
        )
        keys, _ = page_of(ApiKey, shown, "keys")
        return [each for each in keys if tenant in (None, each.tenant)]

    async def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a key. Every server refuses it at the latest 5 seconds later.

        With a ``tenant``, or that of the client, it must be a key of that tenant.

        Raises:
            KeyNotFound: there is no such key, or it was revoked by a request that had no answer.
            InvalidName: an invalid id or tenant.
        """
        names = {"id": validated_name(id, "id")}
        await self._connection.call("keys_revoke", names=names, tenant=tenant)
