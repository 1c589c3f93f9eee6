"""Reads how much of the quotas of this process is used."""

from __future__ import annotations

from holdfast.engine.effects.quotas import LEASE_SECONDS
from holdfast.engine.effects.resources import Resources
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.names import validated_tenant
from holdfast.model.quota import Quota
from holdfast.model.quota_level import QuotaLevel, current_level, unpaced_us
from holdfast.model.service import QuotaUsage
from holdfast.model.spending import Spending
from holdfast.records.quota import level_of, quota_item_key

__all__ = ["QuotaLevels"]


class QuotaLevels:
    """The quotas of this process, and how much all processes use of them."""

    def __init__(self, kernel: Kernel, resources: Resources) -> None:
        self._kernel = kernel
        self._resources = resources

    async def list(self, tenant: str) -> list[QuotaUsage]:
        """Return the quotas by name, with what counts for a tenant now.

        Raises:
            InvalidName: the tenant has an invalid name.
            JournalDamaged: the item of a quota cannot be read.
        """
        tenant = validated_tenant(tenant)
        models: dict[Quota, list[str]] = {}
        for model, quota in self._resources.quotas.items():
            models.setdefault(quota, []).append(model)
        quotas = sorted(models, key=lambda quota: quota.name)
        keys = [quota_item_key(quota, tenant) for quota in quotas]
        # Two quotas may declare one name with different limits: they share one item.
        items = dict.fromkeys(keys)
        if keys:
            table = self._kernel.lists
            read = await table.get_many(list(items), eventual=True)
            items = dict(zip(items, read, strict=True))
        now_us = self._kernel.clock.now_ms() * 1000
        return [
            _usage_of(quota, sorted(models[quota]), level_of(items[key]), now_us)
            for quota, key in zip(quotas, keys, strict=True)
        ]


def _usage_of(quota: Quota, models: list[str], level: QuotaLevel, now_us: int) -> QuotaUsage:
    level = current_level(level, quota, now_us, round(LEASE_SECONDS * 1000))
    spent = sum((Spending(one.tokens, one.nanodollars) for one in level.spent), Spending())
    return QuotaUsage(
        name=quota.name,
        models=models,
        per_ms=quota.window_us // 1000,
        per_tenant=quota.per_tenant,
        requests=quota.requests,
        tokens=quota.tokens,
        usd=None if quota.usd is None else float(quota.usd),
        concurrency=quota.concurrency,
        tokens_used=spent.tokens,
        usd_used=spent.usd,
        concurrent=len(level.permits),
        next_ms=_ms_until(level.tat_us - unpaced_us(quota), now_us),
        queue_ms=_ms_until(level.queue_end_us, now_us),
    )


def _ms_until(at_us: int, now_us: int) -> int:
    return max(0, at_us - now_us) // 1000
