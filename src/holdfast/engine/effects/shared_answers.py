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

from holdfast.display import get_logger
from holdfast.engine.journal.payloads import (
    check_fits,
    compress_payload,
    delete_orphaned_blob,
    unpack_payload,
)
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
from holdfast.records import shared_answer
from holdfast.records.codec import encode, unpack_value
from holdfast.records.journal import Content
from holdfast.records.keys import answer_key
from holdfast.records.shared_answer import SharedAnswerRow, shared_answer_of
from holdfast.storage import Blobs, Key

__all__ = ["LEASE_SECONDS", "SharedAnswers"]

T = TypeVar("T")

_log = get_logger("holdfast.sharing")

LEASE_SECONDS = 30.0
"""After so long without a sign of life of whoever asks, somebody else does."""
# A lease that lasts longer is none of ours: whoever waited for its end would wait for ever.
_LEASE_MS_MAX = 3_600_000
# Somebody who waits for an answer of another process asks at first often, then less so.
_POLL_FIRST_SECONDS = 0.025
_POLL_SECONDS_MAX = 1.0

Ask = Callable[[], Awaitable[Any]]


class StoreRetrier(Protocol):
    """Repeats what the store could not do, for as long as its caller may wait."""

    async def __call__(self, action: Callable[[], Awaitable[T]], /) -> T: ...


# Where what stands there cannot be read, each asks alone.
_DAMAGED = SharedAnswerRow("", "unshared", sys.maxsize, None)


def _parse_stored(item: Mapping[str, Any], question: _SharedQuestion) -> SharedAnswerRow:
    try:
        return shared_answer_of(item)
    except JournalDamaged as error:
        _log.warning("%s: a shared answer is not used: %s", question.log_label, error)
        return _DAMAGED


class _SharedQuestion(msgspec.Struct, frozen=True):
    """What is asked, and for how long its answer is kept."""

    tenant: str
    log_label: str
    """Who asks, as a log names it."""
    digest: bytes
    keep_ms: int
    ask: Ask
    retry_store: StoreRetrier
    answer_type: Any
    """What an answer is; another value that stands there is unreadable."""

    @property
    def key(self) -> Key:
        return answer_key(self.tenant, self.digest)


class _AnswerLease(msgspec.Struct, frozen=True):
    """The right to ask for all."""

    key: Key
    id: str
    taken_at: float
    """Since when it counts, by the monotonic clock."""


class _FetchedAnswer(msgspec.Struct, frozen=True):
    """An answer, and as it is kept."""

    value: Any
    packed: bytes
    from_cache: bool
    """Whether somebody else had asked."""


