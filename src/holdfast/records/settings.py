"""What everybody who uses a store must agree on; the first one to come decides it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256, sha512
from typing import Any

import msgspec

from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.keys import SETTINGS
from holdfast.storage import Absent, Equals, Put, Update

__all__ = [
    "SHARDS",
    "SHARDS_MAX",
    "Settings",
    "UserHash",
    "bound",
    "grown",
    "is_bound",
    "made",
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
_HASH_LETTERS = 32


class Settings(msgspec.Struct, frozen=True):
    """What everybody who uses a store must agree on."""

    shards: int
    """Into how many parts the due index of a graph is cut. It only grows."""
    list_shards: int
    """Into how many parts a tenant's list of runs is cut. It never changes."""
    user_key: bytes
    """The key of the hash under which users are kept."""
    bound_lanes: bool = False
    """Whether the names of session queues have users' hashes that are bound to the tenant. It never
    changes: a store made by an earlier release keeps its names, so that processes of both releases
    see one queue for each session."""

    def __repr__(self) -> str:
        # Errors and logs may show settings, but never the key.
        shown = msgspec.structs.asdict(self) | {"user_key": "<hidden>"}
        return f"Settings({', '.join(f'{name}={value}' for name, value in shown.items())})"


class UserHash(msgspec.Struct, frozen=True):
    """What may be kept of a user of one tenant."""

    bound: str
    """The hash that rows keep. The same user has another one in another tenant."""
    unbound: str
    """The hash that rows of earlier releases keep, the same in all tenants."""

    def names(self, kept: str | None) -> bool:
        """Return whether what a row keeps is this user."""
        return kept in (self.bound, self.unbound)


def made(user_key: bytes, *, token: str) -> Put:
    """Return the write that settles it, unless somebody did before."""
    item: dict[str, Any] = {
        "PK": SETTINGS.pk,
        "SK": SETTINGS.sk,
        "shards": SHARDS,
        "list_shards": LIST_SHARDS,
        "user_key": user_key,
        "bound_lanes": True,
    }
    return Put(item, Absent("PK"), token)


def grown(standing: Settings, shards: int, *, token: str) -> Update:
    """Return the write that cuts the due index into more parts, unless somebody did meanwhile."""
    return Update(
        key=SETTINGS,
        set={"shards": shards},
        condition=Equals("shards", standing.shards),
        token=token,
    )


def settings_of(item: Mapping[str, Any]) -> Settings:
    """Return what was settled.

    Raises:
        JournalDamaged: the item does not say.
    """
    try:
        settled = Settings(
            attribute(item, "shards", int),
            attribute(item, "list_shards", int),
            attribute(item, "user_key", bytes),
            bound_lanes=item.get("bound_lanes", False) is True,
        )
        if not (1 <= settled.shards <= SHARDS_MAX and 1 <= settled.list_shards <= SHARDS_MAX):
            raise ValueError(f"{settled.shards} and {settled.list_shards} shards")
    except DAMAGE as error:
        raise damaged(item, "the settings", error) from error
    return settled


def user_hash(user: str, tenant: str, *, key: bytes) -> UserHash:
    """Return what is kept of a user: the same for the same user, of no use without the key."""
    unbound = hmac.new(key, user.encode(), sha256).hexdigest()[:_HASH_LETTERS]
    return UserHash(bound(unbound, tenant, key=key), unbound)


def is_bound(kept: str) -> bool:
    """Return whether a user's hash is bound to a tenant."""
    return kept.startswith(_BOUND)


def bound(kept: str, tenant: str, *, key: bytes) -> str:
    """Return a user's hash bound to the tenant, though the row keeps that of an earlier release."""
    if is_bound(kept):
        return kept
    # No tenant has a "\0" in its name.
    digest = hmac.new(key, f"{tenant}\0{kept}".encode(), sha512).hexdigest()
    return _BOUND + digest[: _HASH_LETTERS - len(_BOUND)]
