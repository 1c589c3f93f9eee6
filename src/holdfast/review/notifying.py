"""Sends the notices of reviews: looks for those that are due, and records what was sent.

A process leases the entry of a review before it sends a notice, and records afterwards who got it.
If it dies in between, another process sends the notice again when the lease has ended: a reviewer
gets it at least once, and its id tells a repeat. Nothing here holds up a run: its review is stored,
with its notices, before any of this begins.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import msgspec

from holdfast.display import get_logger
from holdfast.engine.runs.review_outcomes import find_decision
from holdfast.engine.runs.reviewing import (
    LoadedReview,
    append_action,
    load_review,
    write_entry,
)
from holdfast.engine.runs.rows import read_row
from holdfast.engine.worker.tasks import sleep_or_wake
from holdfast.errors import (
    HoldfastError,
    ItemDamaged,
    JournalDamaged,
    RunNotFound,
    StoreClosed,
    StoreError,
)
from holdfast.model.durations import seconds_of
from holdfast.records.head import TROUBLED
from holdfast.records.index_keys import due_by
from holdfast.records.review import (
    PendingNotice,
    ReviewKey,
    StoredReview,
    notice_due_ms_of,
    notice_key_of,
    notice_partitions,
    stored_review_of,
)
from holdfast.records.settings import note_notifiers_write
from holdfast.review.delegation import delegate_review, escalate_review
from holdfast.review.loading import ReviewStore
from holdfast.review.notice_schedule import (
    LEASE_MS,
    NoticeAttempt,
    after_attempt,
    due_notice,
    notices_after,
    postponed_ms,
    recipients,
    undelivered_after,
)
from holdfast.review.notice_sending import NoticeSender

__all__ = ["NoticeLoop"]

_log = get_logger("holdfast.reviews")

_PAGE_ITEMS = 100
_PAGES_MAX = 10
_CONCURRENCY_MAX = 64
_KNOWN_MAX = 10_000
# How long attempts may go on when the process stops; then others repeat them after the lease.
_STOP_SECONDS = 3.0
# How often a process with notifiers says so, and for how long that counts.
_SAY_MS = 12 * 3600 * 1000
_SAID_MS = 4 * _SAY_MS
# How often an action is appended again because another one came first.
_APPENDS_MAX = 20


class NoticeLoop:
    """Sends the notices of all tenants of a store, beside others that do the same.

    A process without notifiers, which only logs, leaves notices to those that have some.
    """

    def __init__(self, store: ReviewStore, sender: NoticeSender) -> None:
        self._store = store
        self._kernel = store.kernel
        self._options = sender.options
        self._sender = sender
        self._poll_seconds = seconds_of(sender.options.poll, "poll")
        self._tasks: dict[ReviewKey, asyncio.Task[None]] = {}
        # Reviews to look at at a time that comes before the next poll.
        self._due_ms: dict[ReviewKey, int] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None

    async def __aenter__(self) -> NoticeLoop:
        self._loop = asyncio.create_task(self._run(), name="holdfast notices")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._wake.set()
        if self._loop is not None:
            await asyncio.wait([self._loop, *self._tasks.values()], timeout=_STOP_SECONDS)
            left = (self._loop, *self._tasks.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        self._sender.close()

    # --- what is due ------------------------------------------------------------------------------

    async def _run(self) -> None:
        clock = self._kernel.clock
        polled_at = clock.monotonic() - self._poll_seconds
        with self._kernel.notice_nudges.listen(self._on_nudge):
            while not self._stopping:
                try:
                    is_poll = clock.monotonic() - polled_at >= self._poll_seconds
                    if is_poll:
                        polled_at = clock.monotonic()
                    await self._send_due(poll=is_poll)
                except StoreClosed:
                    return
                except HoldfastError as error:
                    _log.warning("notices cannot be sent, and are tried again: %s", error)
                except Exception:
                    _log.exception("notices cannot be sent, and are tried again")
                await self._sleep(polled_at + self._poll_seconds - clock.monotonic())

    def _on_nudge(self, review: ReviewKey) -> None:
        """Look at a review that this process has just written."""
        self._look_at(review, self._kernel.clock.now_ms())
        self._wake.set()

    def _look_at(self, review: ReviewKey, due_ms: int) -> None:
        if len(self._due_ms) < _KNOWN_MAX or review in self._due_ms:
            self._due_ms[review] = due_ms

    async def _sleep(self, seconds: float) -> None:
        """Wait for a nudge, for the next poll, or until the next known notice is due."""
        now_ms = self._kernel.clock.now_ms()
        next_ms = min(
            (due_ms for key, due_ms in self._due_ms.items() if key not in self._tasks), default=None
        )
        if next_ms is not None:
            seconds = min(seconds, (next_ms - now_ms) / 1000)
        await sleep_or_wake(self._kernel.clock, max(seconds, 0.01), self._wake)
        self._wake.clear()

    async def _may_send(self) -> bool:
        """Return whether there are reviews, and no process with notifiers besides this one."""
        kernel = self._kernel
        settings = await kernel.get_settings(seconds_old_max=4 * self._poll_seconds)
        now_ms = kernel.clock.now_ms()
        if not self._options.are_configured:
            is_left_to_others = now_ms - settings.notifiers_ms < _SAID_MS
            return settings.reviews and not is_left_to_others
        if now_ms - settings.notifiers_ms >= _SAY_MS:
            await kernel.resolve_write(
                kernel.settings_table, note_notifiers_write(now_ms, token=kernel.ids.new())
            )
            kernel.adopt_settings(msgspec.structs.replace(settings, notifiers_ms=now_ms))
        return settings.reviews

    async def _send_due(self, *, poll: bool) -> None:
        """Begin with the notices that are due; a poll also finds those due before the next one."""
        if not await self._may_send():
            self._due_ms.clear()
            return
        if poll:
            for partition in notice_partitions():
                await self._read_due(partition)
        await self._begin_due()

    async def _read_due(self, partition: str) -> None:
        until = due_by(self._kernel.clock.now_ms() + round(self._poll_seconds * 1000))
        cursor: str | None = None
        for _ in range(_PAGES_MAX):
            page = await self._kernel.due_notices.query(
                partition, until, index="GSI1", limit=_PAGE_ITEMS, cursor=cursor
            )
            for entry in page.items:
                try:
                    key = notice_key_of(entry)
                    due_ms = notice_due_ms_of(entry)
                except ValueError as error:
                    self._kernel.note_damage(entry, error)
                else:
                    self._look_at(key, due_ms)
            cursor = page.cursor
            if cursor is None or self._stopping:
                return

    async def _begin_due(self) -> None:
        """Handle the reviews whose time has come, each in a task of its own."""
        now_ms = self._kernel.clock.now_ms()
        due = sorted((at_ms, key.id, key) for key, at_ms in self._due_ms.items() if at_ms <= now_ms)
        for _, _, key in due:
            while len(self._tasks) >= _CONCURRENCY_MAX and not self._stopping:
                await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if self._stopping:
                return
            if key in self._tasks:  # it looks again before it ends
                continue
            del self._due_ms[key]
            task = asyncio.create_task(self._handle(key), name=f"holdfast notices of {key.id}")
            self._tasks[key] = task
            task.add_done_callback(lambda _, key=key: self._on_handled(key))

    def _on_handled(self, key: ReviewKey) -> None:
        self._tasks.pop(key, None)
        if key in self._due_ms:
            self._wake.set()

    # --- one review -------------------------------------------------------------------------------

    async def _handle(self, key: ReviewKey) -> None:
        try:
            while not self._stopping and await self._step(key):
                pass
        except StoreClosed:
            return
        except (ItemDamaged, JournalDamaged) as error:
            self._kernel.note_damage({"PK": key.entry.pk, "SK": key.entry.sk}, error)
        except StoreError as error:
            _log.warning("%s: its notices are tried again: %s", key.log_name, error)
        except HoldfastError as error:
            _log.warning("%s: its notices were not sent: %s", key.log_name, error)
        except Exception:
            _log.exception("%s: its notices were not sent", key.log_name)

    async def _step(self, key: ReviewKey) -> bool:
        """Send one notice that is due; return whether another one may be."""
        kernel = self._kernel
        item = await kernel.reviews.get(key.entry)
        if item is None:
            return False
        stored, now_ms = stored_review_of(item), kernel.clock.now_ms()
        if not stored.has_due_notice(now_ms):
            self._look_again(stored)
            return False
        loaded = await load_review(kernel, key)
        if loaded is None or not await self._is_open(loaded):
            return False
        notice = due_notice(stored, now_ms)
        if notice is None:  # all attempts were given up
            return False
        leased_ms = now_ms + LEASE_MS
        leased = msgspec.structs.replace(stored, leased_ms=leased_ms)
        if await write_entry(kernel, item, leased) is None:
            return True  # it was changed meanwhile: read it again
        assigned = await self._assign(key, notice)
        # With other assignees, too few may be left to approve: then the votes decide.
        if assigned is None or (assigned.votes and not await self._is_open(assigned)):
            return False
        await self._send(assigned, notice, leased_ms=leased_ms)
        return True

    async def _assign(self, key: ReviewKey, notice: PendingNotice) -> LoadedReview | None:
        """Return a review after those whom a notice concerns are its assignees; None if decided."""
        if notice.kind == "escalation":
            return await escalate_review(self._store, key, notice.to)
        delegate = None if notice.attempts else self._sender.options.delegate
        return await delegate_review(self._store, key, delegate)

    async def _send(self, loaded: LoadedReview, planned: PendingNotice, *, leased_ms: int) -> None:
        """Send a notice, and record what became of it."""
        notice, attempt = _find(loaded.stored, planned) or planned, NoticeAttempt({}, (), {})
        votes, round = loaded.votes, loaded.state.round
        voters = [vote.reviewer for vote in votes if vote.round == round]
        voided = [vote.reviewer for vote in votes if vote.round != round]
        to = recipients(notice, loaded.stored, voters, voided=voided)
        notice = msgspec.structs.replace(notice, to=to)
        if to:
            attempt = await self._sender.send(
                loaded.stored,
                notice,
                to,
                question=loaded.content.question,
                shown=loaded.content.shown,
            )
        await self._record(loaded, notice, attempt, leased_ms=leased_ms)

    def _look_again(self, stored: StoredReview) -> None:
        """Look at a review when its next notice is due, if that is before the next poll."""
        due_ms = stored.notice_due_ms
        span_ms = round(self._poll_seconds * 1000)
        if due_ms is not None and due_ms <= self._kernel.clock.now_ms() + span_ms:
            self._look_at(stored.key, due_ms)

    async def _is_open(self, loaded: LoadedReview) -> bool:
        """Return whether reviewers must still be told; if not, change its notices accordingly.

        What an earlier process left undone of a decision is done.
        """
        kernel, stored = self._kernel, loaded.stored
        try:
            head = await read_row(kernel, loaded.key.run)
        except RunNotFound:
            head = None
        if head is None or head.generation != stored.generation:
            await write_entry(kernel, loaded.item, msgspec.structs.replace(stored, notices=()))
            return False
        loaded, decision = await find_decision(kernel, self._store.workers, head, loaded)
        if decision is None and head.status not in TROUBLED:
            return True
        if loaded.stored.status == "pending":
            # The run has failed, and may be retried; or it has expired, and may be extended.
            await self._postpone(loaded)
        return False

    async def _postpone(self, loaded: LoadedReview) -> None:
        """Look at a review again later."""
        stored, now_ms = loaded.stored, self._kernel.clock.now_ms()
        again_ms = postponed_ms(stored, now_ms)
        later = tuple(
            notice
            if notice.due_ms > now_ms
            else msgspec.structs.replace(notice, due_ms=again_ms, planned_ms=notice.place[1])
            for notice in stored.notices
        )
        changed = msgspec.structs.replace(stored, notices=later)
        await write_entry(self._kernel, loaded.item, changed)

    # --- what was sent ----------------------------------------------------------------------------

    async def _record(
        self, loaded: LoadedReview, notice: PendingNotice, attempt: NoticeAttempt, *, leased_ms: int
    ) -> None:
        """Write down who got a notice, in the trail and in the entry, and what is left to send."""
        kernel, key = self._kernel, loaded.key
        now_ms = kernel.clock.now_ms()
        left = after_attempt(notice, attempt, now_ms=now_ms, random=kernel.ids.random())
        given_up = dict(attempt.errors) if left is None else None
        if attempt.sent or given_up:
            data: dict[str, Any] = {
                "notice": notice.kind,
                "to": {name: list(notifiers) for name, notifiers in attempt.sent.items()},
            }
            await self._append(loaded, data | ({"failed": given_up} if given_up else {}))
        while True:
            item = await kernel.reviews.get(key.entry)
            if item is None:
                return
            stored = stored_review_of(item)
            if stored.status != "pending":
                return
            changed = msgspec.structs.replace(
                stored,
                notices=notices_after(stored, notice, left, now_ms=now_ms),
                leased_ms=0 if stored.leased_ms == leased_ms else stored.leased_ms,
                undelivered=undelivered_after(stored, notice, attempt, now_ms=now_ms),
            )
            if await write_entry(kernel, item, changed) is not None:
                break
        self._tell_operators(stored, changed, notice, attempt, is_over=left is None)

    async def _append(self, loaded: LoadedReview, data: dict[str, Any]) -> None:
        """Append what was sent to the trail."""
        for _ in range(_APPENDS_MAX):
            if await append_action(self._kernel, loaded, "notified", by=None, data=data):
                return
            read = await load_review(self._kernel, loaded.key)
            if read is None:
                return
            loaded = read
        _log.warning("%s: the trail does not say who was notified", loaded.key.log_name)

    def _tell_operators(
        self,
        before: StoredReview,
        after: StoredReview,
        notice: PendingNotice,
        attempt: NoticeAttempt,
        *,
        is_over: bool,
    ) -> None:
        key = before.key
        if after.undelivered and not before.undelivered:
            _log.error("%s: no reviewer could be notified: %s", key.log_name, after.undelivered)
        for name, error in attempt.errors.items():
            again = "given up" if is_over else "tried again"
            _log.warning(
                "%s: the notice (%s) to %s is %s: %s",
                key.log_name,
                notice.kind,
                name,
                again,
                error,
            )


def _find(review: StoredReview, notice: PendingNotice) -> PendingNotice | None:
    """Return a notice as the entry of its review has it now."""
    return next((each for each in review.notices if each.place == notice.place), None)
