"""A quota's item: how much of it is used, changed by comparing it with what was read."""

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

# Longer than clocks differ: a quota is forgotten only when nobody's clock says that it is used.
_KEPT_SECONDS = 24 * 3600
# Its permits are in it, of which there are at most 1,000.
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
    """Return the write of a level, unless somebody wrote another one since ``standing`` was read.

    The token of a write is made once: an item that was forgotten and made anew is another one.
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
    """Return the level that an item holds; where there is none, nothing is used.

    Raises:
        JournalDamaged: it cannot be read; a newer release may have written it.
    """
    if item is None:
        return QuotaLevel()
    try:
        return msgspec.convert(
            unpack_value(typed_attribute(item, "level", bytes), _LEVEL_BYTES_MAX), QuotaLevel
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the quota", error) from error
