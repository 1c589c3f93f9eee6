"""What everybody who uses a store must agree on; the first one to come decides it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256, sha512
from typing import Any

import msgspec

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import SETTINGS
from holdfast.storage import Absent, Equals, Put, Update

__all__ = [
    "SHARDS",
    "SHARDS_MAX",
    "Settings",
    "UserHash",
    "bound_to_tenant",
    "create_settings_write",
    "grow_shards_write",
    "is_bound_to_tenant",
    "settings_of",
    "user_hash",
]

SHARDS = 8
"""Into how many shards the due index of a graph is cut at first."""
SHARDS_MAX = 256
"""Every worker reads every shard at each scan."""
LIST_SHARDS = 4
# How a hash begins that is bound to a tenant. Others are those of earlier releases.
_BOUND = "t"
_HASH_CHARS = 32


class Settings(msgspec.Struct, frozen=True):
    """What everybody who uses a store must agree on."""

    shards: int
    """Into how many parts the due index of a graph is cut. It only grows."""
    list_shards: int
    """Into how many parts a tenant's list of runs is cut. It never changes."""
    user_key: bytes
    """The key of the hash under which users are kept."""

    def __repr__(self) -> str:
        # Errors and logs may show settings, but never the key.
        shown = msgspec.structs.asdict(self) | {"user_key": "<hidden>"}
        return f"Settings({', '.join(f'{name}={value}' for name, value in shown.items())})"


class UserHash(msgspec.Struct, frozen=True):
    """What may be kept of a user of one tenant."""

    bound: str
    """The hash that rows keep, and that callers see. The same user has another one in another
    tenant."""
    unbound: str
    """The hash in the names of session queues, and so in the rows of runs that stand in one: the
    same in all tenants. All releases must name a queue alike, or a session would have two. Rows of
    earlier releases have no other."""

    def matches(self, kept: str | None) -> bool:
        """Return whether what a row keeps is this user."""
        return kept in (self.bound, self.unbound)


def create_settings_write(user_key: bytes, *, token: str) -> Put:
    """Return the write that settles it, unless somebody did before."""
    item: dict[str, Any] = {
        "PK": SETTINGS.pk,
        "SK": SETTINGS.sk,
        "shards": SHARDS,
        "list_shards": LIST_SHARDS,
        "user_key": user_key,
    }
    return Put(item, Absent("PK"), token)


def grow_shards_write(settings: Settings, shards: int, *, token: str) -> Update:
    """Return the write that cuts the due index into more parts, unless somebody did meanwhile."""
    return Update(
        key=SETTINGS,
        set={"shards": shards},
        condition=Equals("shards", settings.shards),
        token=token,
    )


def settings_of(item: Mapping[str, Any]) -> Settings:
    """Return what was settled.

    Raises:
        JournalDamaged: the item does not say.
    """
    try:
        settled = Settings(
            typed_attribute(item, "shards", int),
            typed_attribute(item, "list_shards", int),
            typed_attribute(item, "user_key", bytes),
        )
        if not (1 <= settled.shards <= SHARDS_MAX and 1 <= settled.list_shards <= SHARDS_MAX):
            raise ValueError(f"{settled.shards} and {settled.list_shards} shards")
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the settings", error) from error
    return settled


def user_hash(user: str, tenant: str, *, key: bytes) -> UserHash:
    """Return what is kept of a user: the same for the same user, of no use without the key."""
    unbound = hmac.new(key, user.encode(), sha256).hexdigest()[:_HASH_CHARS]
    return UserHash(bound_to_tenant(unbound, tenant, key=key), unbound)


def is_bound_to_tenant(kept: str) -> bool:
    """Return whether a user's hash is bound to a tenant."""
    return kept.startswith(_BOUND)


def bound_to_tenant(kept: str, tenant: str, *, key: bytes) -> str:
    """Return a user's hash bound to the tenant, though the row keeps that of an earlier release."""
    if is_bound_to_tenant(kept):
        return kept
    # No tenant has a "\0" in its name.
    digest = hmac.new(key, f"{tenant}\0{kept}".encode(), sha512).hexdigest()
    return _BOUND + digest[: _HASH_CHARS - len(_BOUND)]
