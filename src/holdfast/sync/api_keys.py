# Generated from src/holdfast/access/api_keys.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `ApiKeys`; the async one is `holdfast.access.api_keys.ApiKeys`."""

from __future__ import annotations

import builtins

from holdfast.access.api_keys import ApiKeys as AsyncApiKeys
from holdfast.model.api_key import ApiKey, KeyRole, NewKey
from holdfast.model.durations import Duration
from holdfast.portal import Portal

__all__ = ["ApiKeys"]


class ApiKeys:
    """The API keys of a store, which servers accept."""

    def __init__(self, portal: Portal, keys: AsyncApiKeys) -> None:
        self._portal = portal
        self._keys = keys

    def create(
        self, name: str, *, tenant: str, role: KeyRole, expires: Duration | None = None
    ) -> NewKey:
        """Create a key. Its secret is in the result only: the store does not have it.

        The key acts on the runs of ``tenant``, or of every tenant if that is ``*``. It is valid for
        the duration ``expires``, or until it is revoked.

        Raises:
            InvalidName: an invalid name or tenant.
            InvalidRequest: an unknown role, or ``expires`` is not a positive duration.
        """
        return self._portal.call(self._keys.create, name, tenant=tenant, role=role, expires=expires)

    def list(self, tenant: str | None = None) -> builtins.list[ApiKey]:
        """Return the keys of a tenant, or of all tenants; those for every tenant have ``*``.

        A new key may appear a moment later. Expired keys are listed for 30 days.

        Raises:
            InvalidName: an invalid tenant.
        """
        return self._portal.call(self._keys.list, tenant)

    def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a key. Every server refuses it at the latest 5 seconds later.

        With a ``tenant`` it must be a key of that tenant.

        Raises:
            KeyNotFound: there is no such key, or it is a key of another tenant.
            InvalidName: an invalid id or tenant.
        """
        self._portal.call(self._keys.revoke, id, tenant=tenant)

    def get(self, id: str) -> ApiKey:
        """Return a key, which may have expired.

        Raises:
            KeyNotFound: there is no such key, or it was revoked.
            InvalidName: an invalid id.
        """
        return self._portal.call(self._keys.get, id)

    def verify(self, text: str) -> ApiKey:
        """Return the key of this text, if it is valid now.

        Text that cannot be a key is refused without a read.

        Raises:
            Unauthenticated: it is not the text of a key, or the key was revoked or has expired.
        """
        return self._portal.call(self._keys.verify, text)
