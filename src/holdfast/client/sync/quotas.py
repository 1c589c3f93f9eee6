# Generated from src/holdfast/client/quotas.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteQuotaLevels`; the async one is `holdfast.client.quotas.RemoteQuotaLevels`."""

from __future__ import annotations

import builtins

from holdfast.client.quotas import RemoteQuotaLevels as AsyncRemoteQuotaLevels
from holdfast.model.service import QuotaUsage
from holdfast.portal import Portal

__all__ = ["RemoteQuotaLevels"]


class RemoteQuotaLevels:
    """The quotas of the server's process, and how much all processes use of them."""

    def __init__(self, portal: Portal, quotas: AsyncRemoteQuotaLevels) -> None:
        self._portal = portal
        self._quotas = quotas

    def list(self, tenant: str | None = None) -> builtins.list[QuotaUsage]:
        """Return the quotas by name, with what counts for a tenant now.

        Raises:
            InvalidName: the tenant has an invalid name.
        """
        return self._portal.call(self._quotas.list, tenant)
