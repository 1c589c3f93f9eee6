"""The keys that sign tokens. One item has all of them; the newest one signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import SIGNING
from holdfast.storage import Absent, Equals, Put
from holdfast.storage.layout import TOKEN

__all__ = [
    "TOKEN_LIFETIME_MS_MAX",
    "SigningKey",
    "find_signing_key",
    "new_signing_key",
    "rotated_keys",
    "signing_keys_of",
    "signing_keys_write",
]

_DAY_MS = 24 * 3600 * 1000
TOKEN_LIFETIME_MS_MAX = 366 * _DAY_MS
"""No token lives longer. So a replaced key can be dropped this long after its last signature."""
# Longer than a process may sign with a key that another process has replaced.
_LATE_SIGNATURES_MS = _DAY_MS
_KEYS_MAX = 100
_ID_CHARS = 12


class SigningKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that signs tokens, or that has signed some which are still valid."""

    id: str
    secret: bytes
    created_ms: int
    drops_ms: int | None = None
    """When everything that it signed has expired; None for the key that signs."""

    def __repr__(self) -> str:
        # Errors and logs may show a key, but must not show its secret.
        return f"SigningKey(id={self.id!r}, created_ms={self.created_ms})"


def new_signing_key(id: str, secret: bytes, *, now_ms: int) -> SigningKey:
    """Return a new key; its id is the end of a new UUID."""
    return SigningKey(id.replace("-", "")[-_ID_CHARS:], secret, now_ms)


def rotated_keys(
    keys: tuple[SigningKey, ...], new: SigningKey, *, now_ms: int, revoke: bool
) -> tuple[SigningKey, ...]:
    """Return the keys after a rotation: the new one signs, and old ones verify.

    With ``revoke`` the old ones are dropped, and with them everything that they signed.

    Raises:
        InvalidRequest: so many old keys are still needed that there is no room for another one.
    """
    if revoke:
        return (new,)
    drops_ms = now_ms + TOKEN_LIFETIME_MS_MAX + _LATE_SIGNATURES_MS
    kept = [
        key if key.drops_ms is not None else msgspec.structs.replace(key, drops_ms=drops_ms)
        for key in keys
        if key.drops_ms is None or key.drops_ms > now_ms
    ]
    if len(kept) >= _KEYS_MAX:
        raise InvalidRequest(
            f"{len(kept)} signing keys are still needed, and {_KEYS_MAX} is the limit: rotate them "
            "later, or with revoke=True"
        )
    return (new, *kept)


def find_signing_key(keys: tuple[SigningKey, ...], id: str, *, now_ms: int) -> SigningKey | None:
    """Return the key with this id, if it may still verify tokens."""
    for key in keys:
        if key.id == id and (key.drops_ms is None or now_ms < key.drops_ms):
            return key
    return None


def signing_keys_write(
    keys: tuple[SigningKey, ...], *, item_read: Mapping[str, Any] | None, token: str
) -> Put:
    """Return the write of all keys. It fails if the item changed since ``item_read`` was read."""
    item: dict[str, Any] = {"PK": SIGNING.pk, "SK": SIGNING.sk, "keys": pack(keys)}
    condition = Absent("PK") if item_read is None else Equals(TOKEN, item_read[TOKEN])
    return Put(item, condition, token)


def signing_keys_of(item: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """Return the keys in an item, the one that signs first.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        keys = msgspec.convert(
            unpack_value(typed_attribute(item, "keys", bytes)), tuple[SigningKey, ...]
        )
        if not keys or keys[0].drops_ms is not None:
            raise ValueError("no key signs")
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the signing keys", error) from None
    return keys