class SharedAnswers:
    """The answers that the runs of a tenant share, as one process sees them."""

    def __init__(self, kernel: Kernel, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("answer")
        self._lease_seconds = lease_seconds
        self._in_flight: dict[Key, asyncio.Future[bytes | None]] = {}

    async def get_or_ask(
        self,
        tenant: str,
        digest: bytes,
        ask: Ask,
        *,
        keep_ms: int,
        log_label: str | None = None,
        retry_store: StoreRetrier | None = None,
        answer_type: Any = Any,
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
        retry_store = retry_store or self._kernel.retry_while_unavailable
        log_label = log_label or f"tenant {tenant}"
        question = _SharedQuestion(
            tenant, log_label, digest, keep_ms, ask, retry_store, answer_type
        )
        key = question.key
        while (flight := self._in_flight.get(key)) is not None:
            await asyncio.wait({flight})
            packed = flight.result()
            if packed is not None:
                # Of its own, lest one changes what the other reads.
                return await unpack_payload(self._kernel, packed, unpack_value), True
        flight = self._in_flight[key] = asyncio.get_running_loop().create_future()
        packed = None
        try:
            fetched = await self._wait_or_ask(question)
            packed = fetched.packed
        finally:
            # Before the others wake: the first of them stands for all then.
            del self._in_flight[key]
            flight.set_result(packed)
        return fetched.value, fetched.from_cache

    async def _wait_or_ask(self, question: _SharedQuestion) -> _FetchedAnswer:
        """Return the answer that stands, or wait for that of another, or ask."""
        clock, poll_seconds = self._kernel.clock, _POLL_FIRST_SECONDS
        unreadable_id: str | None = None
        stored = await self._read_stored(question)
        while True:
            now = clock.now_ms()
            if stored is not None and stored.expires_ms > now:
                if stored.state == "answered":
                    fetched = await self._read_answer(question, stored)
                    if fetched is not None:
                        return fetched
                    unreadable_id = stored.id
                elif stored.state == "leased" and stored.expires_ms - now <= _LEASE_MS_MAX:
                    left_seconds = (stored.expires_ms - now) / 1000
                    await clock.sleep(
                        min(poll_seconds * (0.5 + self._kernel.ids.random()), left_seconds)
                    )
                    poll_seconds = min(poll_seconds * 2, _POLL_SECONDS_MAX)
                    stored = await self._read_stored(question)
                    continue
                else:
                    value = await question.ask()
                    return _FetchedAnswer(
                        value, await compress_payload(self._kernel, encode(value)), from_cache=False
                    )
            try:
                take = partial(self._take_lease, question.key, instead_of=unreadable_id)
                lease = await question.retry_store(take)
            except ConditionFailed as failed:
                stored = None if failed.item is None else _parse_stored(failed.item, question)
                continue
            except ItemDamaged:
                stored = _DAMAGED
                continue
            if clock.monotonic() - lease.taken_at < self._lease_seconds:
                return await self._ask_with_lease(question, lease, instead_of=stored)
            stored = await self._read_stored(question)  # it lapsed before we heard that it is ours

    async def _read_stored(self, question: _SharedQuestion) -> SharedAnswerRow | None:
        # A moment old will do: where somebody was faster, the lease is refused.
        try:
            item = await question.retry_store(partial(self._table.get, question.key, eventual=True))
        except ItemDamaged:
            return _DAMAGED
        return None if item is None else _parse_stored(item, question)

    async def _read_answer(
        self, question: _SharedQuestion, stored: SharedAnswerRow
    ) -> _FetchedAnswer | None:
        """Return the answer that stands; None where it cannot be read."""
        assert stored.content is not None
        try:
            packed = stored.content.data
            if stored.content.blob is not None:
                get = partial(
                    self._kernel.store.blobs.with_purpose("answer").get, stored.content.blob
                )
                packed = await question.retry_store(get)
            value = await unpack_payload(self._kernel, packed or b"", unpack_value)
            msgspec.convert(value, question.answer_type)
            return _FetchedAnswer(value, packed or b"", from_cache=True)
        except (BlobNotFound, BlobDamaged, JournalDamaged, msgspec.ValidationError) as error:
            _log.warning(
                "%s: a shared answer is asked for again, since it is unreadable: %s",
                question.log_label,
                error,
            )
            return None

    # --- as the one who asks for all --------------------------------------------------------------

    async def _take_lease(self, key: Key, *, instead_of: str | None) -> _AnswerLease:
        """Take the lease, where nothing stands that counts.

        Raises:
            ConditionFailed: somebody else was faster; it carries what stands.
        """
        clock = self._kernel.clock
        lease, now_ms = _AnswerLease(key, self._kernel.ids.new(), clock.monotonic()), clock.now_ms()
        until_ms = now_ms + self._lease_ms
        put = shared_answer.lease_write(
            key, id=lease.id, expires_ms=until_ms, now_ms=now_ms, instead_of=instead_of
        )
        try:
            await self._kernel.resolve_write(self._table, put)
        except ConditionFailed:
            raise
        except BaseException:
            # It may stand nevertheless, and all others would wait for it to lapse.
            await asyncio.shield(self._release_lease(lease))
            raise
        return lease

    async def _ask_with_lease(
        self, question: _SharedQuestion, lease: _AnswerLease, *, instead_of: SharedAnswerRow | None
    ) -> _FetchedAnswer:
        renewing = asyncio.ensure_future(self._renew_lease(question, lease))
        try:
            if instead_of is not None and instead_of.content is not None:
                await delete_orphaned_blob(self._blobs, instead_of.content)
            value = await question.ask()
            packed = await compress_payload(self._kernel, encode(value))
            await self._store_answer(question, lease, packed)
        except BaseException:
            # Also if we are cancelled: all others would wait for the lease to lapse.
            await asyncio.shield(self._release_lease(lease))
            raise
        finally:
            renewing.cancel()
        return _FetchedAnswer(value, packed, from_cache=False)

    async def _renew_lease(self, question: _SharedQuestion, lease: _AnswerLease) -> None:
        """Prolong a lease until it is lost, or this is cancelled."""
        clock, renew_seconds = self._kernel.clock, self._lease_seconds / 3
        await clock.sleep(max(lease.taken_at + renew_seconds - clock.monotonic(), 0))
        while True:
            until_ms = clock.now_ms() + self._lease_ms
            try:
                await self._table.write(
                    shared_answer.renew_write(lease.key, lease.id, expires_ms=until_ms)
                )
            except ConditionFailed:
                told = "%s: the lease on a shared answer was lost; it is asked for twice"
                _log.warning(told, question.log_label)
                return
            except StoreError as error:
                told = "%s: the lease on a shared answer could not be renewed: %s"
                _log.warning(told, question.log_label, error)
            await clock.sleep(renew_seconds)

    async def _store_answer(
        self, question: _SharedQuestion, lease: _AnswerLease, packed: bytes
    ) -> None:
        """Put an answer where all others look for it; where that fails, it is only ours."""
        id = self._kernel.ids.new()
        keep_ms = question.keep_ms
        content: Content | None = None
        try:
            content = await self._store_content(question, id, packed)
            if content is None:
                keep_ms = min(keep_ms, self._lease_ms)  # another one may be smaller
            put = shared_answer.answer_write(
                lease.key,
                lease.id,
                id=id,
                content=content,
                expires_ms=self._kernel.clock.now_ms() + keep_ms,
            )
            await self._kernel.resolve_write(self._table, put)
        except ConditionFailed:
            if content is not None:
                await delete_orphaned_blob(self._blobs, content)
        except StoreError as error:
            _log.warning("%s: an answer could not be shared: %s", question.log_label, error)
            await self._release_lease(lease)

    async def _store_content(
        self, question: _SharedQuestion, id: str, packed: bytes
    ) -> Content | None:
        """Return an answer as an item can hold it; None where this store has no room for it."""
        if len(packed) <= self._kernel.spill_bytes:
            return Content(packed)
        if self._blobs is not None:
            name = shared_answer.answer_blob_key(
                question.tenant, question.digest, id=id, keep_ms=question.keep_ms
            )
            put = partial(self._blobs.put, packed, key=name)
            return Content(None, await self._kernel.retry_while_unavailable(put))
        try:
            check_fits(self._kernel, packed)
        except InvalidResult:
            return None
        return Content(packed)

    async def _release_lease(self, lease: _AnswerLease) -> None:
        """Make room for the next who asks; where that fails, the lease lapses."""
        with suppress(ConditionFailed, StoreError):
            await self._table.write(shared_answer.release_write(lease.key, lease.id))

    @property
    def _blobs(self) -> Blobs | None:
        store = self._kernel.store
        return store.blobs.with_purpose("answer") if store.has_blobs else None

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)
