"""Reads, creates and rotates the keys that sign tokens, and verifies tokens with them."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, StoreNotFound
from holdfast.records.keys import SIGNING
from holdfast.records.signed_token import (
    UnverifiedToken,
    parsed_token,
    signed_token,
    verified_claims,
)
from holdfast.records.signing_keys import (
    SigningKey,
    find_signing_key,
    new_signing_key,
    rotated_keys,
    signing_keys_of,
    signing_keys_write,
)

__all__ = ["open_token", "rotate_signing_keys", "sign_token"]

# A process signs with a replaced key, and accepts a revoked one, for no longer than this.
_KEYS_AGE_SECONDS_MAX = 60.0
# Tokens with an invented key id cause no more than one read in this time.
_UNKNOWN_KEY_SECONDS = 1.0


async def sign_token(kernel: Kernel, purpose: str, claims: list[str], *, expires_ms: int) -> str:
    """Return a signed token; the first process that signs one creates the key."""
    keys = await _load_keys(kernel, seconds_old_max=_KEYS_AGE_SECONDS_MAX)
    return signed_token(purpose, claims, keys[0], expires_ms=expires_ms)


async def open_token(kernel: Kernel, purpose: str, token: str) -> UnverifiedToken | None:
    """Return a token whose signature is right, even if it has expired; None for any other text."""
    parsed = parsed_token(token)
    if parsed is None:
        return None
    key = await _find_key(kernel, parsed.key)
    if key is None or verified_claims(parsed, purpose, key) is None:
        return None
    return parsed


async def rotate_signing_keys(kernel: Kernel, *, revoke: bool) -> SigningKey:
    """Let a new key sign from now on; return it.

    Old keys verify what they have signed until that has expired, unless ``revoke`` drops them.
    """
    while True:
        item = await kernel.settings_table.get(SIGNING)
        keys = () if item is None else signing_keys_of(item)
        rotated = rotated_keys(keys, _new_key(kernel), now_ms=kernel.clock.now_ms(), revoke=revoke)
        write = signing_keys_write(rotated, item_read=item, token=kernel.ids.new())
        try:
            await kernel.resolve_write(kernel.settings_table, write)
        except ConditionFailed:
            continue  # another process rotated them at the same time
        kernel.signing_keys.keep(rotated, kernel.clock.monotonic())
        return rotated[0]


async def _find_key(kernel: Kernel, id: str) -> SigningKey | None:
    now_ms = kernel.clock.now_ms()
    keys = await _load_keys(kernel, seconds_old_max=_KEYS_AGE_SECONDS_MAX)
    key = find_signing_key(keys, id, now_ms=now_ms)
    if key is None:  # another process may have rotated the keys since
        keys = await _load_keys(kernel, seconds_old_max=_UNKNOWN_KEY_SECONDS)
        key = find_signing_key(keys, id, now_ms=now_ms)
    return key


async def _load_keys(kernel: Kernel, *, seconds_old_max: float) -> tuple[SigningKey, ...]:
    cache, now = kernel.signing_keys, kernel.clock.monotonic()
    if cache.keys and now - cache.read_at < seconds_old_max:
        return cache.keys
    item = await kernel.settings_table.get(SIGNING)
    if item is None:
        write = signing_keys_write((_new_key(kernel),), item_read=None, token=kernel.ids.new())
        with suppress(ConditionFailed):  # another process created them first
            await kernel.resolve_write(kernel.settings_table, write)
        item = await kernel.settings_table.get(SIGNING)
        if item is None:
            raise StoreNotFound("the store lost the signing keys that were just written to it")
    return cache.keep(signing_keys_of(item), now)


def _new_key(kernel: Kernel) -> SigningKey:
    return new_signing_key(kernel.ids.new(), kernel.ids.key(), now_ms=kernel.clock.now_ms())
