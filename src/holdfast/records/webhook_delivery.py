"""The item that follows one run for one webhook: what was delivered, and when to look again.

It is in the partition of its run. It is in ``GSI1`` while it is due at some time, and in ``GSI2``
when there was something to deliver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.webhook import DeliveryState, WebhookDelivery
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error
from holdfast.records.index_keys import shard_of
from holdfast.records.keys import RunKey, parsed_int
from holdfast.records.times import utc_datetime
from holdfast.storage import Delete, Equals, Key, Prefix, Put
from holdfast.storage.layout import TOKEN

__all__ = [
    "DELIVERY_SHARDS",
    "TEST_GENERATION",
    "Delivery",
    "create_delivery_write",
    "deliveries_partition",
    "deliveries_range",
    "delivery_key_of",
    "delivery_of",
    "delivery_write",
    "drop_delivery_write",
    "due_partition",
]

DELIVERY_SHARDS = 4
TEST_GENERATION = "test"
"""Stands for the generation in an item that follows no run, but tests a webhook."""
_KEPT_SECONDS = 7 * 24 * 3600


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of the messages about one run to one webhook."""

    tenant: str
    run: str
    generation: str
    webhook: str
    created_ms: int
    updated_ms: int
    due_ms: int | None = None
    """When to look at the run again; None if it needs no look."""
    leased_ms: int = 0
    """Until when one process delivers, and others must not."""
    started: bool = False
    """Whether the message that the run started was delivered, or is not wanted."""
    seen: str = ""
    """The state of the run that was delivered last."""
    looks: int = 0
    """How often nothing was new since the last message."""
    event: str = ""
    """The event of the last message."""
    message: str = ""
    """The id of the last message. Attempts are counted for each message."""
    state: DeliveryState = "pending"
    attempts: int = 0
    failing_ms: int = 0
    """Since when the message is tried in vain."""
    error: str = ""

    @property
    def key(self) -> RunKey:
        """The run that it follows."""
        return RunKey(self.tenant, self.run)

    @property
    def item_key(self) -> Key:
        """The key of the item."""
        return Key(self.key.pk, f"HOOK#{self.generation}#{self.webhook}")

    @property
    def is_test(self) -> bool:
        """Whether it follows no run, but tests the webhook."""
        return self.generation == TEST_GENERATION

    def shown(self) -> WebhookDelivery:
        """Return it as callers see it."""
        return WebhookDelivery(
            webhook=self.webhook,
            run=self.run,
            event=self.event,
            state=self.state,
            attempts=self.attempts,
            error=self.error or None,
            updated_at=utc_datetime(self.updated_ms),
            next_at=None if self.due_ms is None else utc_datetime(self.due_ms),
        )


def due_partition(shard: int) -> str:
    """Return one of the partitions of the items to look at, in ``GSI1``."""
    return f"HOOKS#{shard:02d}"


def deliveries_partition(tenant: str, webhook: str) -> str:
    """Return the partition of the deliveries to a webhook, in ``GSI2``."""
    return f"HOOKED#{tenant}#{webhook}"


def deliveries_range(generation: str) -> Prefix:
    """Return the range of the items that follow one run."""
    return Prefix(f"HOOK#{generation}#")


def delivery_key_of(entry: Mapping[str, Any]) -> Key:
    """Return the key of the item of an index entry.

    Raises:
        ValueError: the entry is not one of a delivery.
    """
    due_ms, tenant, run, generation, webhook = str(entry["GSI1SK"]).split("#")
    parsed_int(due_ms)
    return Key(RunKey(tenant, run).pk, f"HOOK#{generation}#{webhook}")


def create_delivery_write(made: Delivery, *, run_ttl: int, token: str) -> Put:
    """Return the write of a new item."""
    return Put(_item(made, run_ttl), None, token)


def delivery_write(changed: Delivery, read: Mapping[str, Any], *, run_ttl: int, token: str) -> Put:
    """Return the write of a changed item. It fails if the item is not what was read.

    The item never gets an earlier ``ttl``: it must outlive the run, which may pause for weeks.
    """
    item = _item(changed, run_ttl)
    item["ttl"] = max(item["ttl"], read.get("ttl", 0))
    return Put(item, Equals(TOKEN, read[TOKEN]), token)


def drop_delivery_write(read: Mapping[str, Any]) -> Delete:
    """Return the write that deletes an item. It fails if the item is not what was read."""
    return Delete(Key(read["PK"], read["SK"]), Equals(TOKEN, read[TOKEN]))


def delivery_of(item: Mapping[str, Any]) -> Delivery:
    """Return what an item, or its entry in ``GSI2``, says.

    Raises:
        JournalDamaged: it cannot be read.
    """
    try:
        return msgspec.convert(item["show"], Delivery)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the delivery of a webhook", error) from None


def _item(delivery: Delivery, run_ttl: int) -> dict[str, Any]:
    key = delivery.item_key
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "show": msgspec.to_builtins(delivery),
        "ttl": max(run_ttl, delivery.updated_ms // 1000) + _KEPT_SECONDS,
    }
    if delivery.due_ms is not None:
        tail = f"{delivery.tenant}#{delivery.run}#{delivery.generation}#{delivery.webhook}"
        item["GSI1PK"] = due_partition(shard_of(delivery.run, DELIVERY_SHARDS))
        item["GSI1SK"] = f"{delivery.due_ms:013d}#{tail}"
    if delivery.event:
        item["GSI2PK"] = deliveries_partition(delivery.tenant, delivery.webhook)
        item["GSI2SK"] = f"{delivery.updated_ms:013d}#{delivery.run}#{delivery.generation}"
    return item
