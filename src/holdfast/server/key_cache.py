"""Remembers for 3 seconds which API keys are valid, so that not every request reads the store.

Every server must refuse a revoked key within 5 seconds. A result is at most 3 seconds old when it
is used, counted from before its read, and reads are consistent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.access.key_text import parsed_key_text
from holdfast.app import Holdfast
from holdfast.errors import ItemDamaged, JournalDamaged, KeyNotFound, Unauthenticated
from holdfast.model.api_key import ApiKey

__all__ = ["KeyCache", "digest_of", "remember"]

T = TypeVar("T")

_SECONDS_MAX = 3.0
_ENTRIES_MAX = 10_000


class KeyCache:
    """Verifies API keys, with one read for each key in 3 seconds."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        # Valid and refused keys apart: a flood of refused ones must not evict the valid ones.
        self._valid: OrderedDict[bytes, tuple[float, ApiKey]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, Unauthenticated]] = OrderedDict()
        self._reading: dict[bytes, asyncio.Task[ApiKey]] = {}

    async def verify(self, text: str) -> ApiKey:
        """Return the key of this text, as `ApiKeys.verify` does.

        Raises:
            Unauthenticated: the text is not a valid key.
        """
        digest, now = digest_of(text), self._hf.clock.monotonic()
        known = self._valid.get(digest)
        if known is not None and now - known[0] < _SECONDS_MAX:
            return self._unless_expired(known[1])
        if parsed_key_text(text) is None:  # costs less than an entry
            raise Unauthenticated("the API key is not valid")
        return await self._read_once(digest, lambda: self._hf.keys.verify(text))

    async def verify_id(self, id: str) -> ApiKey:
        """Return the key with this id, which a session names.

        Raises:
            Unauthenticated: the key was revoked or has expired.
        """
        digest, now = digest_of(f"id {id}"), self._hf.clock.monotonic()  # no key has a space
        known = self._valid.get(digest)
        if known is not None and now - known[0] < _SECONDS_MAX:
            return self._unless_expired(known[1])
        return self._unless_expired(await self._read_once(digest, lambda: self._find(id)))

    async def _find(self, id: str) -> ApiKey:
        try:
            return await self._hf.keys.get(id)
        except (KeyNotFound, ItemDamaged, JournalDamaged):
            raise Unauthenticated("the API key was revoked") from None

    async def _read_once(self, digest: bytes, read: Callable[[], Awaitable[ApiKey]]) -> ApiKey:
        """Read a key; requests that come meanwhile get the same result."""
        refused = self._refused.get(digest)
        if refused is not None and self._hf.clock.monotonic() - refused[0] < _SECONDS_MAX:
            raise Unauthenticated(str(refused[1]))
        task = self._reading.get(digest)
        if task is None:
            task = self._reading[digest] = asyncio.create_task(self._read(digest, read))
            task.add_done_callback(lambda _: self._reading.pop(digest, None))
        # One request that is cancelled must not cancel the others.
        return await asyncio.shield(task)

    async def _read(self, digest: bytes, read: Callable[[], Awaitable[ApiKey]]) -> ApiKey:
        began = self._hf.clock.monotonic()
        try:
            key = await read()
        except Unauthenticated as error:
            self._valid.pop(digest, None)
            remember(self._refused, digest, (began, error))
            raise
        remember(self._valid, digest, (began, key))
        return key

    def _unless_expired(self, key: ApiKey) -> ApiKey:
        if key.expires_at is not None:
            expires_ms = round(key.expires_at.timestamp() * 1000)
            if expires_ms <= self._hf.clock.now_ms():
                raise Unauthenticated("the API key has expired")
        return key


def digest_of(text: str) -> bytes:
    """Return what stands for a credential in memory, so that no dump of it has the secret."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


def remember(entries: OrderedDict[bytes, T], digest: bytes, entry: T) -> None:
    """Put an entry at the end, and forget the first one if there are too many."""
    entries.pop(digest, None)
    entries[digest] = entry
    if len(entries) > _ENTRIES_MAX:
        entries.popitem(last=False)
