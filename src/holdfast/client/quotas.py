"""`RemoteQuotaLevels`: how much of the quotas of a server is used."""

from __future__ import annotations

import builtins

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import page_of
from holdfast.model.service import QuotaUsage

__all__ = ["RemoteQuotaLevels"]

_PAGE = 1_000


class RemoteQuotaLevels:
    """The quotas of the server's process, and how much all processes use of them."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def list(self, tenant: str | None = None) -> builtins.list[QuotaUsage]:
        """Return the quotas by name, with what counts for a tenant now.

        Raises:
            InvalidName: the tenant has an invalid name.
        """
        found: builtins.list[QuotaUsage] = []
        cursor: str | None = None
        while True:
            query = {"limit": _PAGE, "cursor": cursor}
            shown = await self._connection.call("quotas", query=query, tenant=tenant)
            page, cursor = page_of(QuotaUsage, shown, "quotas")
            found += page
            if cursor is None:
                return found
