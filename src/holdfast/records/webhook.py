"""The item of a webhook: a tenant's subscription to events of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.webhook import Webhook, WebhookEvent
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.times import utc_datetime
from holdfast.storage import Delete, Key, Present, Put, Update

__all__ = [
    "Subscription",
    "add_webhook_write",
    "disable_webhook_write",
    "remove_webhook_write",
    "subscription_of",
    "webhook_key",
    "webhooks_partition",
]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is stored."""

    id: str
    tenant: str
    url: str
    events: tuple[WebhookEvent, ...]
    secret: str
    created_ms: int
    graph: str | None = None
    disabled_ms: int | None = None

    def __repr__(self) -> str:
        # Errors and logs may show it, but must not show the secret.
        return f"Subscription(id={self.id!r}, tenant={self.tenant!r})"

    @property
    def is_active(self) -> bool:
        """Whether messages are sent to it."""
        return self.disabled_ms is None

    def covers(self, graph: str) -> bool:
        """Return whether it wants events of runs of a graph."""
        return self.is_active and self.graph in (None, graph)

    def shown(self) -> Webhook:
        """Return it as callers see it, without the secret."""
        return Webhook(
            id=self.id,
            tenant=self.tenant,
            url=self.url,
            events=self.events,
            graph=self.graph,
            created_at=utc_datetime(self.created_ms),
            disabled_at=None if self.disabled_ms is None else utc_datetime(self.disabled_ms),
        )


def webhooks_partition(tenant: str) -> str:
    """Return the partition of a tenant's webhooks."""
    return f"WEBHOOKS#{tenant}"


def webhook_key(tenant: str, id: str) -> Key:
    """Return the key of a webhook."""
    return Key(webhooks_partition(tenant), id)


def add_webhook_write(added: Subscription, *, token: str) -> Put:
    """Return the write that adds a webhook."""
    item: dict[str, Any] = {
        "PK": webhooks_partition(added.tenant),
        "SK": added.id,
        "url": added.url,
        "events": list(added.events),
        "secret": added.secret,
        "created_ms": added.created_ms,
    }
    if added.graph is not None:
        item["graph"] = added.graph
    return Put(item, None, token)


def disable_webhook_write(tenant: str, id: str, *, now_ms: int, token: str) -> Update:
    """Return the write that stops deliveries to a webhook, unless it was removed."""
    return Update(
        key=webhook_key(tenant, id),
        set_if_absent={"disabled_ms": now_ms},
        condition=Present("PK"),
        token=token,
    )


def remove_webhook_write(tenant: str, id: str) -> Delete:
    """Return the write that removes a webhook; it fails if there is none."""
    return Delete(webhook_key(tenant, id), Present("PK"))


def subscription_of(item: Mapping[str, Any]) -> Subscription:
    """Return the webhook in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        return Subscription(
            id=item["SK"],
            tenant=item["PK"].split("#")[1],
            url=typed_attribute(item, "url", str),
            events=msgspec.convert(item["events"], tuple[WebhookEvent, ...]),
            secret=typed_attribute(item, "secret", str),
            created_ms=typed_attribute(item, "created_ms", int),
            graph=msgspec.convert(item.get("graph"), str | None),
            disabled_ms=msgspec.convert(item.get("disabled_ms"), int | None),
        )
    except DECODE_ERRORS as error:
        # Without the cause: it may show the secret.
        raise damaged_item_error(item, "the webhook", type(error)()) from None
