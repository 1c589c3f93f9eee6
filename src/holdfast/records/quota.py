"""A quota's item: how much of it is used, changed by comparing it with what was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.level import Level, lasts_until_us
from holdfast.model.quota import Quota
from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.keys import quota_key
from holdfast.records.names import admit_name, admit_tenant
from holdfast.storage import Absent, Equals, Key, Put
from holdfast.storage.layout import TOKEN

__all__ = ["changed", "key_of", "level_of"]

# Longer than clocks differ: a quota is forgotten only when nobody's clock says that it is used.
_KEPT_SECONDS = 24 * 3600
# Its permits are in it, of which there are at most 1,000.
_LEVEL_BYTES_MAX = 1024 * 1024


def key_of(quota: Quota, tenant: str) -> Key:
    """Return where a quota stands: one for each tenant, or one for all of them.

    Raises:
        InvalidName: the quota's or the tenant's name cannot stand in a key.
    """
    owner = admit_tenant(tenant)
    return quota_key(owner if quota.per_tenant else "", admit_name(quota.name, "a quota's name"))


def changed(
    key: Key, level: Level, quota: Quota, *, standing: Mapping[str, Any] | None, token: str
) -> Put:
    """Return the write of a level, unless somebody wrote another one since ``standing`` was read.

    The token of a write is made once: an item that was forgotten and made anew is another one.
    """
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "level": pack(level),
        "ttl": lasts_until_us(level, quota) // 1_000_000 + _KEPT_SECONDS,
    }
    condition = Absent("PK") if standing is None else Equals(TOKEN, standing[TOKEN])
    return Put(item, condition, token)


def level_of(item: Mapping[str, Any] | None) -> Level:
    """Return the level that an item holds; where there is none, nothing is used.

    Raises:
        JournalDamaged: it cannot be read; a newer release may have written it.
    """
    if item is None:
        return Level()
    try:
        return msgspec.convert(
            unpack_value(attribute(item, "level", bytes), _LEVEL_BYTES_MAX), Level
        )
    except DAMAGE as error:
        raise damaged(item, "the quota", error) from error
