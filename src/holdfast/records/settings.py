"""The settings of a store. The first process that uses the store creates them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256, sha512
from typing import Any

import msgspec

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import SETTINGS
from holdfast.storage import Absent, Equals, Present, Put, Update

__all__ = [
    "SHARDS",
    "SHARDS_MAX",
    "Settings",
    "UserHash",
    "bound_to_tenant",
    "create_settings_write",
    "grow_shards_write",
    "is_bound_to_tenant",
    "note_notifiers_write",
    "note_reviews_write",
    "note_webhooks_write",
    "settings_of",
    "user_hash",
]

SHARDS = 8
"""The number of shards of a due index in a new store."""
SHARDS_MAX = 256
"""The limit on shards: each scan of a worker reads all of them."""
LIST_SHARDS = 4
# The prefix of a hash that is bound to a tenant. Hashes of early releases do not have it.
_BOUND = "t"
_HASH_CHARS = 32


class Settings(msgspec.Struct, frozen=True):
    """The settings that all processes of a store share."""

    shards: int
    """The number of shards of the due index of a graph. It only grows."""
    list_shards: int
    """The number of shards of a tenant's list of runs. It never changes."""
    user_key: bytes
    """The key of the hashes of users."""
    webhooks: bool = False
    """Whether any tenant has had a webhook. Without it, a start does not look for webhooks."""

    reviews: bool = False
    """Whether any run has asked for a review. Without it, no process looks for notices to send."""
    notifiers_ms: int = 0
    """When a process with notifiers last said that it sends notices; 0 if none ever did."""

    def __repr__(self) -> str:
        # Errors and logs may show settings, but must not show the key.
        shown = msgspec.structs.asdict(self) | {"user_key": "<hidden>"}
        return f"Settings({', '.join(f'{name}={value}' for name, value in shown.items())})"


class UserHash(msgspec.Struct, frozen=True):
    """The stored forms of a user of one tenant."""

    bound: str
    """The hash in rows and for callers. It differs between tenants."""
    unbound: str
    """The hash in the keys of session queues and in the rows of runs in one. It is the same in all
    tenants: all releases must use the same key for a queue, or a session would have two. Rows of
    early releases have only this hash."""

    def matches(self, kept: str | None) -> bool:
        """Return whether the hash in a row is that of this user."""
        return kept in (self.bound, self.unbound)


def create_settings_write(user_key: bytes, *, token: str) -> Put:
    """Return the write that creates the settings, unless they exist."""
    item: dict[str, Any] = {
        "PK": SETTINGS.pk,
        "SK": SETTINGS.sk,
        "shards": SHARDS,
        "list_shards": LIST_SHARDS,
        "user_key": user_key,
    }
    return Put(item, Absent("PK"), token)


def grow_shards_write(settings: Settings, shards: int, *, token: str) -> Update:
    """Return the write that adds shards. It fails if another process has changed their number."""
    return Update(
        key=SETTINGS,
        set={"shards": shards},
        condition=Equals("shards", settings.shards),
        token=token,
    )


def note_webhooks_write(*, token: str) -> Update:
    """Return the write that makes every process look for webhooks."""
    return Update(key=SETTINGS, set={"webhooks": True}, condition=Present("PK"), token=token)


def note_reviews_write(*, token: str) -> Update:
    """Return the write that makes every process look for notices of reviews."""
    return Update(key=SETTINGS, set={"reviews": True}, condition=Present("PK"), token=token)


def note_notifiers_write(now_ms: int, *, token: str) -> Update:
    """Return the write that says that a process with notifiers sends notices."""
    return Update(key=SETTINGS, set={"notifiers_ms": now_ms}, condition=Present("PK"), token=token)


def settings_of(item: Mapping[str, Any]) -> Settings:
    """Return the settings in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        settled = Settings(
            typed_attribute(item, "shards", int),
            typed_attribute(item, "list_shards", int),
            typed_attribute(item, "user_key", bytes),
            item.get("webhooks") is True,
            item.get("reviews") is True,
            typed_attribute(item, "notifiers_ms", int) if "notifiers_ms" in item else 0,
        )
        if not (1 <= settled.shards <= SHARDS_MAX and 1 <= settled.list_shards <= SHARDS_MAX):
            raise ValueError(f"{settled.shards} and {settled.list_shards} shards")
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the settings", error) from error
    return settled


def user_hash(user: str, tenant: str, *, key: bytes) -> UserHash:
    """Return the keyed hashes of a user."""
    unbound = hmac.new(key, user.encode(), sha256).hexdigest()[:_HASH_CHARS]
    return UserHash(bound_to_tenant(unbound, tenant, key=key), unbound)


def is_bound_to_tenant(kept: str) -> bool:
    """Return whether a user's hash is bound to a tenant."""
    return kept.startswith(_BOUND)


def bound_to_tenant(kept: str, tenant: str, *, key: bytes) -> str:
    """Return the hash bound to a tenant, also for a hash of an early release."""
    if is_bound_to_tenant(kept):
        return kept
    # No tenant has a "\0" in its name.
    digest = hmac.new(key, f"{tenant}\0{kept}".encode(), sha512).hexdigest()
    return _BOUND + digest[: _HASH_CHARS - len(_BOUND)]
