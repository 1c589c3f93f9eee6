"""Routes that show quotas."""

from __future__ import annotations

from holdfast.model.service import QuotaPage
from holdfast.server.caller import RequesterOf
from holdfast.server.parameters import Cursor, Limit, paged
from holdfast.server.routing import route

__all__ = ["QUOTAS"]


@route("GET", "/v1/quotas", role="viewer", tag="quotas", etag=True)
async def list_quotas(
    requester: RequesterOf, limit: Limit = 100, cursor: Cursor = None
) -> QuotaPage:
    """List the quotas of this server, with their limits and how much of them is used."""
    found = await requester.hf.quota_levels.list(requester.tenant)
    return QuotaPage(*paged(found, lambda quota: quota.name, limit=limit, cursor=cursor))


QUOTAS = (list_quotas,)
