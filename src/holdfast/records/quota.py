"""The item of a quota, which stores its level. Writes compare it with the item that was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.names import validated_tenant
from holdfast.model.quota import Quota
from holdfast.model.quota_level import QuotaLevel, resets_at_us
from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import quota_key
from holdfast.storage import Absent, Equals, Key, Put
from holdfast.storage.layout import TOKEN

__all__ = ["level_of", "level_write", "quota_item_key"]

# Longer than clocks differ: the item is deleted only when the quota is unused by every clock.
_KEPT_SECONDS = 24 * 3600
# The item has at most 1,000 permits.
_LEVEL_BYTES_MAX = 1024 * 1024


def quota_item_key(quota: Quota, tenant: str) -> Key:
    """Return the key of a quota's item: one for each tenant, or one for all of them.

    Raises:
        InvalidName: the tenant has an invalid name.
    """
    owner = validated_tenant(tenant)
    return quota_key(owner if quota.per_tenant else "", quota.name)


def level_write(
    key: Key, level: QuotaLevel, quota: Quota, *, item_read: Mapping[str, Any] | None, token: str
) -> Put:
    """Return the write of a level. It fails if the item changed since ``item_read`` was read.

    Tokens are unique, so an item that was deleted and created again counts as changed.
    """
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "level": pack(level),
        "ttl": resets_at_us(level, quota) // 1_000_000 + _KEPT_SECONDS,
    }
    condition = Absent("PK") if item_read is None else Equals(TOKEN, item_read[TOKEN])
    return Put(item, condition, token)


def level_of(item: Mapping[str, Any] | None) -> QuotaLevel:
    """Return the level in an item; an unused level if there is no item.

    Raises:
        JournalDamaged: the item cannot be read. A newer release may have written it.
    """
    if item is None:
        return QuotaLevel()
    try:
        return msgspec.convert(
            unpack_value(typed_attribute(item, "level", bytes), _LEVEL_BYTES_MAX), QuotaLevel
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the quota", error) from error
