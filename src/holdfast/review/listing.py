"""Lists the reviews of a tenant: merges the partitions of the index, and drops what is over."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, get_args

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.reviewing import is_awaited, review_expiry_ms
from holdfast.engine.runs.rows import read_row
from holdfast.errors import (
    InvalidQuery,
    InvalidRequest,
    ItemDamaged,
    JournalDamaged,
    ReviewNotFound,
    RunNotFound,
)
from holdfast.model.names import validated_name
from holdfast.model.people import validated_person
from holdfast.model.review import ReviewEntry, ReviewPage, ReviewStatus
from holdfast.records.head import TROUBLED, Head, head_of, is_past_ttl
from holdfast.records.keys import RunKey
from holdfast.records.review import (
    StoredReview,
    is_review_entry,
    review_list_partition,
    review_position,
    run_reviews_range,
    stored_review_of,
)
from holdfast.records.times import utc_datetime
from holdfast.review.loading import ReviewStore
from holdfast.storage import Between, Key
from holdfast.storage.item import Item

__all__ = ["ReviewFilter", "list_reviews", "review_filter"]

_STATUSES = frozenset({*get_args(ReviewStatus), "decided"})
# A page reads at most this many entries, even if few of them match.
_PAGE_ENTRIES_MAX = 2_000
_QUERY_ITEMS_MAX = 100
_ROWS_MAX = 100
# A page settles at most this many reviews that are over; the others stay hidden until the next one.
_SETTLED_MAX = 20
# When it was asked or decided, its run, and its name.
_CURSOR = re.compile(r"[0-9]{13}#[^#\x00-\x1f]{1,128}#[0-9a-f]{16}")
_FIRST, _LAST = "0", "9" * 14


class ReviewFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which reviews a list shows."""

    status: str = "pending"
    """A `ReviewStatus`, or ``decided`` for all that are not pending."""
    assignee: str | None = None
    overdue: bool = False
    run: str | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it shows pending reviews: the oldest first, others with the newest first."""
        return self.status == "pending"

    def matches(self, review: StoredReview, now_ms: int) -> bool:
        """Return whether the list shows a review."""
        if self.status not in (review.status, "decided") or (
            self.status == "decided" and review.status == "pending"
        ):
            return False
        if self.overdue and not review.is_overdue(now_ms):
            return False
        if self.assignee is None or not review.assignees:
            return True
        return self.assignee.casefold() in (name.casefold() for name in review.assignees)


def review_filter(
    *, status: object, assignee: object, overdue: object, run: object
) -> ReviewFilter:
    """Return the filter of a list, after all checks.

    Raises:
        InvalidQuery: an argument is wrong; ``field`` says which.
    """
    if not isinstance(status, str) or status not in _STATUSES:
        names = ", ".join(sorted(_STATUSES))
        raise InvalidQuery(f"status must be one of {names}, got {status!r:.80}", field="status")
    if type(overdue) is not bool:
        raise InvalidQuery(f"overdue must be True or False, got {overdue!r:.80}", field="overdue")
    try:
        return ReviewFilter(
            status=status,
            assignee=None if assignee is None else validated_person(assignee, "assignee"),
            overdue=overdue,
            run=None if run is None else validated_name(run, "run"),
        )
    except InvalidRequest as error:
        raise InvalidQuery(str(error), field=error.field) from None


async def list_reviews(
    store: ReviewStore, tenant: str, shown: ReviewFilter, *, limit: int, cursor: str | None
) -> ReviewPage:
    """Return a page of a tenant's reviews.

    Pending ones that their runs no longer await are left out, and settled. Damaged ones are left
    out, and noted.

    Raises:
        InvalidQuery: the cursor is not one of a list of reviews.
    """
    kernel, now_ms = store.kernel, store.kernel.clock.now_ms()
    found: list[ReviewEntry] = []
    candidates: list[tuple[str, StoredReview]] = []
    settling = _Settling(store)
    read_count = 0

    async def check_candidates() -> str | None:
        """Move candidates into the page; return the position at which it is full."""
        entries = await _checked(settling, [review for _, review in candidates], shown)
        for (position, _), entry in zip(candidates, entries, strict=True):
            if entry is not None:
                found.append(entry)
                if len(found) == limit:
                    return position
        candidates.clear()
        return None

    async for item in _entries(kernel, tenant, shown, _checked_cursor(cursor)):
        read_count += 1
        position = review_position(item)
        try:
            review = stored_review_of(item)
        except JournalDamaged as error:
            kernel.note_damage(item, error)
        else:
            if shown.matches(review, now_ms):
                candidates.append((position, review))
        is_last = read_count == _PAGE_ENTRIES_MAX
        if is_last or len(candidates) >= min(limit - len(found), _ROWS_MAX):
            full_at = await check_candidates()
            if is_last or full_at is not None:
                return ReviewPage(found, full_at or position)
    return ReviewPage(found, await check_candidates())


# --- what the index has ---------------------------------------------------------------------------


async def _entries(
    kernel: Kernel, tenant: str, shown: ReviewFilter, cursor: str | None
) -> AsyncIterator[Item]:
    """Yield the entries that a list may show, in its order, after the cursor."""
    if shown.run is not None:
        for item in await _run_entries(kernel, RunKey(tenant, shown.run), forward=shown.is_pending):
            position = review_position(item)
            if cursor is None or (position > cursor if shown.is_pending else position < cursor):
                yield item
        return
    shards = (await kernel.get_settings()).list_shards
    parts = [
        _shard_entries(
            kernel,
            review_list_partition(tenant, shard, pending=shown.is_pending),
            cursor,
            forward=shown.is_pending,
        )
        for shard in range(shards)
    ]
    async for item in _merged(parts, forward=shown.is_pending):
        yield item


async def _run_entries(kernel: Kernel, run: RunKey, *, forward: bool) -> list[Item]:
    """Return the entries of all reviews of one run."""
    try:
        head = await read_row(kernel, run)
    except RunNotFound:
        return []
    found = [
        item
        async for item in kernel.reviews.query_all(run.pk, run_reviews_range(head.generation))
        if is_review_entry(item["SK"])
    ]
    return sorted(found, key=review_position, reverse=not forward)


async def _shard_entries(
    kernel: Kernel, partition: str, cursor: str | None, *, forward: bool
) -> AsyncIterator[Item]:
    lower, upper = (cursor or _FIRST, _LAST) if forward else (_FIRST, cursor or _LAST)
    after: str | None = None
    while True:
        page = await kernel.lists.query(
            partition,
            Between(lower, upper),
            index="GSI2",
            forward=forward,
            limit=_QUERY_ITEMS_MAX,
            cursor=after,
        )
        for item in page.items:
            if item["GSI2SK"] != cursor:  # the range includes the cursor itself
                yield item
        after = page.cursor
        if after is None:
            return


async def _merged(parts: Sequence[AsyncIterator[Item]], *, forward: bool) -> AsyncIterator[Item]:
    """Merge streams that are sorted alike."""
    heap: list[tuple[_Position, int, Item]] = []

    async def push(number: int) -> None:
        async for item in parts[number]:
            heapq.heappush(heap, (_Position(review_position(item), forward), number, item))
            return

    for number in range(len(parts)):
        await push(number)
    while heap:
        _, number, item = heapq.heappop(heap)
        yield item
        await push(number)


class _Position(msgspec.Struct, frozen=True):
    """The position of an entry, in the order of its list."""

    text: str
    forward: bool

    def __lt__(self, other: _Position) -> bool:
        return self.text < other.text if self.forward else self.text > other.text


def _checked_cursor(cursor: object) -> str | None:
    if cursor is None or (isinstance(cursor, str) and _CURSOR.fullmatch(cursor)):
        return cursor
    raise InvalidQuery(f"not a cursor of a list of reviews: {cursor!r:.80}", field="cursor")


# --- what the runs say ----------------------------------------------------------------------------


class _Settling:
    """Settles a limited number of reviews that a list found to be over."""

    def __init__(self, store: ReviewStore) -> None:
        self.store = store
        self._left = _SETTLED_MAX

    async def settle(self, review: StoredReview) -> None:
        """Let a review say that it has ended; `ReviewStore.find` does that."""
        if self._left <= 0:
            return
        self._left -= 1
        try:
            await self.store.find(review.key.id, review.tenant)
        except (ReviewNotFound, JournalDamaged, ItemDamaged) as error:
            # The run is gone, and the entry goes at its ttl; or it is damaged.
            if not isinstance(error, ReviewNotFound):
                self.store.kernel.note_damage({"PK": review.key.run.pk, "SK": ""}, error)


async def _checked(
    settling: _Settling, reviews: Sequence[StoredReview], shown: ReviewFilter
) -> list[ReviewEntry | None]:
    """Return entries as callers see them; None for those that are not pending any more."""
    kernel = settling.store.kernel
    now_ms = kernel.clock.now_ms()
    if not shown.is_pending:
        return [review.shown(now_ms) for review in reviews]
    keys = list(dict.fromkeys(review.key.run.head for review in reviews))
    rows = await _read_rows(kernel, keys)
    checked: list[ReviewEntry | None] = []
    for review in reviews:
        head = rows[review.key.run.head]
        if head is None:
            checked.append(None)
        elif not is_awaited(head, review) or now_ms >= review_expiry_ms(head, review):
            if head.status not in TROUBLED:
                await settling.settle(review)
            checked.append(None)
        else:
            expires_at = utc_datetime(review_expiry_ms(head, review))
            entry = review.shown(now_ms)
            checked.append(msgspec.structs.replace(entry, expires_at=expires_at))
    return checked


async def _read_rows(kernel: Kernel, keys: Sequence[Key]) -> dict[Key, Head | None]:
    """Return the rows of runs, read after their reviews; None for one that is gone or damaged."""
    items: Sequence[Item | None]
    try:
        items = await kernel.heads.get_many(keys) if keys else ()
    except ItemDamaged:  # one of them: the others can be read
        if len(keys) == 1:
            return {keys[0]: None}
        return {
            key: row for each in keys for key, row in (await _read_rows(kernel, [each])).items()
        }
    return {key: _row(kernel, item) for key, item in zip(keys, items, strict=True)}


def _row(kernel: Kernel, item: dict[str, Any] | None) -> Head | None:
    if item is None:
        return None
    try:
        return None if is_past_ttl(item, kernel.clock.now_ms()) else head_of(item)
    except JournalDamaged as error:
        kernel.note_damage(item, error)
        return None
