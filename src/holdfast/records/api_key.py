"""The item of an API key: whom it stands for, and a hash of its secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.api_key import ApiKey, KeyRole
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.index_keys import API_KEYS
from holdfast.records.keys import api_key_key
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, Delete, Prefix, Present, Put, Update

__all__ = [
    "StoredKey",
    "create_key_write",
    "keys_of_tenant",
    "revoke_key_write",
    "stored_key_of",
    "use_key_write",
]

# An expired key stays in the lists for a while, so that an operator sees why it is refused.
_KEPT_SECONDS = 30 * 24 * 3600


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the item of a key says."""

    id: str
    name: str
    tenant: str
    role: KeyRole
    digest: bytes
    """The SHA-256 of the secret. The secret is random, so that a slow hash would add nothing."""
    created_ms: int
    expires_ms: int | None = None
    used_ms: int | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the key is no longer valid at a time."""
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def shown(self) -> ApiKey:
        """Return the key as callers see it."""
        return ApiKey(
            id=self.id,
            name=self.name,
            tenant=self.tenant,
            role=self.role,
            created_at=utc_datetime(self.created_ms),
            expires_at=None if self.expires_ms is None else utc_datetime(self.expires_ms),
            last_used_at=None if self.used_ms is None else utc_datetime(self.used_ms),
        )


def create_key_write(key: StoredKey, *, token: str) -> Put:
    """Return the write of a new key. It fails if the id is taken."""
    place = api_key_key(key.id)
    item: dict[str, Any] = {
        "PK": place.pk,
        "SK": place.sk,
        "GSI1PK": API_KEYS,
        "GSI1SK": f"{key.tenant}#{key.created_ms:013d}#{key.id}",
        "name": key.name,
        "tenant": key.tenant,
        "role": key.role,
        "digest": key.digest,
        "created_ms": key.created_ms,
    }
    if key.expires_ms is not None:
        item["expires_ms"] = key.expires_ms
        item["ttl"] = -(-key.expires_ms // 1000) + _KEPT_SECONDS
    return Put(item, Absent("PK"), token)


def use_key_write(id: str, *, now_ms: int) -> Update:
    """Return the write that notes a use of a key. It never brings a revoked key back."""
    return Update(key=api_key_key(id), set={"used_ms": now_ms}, condition=Present("PK"))


def revoke_key_write(id: str) -> Delete:
    """Return the write that deletes a key."""
    return Delete(api_key_key(id))


def keys_of_tenant(tenant: str) -> Prefix:
    """Return the range of a tenant's keys in the index, the oldest first."""
    return Prefix(f"{tenant}#")


def stored_key_of(item: Mapping[str, Any]) -> StoredKey:
    """Return the key in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        return msgspec.convert(
            {
                "id": item["PK"].partition("#")[2],
                "name": item["name"],
                "tenant": item["tenant"],
                "role": item["role"],
                "digest": typed_attribute(item, "digest", bytes),
                "created_ms": item["created_ms"],
                "expires_ms": item.get("expires_ms"),
                "used_ms": item.get("used_ms"),
            },
            StoredKey,
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "an API key", error) from error
