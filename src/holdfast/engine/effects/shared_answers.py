"""Answers that runs share: the first run that asks a question asks for all runs of the tenant.

Each question has one item. The process that writes a lease into it asks the model and replaces the
lease with the answer; all others wait for that. If the lease is not renewed, it expires, and a
waiting process takes over. Inside a process one caller acts for all: the others wait for it, and do
not use the store.
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
"""If the asking process does not renew its lease for this long, another one asks."""
# A lease that lasts longer is damaged: to wait for its end would take for ever.
_LEASE_MS_MAX = 3_600_000
# A caller that waits for another process polls often at first, then less often.
_POLL_FIRST_SECONDS = 0.025
_POLL_SECONDS_MAX = 1.0

Ask = Callable[[], Awaitable[Any]]


class StoreRetrier(Protocol):
    """Repeats an action while the store fails, for as long as the caller may wait."""

    async def __call__(self, action: Callable[[], Awaitable[T]], /) -> T: ...


# If the item cannot be read, each caller asks for itself.
_DAMAGED = SharedAnswerRow("", "unshared", sys.maxsize, None)


def _parse_stored(item: Mapping[str, Any], question: _SharedQuestion) -> SharedAnswerRow:
    try:
        return shared_answer_of(item)
    except JournalDamaged as error:
        _log.warning("%s: a shared answer is damaged, and not used: %s", question.log_label, error)
        return _DAMAGED


class _SharedQuestion(msgspec.Struct, frozen=True):
    """A question, and how long its answer is kept."""

    tenant: str
    log_label: str
    """The name of the asking run in log lines."""
    digest: bytes
    keep_ms: int
    ask: Ask
    retry_store: StoreRetrier
    answer_type: Any
    """The type of an answer; a stored value of another type counts as unreadable."""

    @property
    def key(self) -> Key:
        return answer_key(self.tenant, self.digest)


class _AnswerLease(msgspec.Struct, frozen=True):
    """The right to ask the question for all."""

    key: Key
    id: str
    taken_at: float
    """When it was taken, by the monotonic clock."""


class _FetchedAnswer(msgspec.Struct, frozen=True):
    """An answer, plain and packed."""

    value: Any
    packed: bytes
    from_cache: bool
    """Whether another caller had asked."""


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
        """Return the answer to a question, and whether another caller had asked it.

        ``log_label`` is the name of the asking run in log lines. ``retry_store`` repeats failed
        operations of the store; by default for a limited time. A stored answer that is not an
        ``answer_type`` is asked for again.

        The first caller decides how long the answer is kept. What ``ask`` raises goes to its own
        caller; the waiting callers then ask themselves, one after the other. A caller that stalls
        past its lease returns its own answer, which is not shared.

        Raises:
            InvalidResult: the answer cannot be stored.
            StoreUnavailable: the store did not answer for a while.
            StoreUnusable: the store needs an operator.
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
                # Each caller unpacks its own copy, so that none changes what another one reads.
                return await unpack_payload(self._kernel, packed, unpack_value), True
        flight = self._in_flight[key] = asyncio.get_running_loop().create_future()
        packed = None
        try:
            fetched = await self._wait_or_ask(question)
            packed = fetched.packed
        finally:
            # Before the others wake: the first of them then acts for all.
            del self._in_flight[key]
            flight.set_result(packed)
        return fetched.value, fetched.from_cache

    async def _wait_or_ask(self, question: _SharedQuestion) -> _FetchedAnswer:
        """Return the stored answer, wait for that of another process, or ask."""
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
            stored = await self._read_stored(question)  # it expired before the reply arrived

    async def _read_stored(self, question: _SharedQuestion) -> SharedAnswerRow | None:
        # A stale read is enough: if another process was faster, the lease is refused.
        try:
            item = await question.retry_store(partial(self._table.get, question.key, eventual=True))
        except ItemDamaged:
            return _DAMAGED
        return None if item is None else _parse_stored(item, question)

    async def _read_answer(
        self, question: _SharedQuestion, stored: SharedAnswerRow
    ) -> _FetchedAnswer | None:
        """Return the stored answer; None if it cannot be read."""
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
                "%s: a shared answer is unreadable, and asked for again: %s",
                question.log_label,
                error,
            )
            return None

    # --- with the lease ---------------------------------------------------------------------------

    async def _take_lease(self, key: Key, *, instead_of: str | None) -> _AnswerLease:
        """Take the lease, if there is neither an answer nor another lease.

        Raises:
            ConditionFailed: another process was faster; the error has its item.
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
            # It may have been written, and all others would wait for it to expire.
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
            # Also when cancelled: all others would wait for the lease to expire.
            await asyncio.shield(self._release_lease(lease))
            raise
        finally:
            renewing.cancel()
        return _FetchedAnswer(value, packed, from_cache=False)

    async def _renew_lease(self, question: _SharedQuestion, lease: _AnswerLease) -> None:
        """Renew a lease until it is lost, or this task is cancelled."""
        clock, renew_seconds = self._kernel.clock, self._lease_seconds / 3
        await clock.sleep(max(lease.taken_at + renew_seconds - clock.monotonic(), 0))
        while True:
            until_ms = clock.now_ms() + self._lease_ms
            try:
                await self._table.write(
                    shared_answer.renew_write(lease.key, lease.id, expires_ms=until_ms)
                )
            except ConditionFailed:
                told = "%s: the lease on a shared answer was lost; its question may be asked twice"
                _log.warning(told, question.log_label)
                return
            except StoreError as error:
                told = "%s: the lease on a shared answer could not be renewed: %s"
                _log.warning(told, question.log_label, error)
            await clock.sleep(renew_seconds)

    async def _store_answer(
        self, question: _SharedQuestion, lease: _AnswerLease, packed: bytes
    ) -> None:
        """Store an answer for all others; if that fails, only its caller has it."""
        id = self._kernel.ids.new()
        keep_ms = question.keep_ms
        content: Content | None = None
        try:
            content = await self._store_content(question, id, packed)
            if content is None:
                keep_ms = min(keep_ms, self._lease_ms)  # a later answer may be smaller
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
            _log.warning(
                "%s: an answer could not be stored for others: %s", question.log_label, error
            )
            await self._release_lease(lease)

    async def _store_content(
        self, question: _SharedQuestion, id: str, packed: bytes
    ) -> Content | None:
        """Return an answer as the content of an item; None if it is too large for this store."""
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
        """Delete the lease, so that another process can ask; if that fails, it expires."""
        with suppress(ConditionFailed, StoreError):
            await self._table.write(shared_answer.release_write(lease.key, lease.id))

    @property
    def _blobs(self) -> Blobs | None:
        store = self._kernel.store
        return store.blobs.with_purpose("answer") if store.has_blobs else None

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)
