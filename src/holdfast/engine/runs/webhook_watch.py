"""Lets webhooks follow a run from its start: an item for each of them is written before the row."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import JournalDamaged
from holdfast.records.head import Head
from holdfast.records.webhook import Subscription, subscription_of, webhooks_partition
from holdfast.records.webhook_delivery import Delivery, create_delivery_write

__all__ = ["list_subscriptions", "watch_run"]

# How old the list may be by which a start decides which webhooks follow the run.
_LIST_SECONDS_OLD_MAX = 5.0
_FIRST_LOOK_MS = 1_000


async def watch_run(kernel: Kernel, head: Head) -> None:
    """Let the webhooks of its tenant follow a run whose row is about to be written.

    A store without webhooks is not asked. An item without a run is deleted when it is looked at, so
    this may be repeated and given up.
    """
    if not kernel.has_webhooks:
        return
    for webhook in await list_subscriptions(kernel, head.key.tenant):
        if webhook.covers(head.graph):
            now_ms = kernel.clock.now_ms()
            made = Delivery(
                tenant=head.key.tenant,
                run=head.key.id,
                generation=head.generation,
                webhook=webhook.id,
                created_ms=now_ms,
                updated_ms=now_ms,
                due_ms=max(now_ms, head.starts_ms) + _FIRST_LOOK_MS,
                started="run.started" not in webhook.events,
            )
            write = create_delivery_write(made, run_ttl=head.ttl, token=kernel.ids.new())
            await kernel.resolve_write(kernel.webhook_items, write)


async def list_subscriptions(
    kernel: Kernel, tenant: str, *, seconds_old_max: float = _LIST_SECONDS_OLD_MAX
) -> tuple[Subscription, ...]:
    """Return the webhooks of a tenant. The list may be up to ``seconds_old_max`` old."""
    now = kernel.clock.monotonic()
    known = kernel.webhooks.get(tenant, now=now, seconds_old_max=seconds_old_max)
    if known is not None:
        return known
    found: list[Subscription] = []
    async for item in kernel.webhook_items.query_all(webhooks_partition(tenant)):
        try:
            found.append(subscription_of(item))
        except JournalDamaged as error:  # the others go on
            kernel.note_damage(item, error)
    kernel.webhooks.keep(tenant, tuple(found), now=now)
    return tuple(found)
