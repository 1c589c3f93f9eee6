# Generated from src/holdfast/client/keys.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteKeys`; the async one is `holdfast.client.keys.RemoteKeys`."""

from __future__ import annotations

import builtins

from holdfast.client.keys import RemoteKeys as AsyncRemoteKeys
from holdfast.model.api_key import ApiKey, KeyRole, NewKey
from holdfast.model.durations import Duration
from holdfast.portal import Portal

__all__ = ["RemoteKeys"]


class RemoteKeys:
    """The API keys that a server accepts. Every call needs the role admin."""

    def __init__(self, portal: Portal, keys: AsyncRemoteKeys) -> None:
        self._portal = portal
        self._keys = keys

    def create(
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
        return self._portal.call(self._keys.create, name, tenant=tenant, role=role, expires=expires)

    def list(self, tenant: str | None = None) -> builtins.list[ApiKey]:
        """Return the keys of a tenant, or of all tenants that the credentials are for.

        Those for every tenant have ``*``. A new key may appear a moment later. Expired keys are
        listed for 30 days.

        Raises:
            InvalidName: an invalid tenant.
            Forbidden: the credentials are for another tenant.
        """
        return self._portal.call(self._keys.list, tenant)

    def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a key. Every server refuses it at the latest 5 seconds later.

        With a ``tenant``, or that of the client, it must be a key of that tenant.

        Raises:
            KeyNotFound: there is no such key, or it was revoked by a request that had no answer.
            InvalidName: an invalid id or tenant.
        """
        self._portal.call(self._keys.revoke, id, tenant=tenant)
