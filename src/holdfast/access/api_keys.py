"""`ApiKeys`: creates, lists, revokes and verifies the API keys of a store."""

from __future__ import annotations

import asyncio
import builtins
import hmac
from contextlib import suppress

from holdfast.access.key_text import new_key_text, parsed_key_text
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import positive_ms
from holdfast.errors import (
    HoldfastError,
    ItemDamaged,
    JournalDamaged,
    KeyNotFound,
    Unauthenticated,
)
from holdfast.model.api_key import ApiKey, KeyRole, NewKey, validated_role
from holdfast.model.durations import Duration
from holdfast.model.names import validated_name, validated_tenant
from holdfast.records.api_key import (
    StoredKey,
    create_key_write,
    keys_of_tenant,
    revoke_key_write,
    stored_key_of,
    use_key_write,
)
from holdfast.records.index_keys import API_KEYS
from holdfast.records.keys import api_key_key
from holdfast.storage import Key
from holdfast.storage.ranges import ALL

__all__ = ["ApiKeys"]

_HOUR_MS = 3_600_000


class ApiKeys:
    """The API keys of a store, which servers accept.

    The store holds a hash of each secret, so that a copy of the table opens nothing.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("key")
        self._uses: set[asyncio.Task[None]] = set()

    async def create(
        self, name: str, *, tenant: str, role: KeyRole, expires: Duration | None = None
    ) -> NewKey:
        """Create a key. Its secret is in the result only: the store does not have it.

        The key acts on the runs of ``tenant``, or of every tenant if that is ``*``. It is valid for
        the duration ``expires``, or until it is revoked.

        Raises:
            InvalidName: an invalid name or tenant.
            InvalidRequest: an unknown role, or ``expires`` is not a positive duration.
        """
        now_ms = self._kernel.clock.now_ms()
        text = new_key_text(self._kernel.ids.key())
        parts = parsed_key_text(text)
        assert parts is not None
        key = StoredKey(
            id=parts.id,
            name=validated_name(name, "name"),
            tenant=validated_tenant(tenant),
            role=validated_role(role),
            digest=parts.digest,
            created_ms=now_ms,
            expires_ms=None if expires is None else now_ms + positive_ms(expires, "expires"),
        )
        write = create_key_write(key, token=self._kernel.ids.new())
        await self._kernel.resolve_write(self._table, write)
        shown = key.shown()
        return NewKey(
            **{each: getattr(shown, each) for each in ApiKey.__struct_fields__}, secret=text
        )

    async def list(self, tenant: str | None = None) -> builtins.list[ApiKey]:
        """Return the keys of a tenant, or of all tenants; those for every tenant have ``*``.

        A new key may appear a moment later. Expired keys are listed for 30 days.

        Raises:
            InvalidName: an invalid tenant.
        """
        where = ALL if tenant is None else keys_of_tenant(validated_tenant(tenant))
        entries = self._table.query_all(API_KEYS, where, index="GSI1")
        places = [Key(item["PK"], item["SK"]) async for item in entries]
        keys: builtins.list[ApiKey] = []
        for item in await self._table.get_many(places):
            try:
                if item is not None:  # revoked meanwhile
                    keys.append(stored_key_of(item).shown())
            except JournalDamaged as error:
                self._kernel.note_damage(item or {}, error)
        return keys

    async def revoke(self, id: str, *, tenant: str | None = None) -> None:
        """Delete a key. Every server refuses it at the latest 5 seconds later.

        With a ``tenant`` it must be a key of that tenant.

        Raises:
            KeyNotFound: there is no such key, or it is a key of another tenant.
            InvalidName: an invalid id or tenant.
        """
        id = validated_name(id, "id")
        owner = None if tenant is None else validated_tenant(tenant)
        try:
            item = await self._table.get(api_key_key(id))
        except ItemDamaged:  # an operator may still delete it, but it names no tenant
            item = {}
        if item is None or owner not in (None, item.get("tenant")):
            where = "" if owner is None else f" of tenant {owner!r}"
            raise KeyNotFound(f"there is no API key {id!r:.80}{where}")
        # A key never changes its tenant, and no id is used twice.
        await self._kernel.resolve_write(self._table, revoke_key_write(id))

    async def get(self, id: str) -> ApiKey:
        """Return a key, which may have expired.

        Raises:
            KeyNotFound: there is no such key, or it was revoked.
            InvalidName: an invalid id.
        """
        id = validated_name(id, "id")
        item = await self._table.get(api_key_key(id))
        if item is None:
            raise KeyNotFound(f"there is no API key {id!r:.80}")
        return stored_key_of(item).shown()

    async def verify(self, text: str) -> ApiKey:
        """Return the key of this text, if it is valid now.

        Text that cannot be a key is refused without a read.

        Raises:
            Unauthenticated: it is not the text of a key, or the key was revoked or has expired.
        """
        parts = parsed_key_text(text) if isinstance(text, str) else None
        if parts is None:
            raise Unauthenticated("the API key is not valid")
        try:
            item = await self._table.get(api_key_key(parts.id))
            stored = None if item is None else stored_key_of(item)
        except ItemDamaged:
            stored = None
        except JournalDamaged as error:
            self._kernel.note_damage({"PK": api_key_key(parts.id).pk}, error)
            stored = None
        if stored is None or not hmac.compare_digest(stored.digest, parts.digest):
            raise Unauthenticated("the API key is not valid")
        now_ms = self._kernel.clock.now_ms()
        if stored.is_expired(now_ms):
            raise Unauthenticated("the API key has expired")
        if stored.used_ms is None or stored.used_ms <= now_ms - _HOUR_MS:
            self._note_use(stored.id, now_ms)
        return stored.shown()

    def _note_use(self, id: str, now_ms: int) -> None:
        """Write the time of a use beside the request, which must not wait or fail for it."""

        async def note() -> None:
            with suppress(HoldfastError):
                await self._table.write(use_key_write(id, now_ms=now_ms))

        task = asyncio.create_task(note())
        self._uses.add(task)
        task.add_done_callback(self._uses.discard)
