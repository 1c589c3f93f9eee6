"""Sends a notice through the notifiers, whatever they do: raise, hang, or take too long."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import NoAddress
from holdfast.model.durations import milliseconds_of
from holdfast.records.review import EVERYONE, PendingNotice, StoredReview
from holdfast.records.signing_keys import TOKEN_LIFETIME_MS_MAX
from holdfast.records.times import utc_datetime
from holdfast.redaction import excerpt
from holdfast.review.links import review_address, sign_review_link
from holdfast.review.log_notifier import LogNotifier
from holdfast.review.notice import Notice, Notifier
from holdfast.review.notice_schedule import SEND_SECONDS, NoticeAttempt
from holdfast.review.options import ReviewOptions
from holdfast.review.templates import NoticeFacts

__all__ = ["NoticeSender"]

_ERROR_CHARS_MAX = 200
# A notifier that hangs so often in a row is left alone for a while.
_HANGS_BEFORE_REST = 3
_REST_SECONDS_FIRST = 15.0
_REST_SECONDS_MAX = 300.0


class NoticeSender:
    """The notifiers of a process."""

    def __init__(self, kernel: Kernel, options: ReviewOptions) -> None:
        notifiers = options.notifiers or (LogNotifier(),)
        self.options = options
        self._kernel = kernel
        self._clock = kernel.clock
        self._notifiers = notifiers
        # Only the log: then it is what tells reviewers.
        self._log_counts = all(isinstance(each, LogNotifier) for each in notifiers)
        self._hangs: dict[str, int] = {}
        self._rests_until: dict[str, float] = {}
        self._left: set[asyncio.Task[str | None]] = set()

    async def send(
        self,
        review: StoredReview,
        notice: PendingNotice,
        to: Sequence[str],
        *,
        question: str,
        shown: Any,
    ) -> NoticeAttempt:
        """Send a notice to each of these, through every notifier that has not told them yet."""
        outcomes = await asyncio.gather(
            *(self._send_to(review, notice, name, question, shown) for name in to)
        )
        sent: dict[str, Sequence[str]] = {}
        reached: set[str] = set()
        errors: dict[str, str] = {}
        for name, outcome in zip(to, outcomes, strict=True):
            took = [notifier for notifier, error in outcome.items() if error == ""]
            if took:
                sent[name] = took
            told = {*notice.sent.get(name, ()), *took} & self._counting
            if told:
                reached.add(name)
            failed = [f"{notifier}: {error}" for notifier, error in outcome.items() if error]
            if failed:
                errors[name] = "; ".join(failed)
            elif not told:
                who = "reviewers" if name == EVERYONE else repr(name)
                errors[name] = f"no notifier has an address of {who}"
        return NoticeAttempt(sent, reached, errors)

    def close(self) -> None:
        """Give up attempts that went on after their time."""
        for task in self._left:
            task.cancel()

    @property
    def _counting(self) -> set[str]:
        return {
            each.name
            for each in self._notifiers
            if self._log_counts or not isinstance(each, LogNotifier)
        }

    async def _send_to(
        self, review: StoredReview, pending: PendingNotice, to: str, question: str, shown: Any
    ) -> dict[str, str | None]:
        """Return the error of each notifier; empty if it took the notice, None without address."""
        waiting = [each for each in self._notifiers if each.name not in pending.sent.get(to, ())]
        try:
            notice = await self._made(review, pending, to, question, shown)
        except Exception as error:
            return {each.name: f"the notice cannot be made: {_text(error)}" for each in waiting}
        errors = await asyncio.gather(*(self._attempt(each, notice) for each in waiting))
        return {each.name: error for each, error in zip(waiting, errors, strict=True)}

    async def _made(
        self, review: StoredReview, pending: PendingNotice, to: str, question: str, shown: Any
    ) -> Notice:
        now_ms = self._clock.now_ms()
        entry, reviewer = review.shown(now_ms), None if to == EVERYONE else to
        # A "~" inside of a word needs no quotes.
        is_plain = shlex.quote(review.run) == review.run
        command = f"holdfast review show {entry.id if is_plain else shlex.quote(entry.id)}"
        if review.tenant != "default":
            command += f" --tenant {shlex.quote(review.tenant)}"
        facts = NoticeFacts(
            reviewer=reviewer,
            review=entry,
            question=question,
            link=await self._link(review, reviewer),
            command=command,
            shown=shown,
        )
        subject, text, page = self.options.template(pending.kind).rendered(facts)
        return Notice(
            id=_notice_id(review, pending, to),
            kind=pending.kind,
            reviewer=reviewer,
            review=entry,
            question=question,
            link=facts.link,
            page=self._page(review),
            command=command,
            expires_at=entry.expires_at,
            at=utc_datetime(now_ms),
            subject=subject,
            text=text,
            html=page,
        )

    def _page(self, review: StoredReview) -> str | None:
        url = self._kernel.public_url
        return None if url is None else f"{url}/reviews/{quote(review.key.id, safe='~')}"

    async def _link(self, review: StoredReview, reviewer: str | None) -> str | None:
        kernel = self._kernel
        if reviewer is None or kernel.public_url is None:
            return self._page(review)
        ends_ms = [review.expires_ms, kernel.clock.now_ms() + TOKEN_LIFETIME_MS_MAX]
        if self.options.link_expires is not None:
            span_ms = milliseconds_of(self.options.link_expires, "link_expires")
            ends_ms.append(kernel.clock.now_ms() + span_ms)
        expires_ms = min(end for end in ends_ms if end is not None)
        token = await sign_review_link(kernel, review.key, reviewer, expires_ms=expires_ms)
        return review_address(kernel, token)

    async def _attempt(self, notifier: Notifier, notice: Notice) -> str | None:
        rest = self._rests_until.get(notifier.name, 0.0) - self._clock.monotonic()
        if rest > 0:
            return f"it does not answer, and is left alone for {rest:.0f} s"
        task = asyncio.create_task(_outcome(notifier, notice), name="holdfast notice")
        timer = asyncio.ensure_future(self._clock.sleep(SEND_SECONDS))
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._note_hang(notifier.name)
                return f"no answer within {SEND_SECONDS:g} s"
        finally:
            timer.cancel()
            if not task.done():
                # Not awaited: it may ignore that it was cancelled.
                self._left.add(task)
                task.add_done_callback(self._left.discard)
                task.cancel()
        self._hangs.pop(notifier.name, None)
        return "CancelledError" if task.cancelled() else task.result()

    def _note_hang(self, name: str) -> None:
        hangs = self._hangs[name] = self._hangs.get(name, 0) + 1
        if hangs >= _HANGS_BEFORE_REST:
            seconds = _REST_SECONDS_FIRST * 2.0 ** (hangs - _HANGS_BEFORE_REST)
            self._rests_until[name] = self._clock.monotonic() + min(seconds, _REST_SECONDS_MAX)


async def _outcome(notifier: Notifier, notice: Notice) -> str | None:
    """Return the error of an attempt; empty if there was none, None without an address."""
    try:
        await notifier.send(notice)
    except NoAddress:
        return None
    except (Exception, SystemExit) as error:
        return _text(error)
    return ""


def _text(error: BaseException) -> str:
    notes: list[str] = getattr(error, "__notes__", [])
    told = ": ".join([*notes, type(error).__name__, str(error)]).rstrip(": ")
    # An error may quote an address with credentials.
    return excerpt(told, _ERROR_CHARS_MAX)


def _notice_id(review: StoredReview, notice: PendingNotice, to: str) -> str:
    kind, planned_ms = notice.place
    text = f"{review.key.entry.pk}\0{review.key.entry.sk}\0{kind}\0{planned_ms}\0{to.casefold()}"
    return f"ntc_{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
