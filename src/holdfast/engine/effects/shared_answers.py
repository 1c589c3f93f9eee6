"""Answers that runs share: whoever asks first asks for all, in this process and in every other.

One item stands for a question. Who writes a lease into it asks, and puts the answer in its place;
everybody else waits for that. A lease that is not renewed lapses, and one of those who wait takes
over. Inside a process one caller stands for all: the others wait for it, and never ask the store.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.display import log_named
from holdfast.engine.journal.payloads import check_fits, compressed, unpacked
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    BlobDamaged,
    BlobNotFound,
    ConditionFailed,
    InvalidResult,
    ItemDamaged,
    JournalDamaged,
    StoreError,
)
from holdfast.records import sharing
from holdfast.records.codec import encode, unpack_value
from holdfast.records.journal import Content
from holdfast.records.keys import answer_key
from holdfast.records.sharing import Standing, standing_of
from holdfast.storage import Blobs, Key

__all__ = ["LEASE_SECONDS", "SharedAnswers"]

T = TypeVar("T")

_log = log_named("holdfast.sharing")

LEASE_SECONDS = 30.0
"""After so long without a sign of life of whoever asks, somebody else does."""
# A lease that lasts longer is none of ours: whoever waited for its end would wait for ever.
_LEASE_MS_MAX = 3_600_000
# Somebody who waits for an answer of another process asks at first often, then less so.
_ASK_FIRST_SECONDS = 0.025
_ASK_MOST_SECONDS = 1.0

Ask = Callable[[], Awaitable[Any]]


class Patiently(Protocol):
    """Repeats what the store could not do, for as long as its caller may wait."""

    async def __call__(self, action: Callable[[], Awaitable[T]], /) -> T: ...


# Where what stands there cannot be read, each asks alone.
_DAMAGED = Standing("", "unshared", sys.maxsize, None)


def _standing(item: Mapping[str, Any], question: _Question) -> Standing:
    try:
        return standing_of(item)
    except JournalDamaged as error:
        _log.warning("%s: a shared answer is not used: %s", question.told, error)
        return _DAMAGED


class _Question(msgspec.Struct, frozen=True):
    """What is asked, and for how long its answer is kept."""

    tenant: str
    told: str
    """Who asks, as a log names it."""
    digest: bytes
    keep_ms: int
    ask: Ask
    patiently: Patiently
    kind: Any
    """What an answer is; another value that stands there is unreadable."""

    @property
    def key(self) -> Key:
        return answer_key(self.tenant, self.digest)


class _Lease(msgspec.Struct, frozen=True):
    """The right to ask for all."""

    key: Key
    id: str
    taken: float
    """Since when it counts, by the monotonic clock."""


class _Got(msgspec.Struct, frozen=True):
    """An answer, and as it is kept."""

    value: Any
    packed: bytes
    others: bool
    """Whether somebody else had asked."""


class SharedAnswers:
    """The answers that the runs of a tenant share, as one process sees them."""

    def __init__(self, kernel: Kernel, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("answer")
        self._lease_seconds = lease_seconds
        self._flights: dict[Key, asyncio.Future[bytes | None]] = {}

    async def answered(
        self,
        tenant: str,
        digest: bytes,
        ask: Ask,
        *,
        keep_ms: int,
        told: str | None = None,
        patiently: Patiently | None = None,
        kind: Any = Any,
    ) -> tuple[Any, bool]:
        """Return the answer to a question, and whether somebody else had asked.

        ``told`` is the run that asks, as a log names it. ``patiently`` is how it waits for the
        store; without it there is a limit. An answer that stands there and is not of this ``kind``
        is asked for again.

        Who asks first decides how long its answer is kept. What ``ask`` raises is raised to its
        own caller; those who waited for it ask themselves, one after the other. Who stalls past
        the lease comes back with its own answer, which nobody else is given.

        Raises:
            InvalidResult: the answer is not a value that can be kept.
            StoreUnavailable: the store did not answer for a while.
            StoreUnusable: somebody has to mend it.
        """
        patiently = patiently or self._kernel.persistently
        told = told or f"tenant {tenant}"
        question = _Question(tenant, told, digest, keep_ms, ask, patiently, kind)
        key = question.key
        while (flight := self._flights.get(key)) is not None:
            await asyncio.wait({flight})
            packed = flight.result()
            if packed is not None:
                # Of its own, lest one changes what the other reads.
                return await unpacked(self._kernel, packed, unpack_value), True
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        packed = None
        try:
            got = await self._got(question)
            packed = got.packed
        finally:
            # Before the others wake: the first of them stands for all then.
            del self._flights[key]
            flight.set_result(packed)
        return got.value, got.others

    async def _got(self, question: _Question) -> _Got:
        """Return the answer that stands, or wait for that of another, or ask."""
        clock, pause = self._kernel.clock, _ASK_FIRST_SECONDS
        unreadable: str | None = None
        seen = await self._read(question)
        while True:
            now = clock.now_ms()
            if seen is not None and seen.until_ms > now:
                if seen.state == "answered":
                    got = await self._read_answer(question, seen)
                    if got is not None:
                        return got
                    unreadable = seen.id
                elif seen.state == "leased" and seen.until_ms - now <= _LEASE_MS_MAX:
                    left = (seen.until_ms - now) / 1000
                    await clock.sleep(min(pause * (0.5 + self._kernel.ids.random()), left))
                    pause = min(pause * 2, _ASK_MOST_SECONDS)
                    seen = await self._read(question)
                    continue
                else:
                    value = await question.ask()
                    return _Got(value, await compressed(self._kernel, encode(value)), others=False)
            try:
                take = partial(self._take, question.key, instead_of=unreadable)
                lease = await question.patiently(take)
            except ConditionFailed as failed:
                seen = None if failed.item is None else _standing(failed.item, question)
                continue
            except ItemDamaged:
                seen = _DAMAGED
                continue
            if clock.monotonic() - lease.taken < self._lease_seconds:
                return await self._ask(question, lease, instead_of=seen)
            seen = await self._read(question)  # it lapsed before we heard that it is ours

    async def _read(self, question: _Question) -> Standing | None:
        # A moment old will do: where somebody was faster, the lease is refused.
        try:
            item = await question.patiently(partial(self._table.get, question.key, eventual=True))
        except ItemDamaged:
            return _DAMAGED
        return None if item is None else _standing(item, question)

    async def _read_answer(self, question: _Question, seen: Standing) -> _Got | None:
        """Return the answer that stands; None where it cannot be read."""
        assert seen.content is not None
        try:
            packed = seen.content.data
            if seen.content.blob is not None:
                get = partial(self._kernel.store.blobs.purpose("answer").get, seen.content.blob)
                packed = await question.patiently(get)
            value = await unpacked(self._kernel, packed or b"", unpack_value)
            msgspec.convert(value, question.kind)
            return _Got(value, packed or b"", others=True)
        except (BlobNotFound, BlobDamaged, JournalDamaged, msgspec.ValidationError) as error:
            _log.warning(
                "%s: a shared answer is asked for again, since it is unreadable: %s",
                question.told,
                error,
            )
            return None

    # --- as the one who asks for all --------------------------------------------------------------

    async def _take(self, key: Key, *, instead_of: str | None) -> _Lease:
        """Take the lease, where nothing stands that counts.

        Raises:
            ConditionFailed: somebody else was faster; it carries what stands.
        """
        clock = self._kernel.clock
        lease, now_ms = _Lease(key, self._kernel.ids.new(), clock.monotonic()), clock.now_ms()
        until_ms = now_ms + self._lease_ms
        put = sharing.leased(
            key, id=lease.id, until_ms=until_ms, now_ms=now_ms, instead_of=instead_of
        )
        try:
            await self._kernel.settle(self._table, put)
        except ConditionFailed:
            raise
        except BaseException:
            # It may stand nevertheless, and all others would wait for it to lapse.
            await asyncio.shield(self._give_up(lease))
            raise
        return lease

    async def _ask(
        self, question: _Question, lease: _Lease, *, instead_of: Standing | None
    ) -> _Got:
        renewing = asyncio.ensure_future(self._renew(question, lease))
        try:
            if instead_of is not None and instead_of.content is not None:
                await self._free(instead_of.content)
            value = await question.ask()
            packed = await compressed(self._kernel, encode(value))
            await self._share(question, lease, packed)
        except BaseException:
            # Also if we are cancelled: all others would wait for the lease to lapse.
            await asyncio.shield(self._give_up(lease))
            raise
        finally:
            renewing.cancel()
        return _Got(value, packed, others=False)

    async def _renew(self, question: _Question, lease: _Lease) -> None:
        """Prolong a lease until it is lost, or this is cancelled."""
        clock, third = self._kernel.clock, self._lease_seconds / 3
        await clock.sleep(max(lease.taken + third - clock.monotonic(), 0))
        while True:
            until_ms = clock.now_ms() + self._lease_ms
            try:
                await self._table.write(sharing.renewed(lease.key, lease.id, until_ms=until_ms))
            except ConditionFailed:
                told = "%s: the lease on a shared answer was lost; it is asked for twice"
                _log.warning(told, question.told)
                return
            except StoreError as error:
                told = "%s: the lease on a shared answer could not be renewed: %s"
                _log.warning(told, question.told, error)
            await clock.sleep(third)

    async def _share(self, question: _Question, lease: _Lease, packed: bytes) -> None:
        """Put an answer where all others look for it; where that fails, it is only ours."""
        id = self._kernel.ids.new()
        keep_ms = question.keep_ms
        content: Content | None = None
        try:
            content = await self._content(question, id, packed)
            if content is None:
                keep_ms = min(keep_ms, self._lease_ms)  # another one may be smaller
            put = sharing.answered(
                lease.key,
                lease.id,
                id=id,
                content=content,
                until_ms=self._kernel.clock.now_ms() + keep_ms,
            )
            await self._kernel.settle(self._table, put)
        except ConditionFailed:
            if content is not None:
                await self._free(content)  # nobody names it
        except StoreError as error:
            _log.warning("%s: an answer could not be shared: %s", question.told, error)
            await self._give_up(lease)

    async def _content(self, question: _Question, id: str, packed: bytes) -> Content | None:
        """Return an answer as an item can hold it; None where this store has no room for it."""
        if len(packed) <= self._kernel.spill_bytes:
            return Content(packed)
        if self._blobs is not None:
            name = sharing.blob_name(
                question.tenant, question.digest, id=id, keep_ms=question.keep_ms
            )
            put = partial(self._blobs.put, packed, key=name)
            return Content(None, await self._kernel.persistently(put))
        try:
            check_fits(self._kernel, packed)
        except InvalidResult:
            return None
        return Content(packed)

    async def _give_up(self, lease: _Lease) -> None:
        """Make room for the next who asks; where that fails, the lease lapses."""
        with suppress(ConditionFailed, StoreError):
            await self._table.write(sharing.given_up(lease.key, lease.id))

    async def _free(self, content: Content) -> None:
        """Delete what lies beside the table and nothing names; where that fails, a sweep does."""
        if content.blob is not None and self._blobs is not None:
            with suppress(StoreError):
                await self._blobs.delete(content.blob.key)

    @property
    def _blobs(self) -> Blobs | None:
        store = self._kernel.store
        return store.blobs.purpose("answer") if store.has_blobs else None

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)
