"""What everybody who uses a store must agree on; the first one to come decides it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.records.keys import SETTINGS
from holdfast.storage import Absent, Equals, Put, Update

__all__ = [
    "SHARDS",
    "SHARDS_MAX",
    "Settings",
    "grown",
    "hashed_user",
    "made",
    "new_user_key",
    "settings_of",
]

SHARDS = 8
"""Into how many shards the due index of a graph is cut at first."""
SHARDS_MAX = 256
"""Every worker reads every shard at each scan."""
LIST_SHARDS = 4


class Settings(msgspec.Struct, frozen=True):
    """What everybody who uses a store must agree on."""

    shards: int
    """Into how many parts the due index of a graph is cut. It only grows."""
    list_shards: int
    """Into how many parts a tenant's list of runs is cut. It never changes."""
    user_key: bytes
    """The key of the hash under which users are kept."""


def new_user_key(randomness: str) -> bytes:
    """Return a key for the hash of users."""
    return sha256(randomness.encode()).digest()


def made(user_key: bytes, *, token: str) -> Put:
    """Return the write that settles it, unless somebody did before."""
    item: dict[str, Any] = {
        "PK": SETTINGS.pk,
        "SK": SETTINGS.sk,
        "shards": SHARDS,
        "list_shards": LIST_SHARDS,
        "user_key": user_key,
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
    """Return what was settled."""
    return Settings(item["shards"], item["list_shards"], item["user_key"])


def hashed_user(user: str, key: bytes) -> str:
    """Return what is kept of a user: the same for the same user, of no use without the key."""
    return hmac.new(key, user.encode(), sha256).hexdigest()[:32]
