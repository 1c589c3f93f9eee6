"""Finds runs that wait for a review of which no reviewer could be notified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.fleet.reader import FleetReader
from holdfast.fleet.verdict import Verdict, stalled_run, tenant_text
from holdfast.model.fleet import StalledRun
from holdfast.records.head import OPEN, Head
from holdfast.records.keys import SORTS_LAST
from holdfast.records.review import UNDELIVERED_NOTICES, ReviewKey, StoredReview, notice_key_of
from holdfast.storage import From
from holdfast.storage.item import Item
from holdfast.storage.ranges import ALL

__all__ = ["find_unnotified"]

_PAGE = 100
_ENTRIES_MAX = 2_000


async def find_unnotified(
    reader: FleetReader, *, tenant: str | None, limit: int, begin: str
) -> tuple[list[StalledRun], str | None]:
    """Return runs of a tenant, None for all, and where in the index to continue: see ``begin``.

    The second value is None at the end of all. A run that waits for several reviews is returned
    once.

    Raises:
        StoreError: the store cannot be read.
    """
    found: dict[tuple[str, str], StalledRun] = {}
    if not (await reader.kernel.get_settings()).reviews:
        return [], None
    for _ in range(_ENTRIES_MAX // _PAGE):
        if len(found) >= limit:
            break
        where = From(begin) if begin else ALL
        page = await reader.table.query(UNDELIVERED_NOTICES, where, index="GSI1", limit=_PAGE)
        stalled = await _judge(reader, page.items, tenant)
        for entry in page.items:
            sk = entry["GSI1SK"]
            begin = _start_after(sk, tenant)
            if sk in stalled:
                run = stalled[sk]
                found.setdefault((run.tenant, run.id), run)
            if len(found) >= limit:
                break
        else:
            if page.cursor is None:
                return list(found.values()), None
    return list(found.values()), begin


def _start_after(sk: str, tenant: str | None) -> str:
    """Return where a list goes on after an entry of the index.

    Callers see it in a cursor: it does not name a run of another tenant.
    """
    due = sk.partition("#")[0]
    own = f"{due}#{tenant}#"
    if tenant is None or sk.startswith(own):
        return f"{sk}{SORTS_LAST}"
    return own if sk < own else f"{due}{SORTS_LAST}"


async def _judge(
    reader: FleetReader, entries: Sequence[Item], tenant: str | None
) -> Mapping[str, StalledRun]:
    """Return the runs of a tenant that still wait, and whose reviewers do not know, by entry."""
    keys: dict[str, ReviewKey] = {}
    for entry in entries:
        try:
            key = notice_key_of(entry)
        except ValueError as error:
            reader.kernel.note_damage(entry, error)
        else:
            if tenant is None or key.run.tenant == tenant:
                keys[entry["GSI1SK"]] = key
    reviews = {
        review.key: review
        for review in await reader.read_reviews(list(keys.values()))
        if review.status == "pending" and review.undelivered
    }
    heads = {head.key: head for head in await reader.read_heads([key.run for key in reviews])}
    now_ms = reader.kernel.clock.now_ms()
    return {
        sk: stalled_run(heads[key.run], _verdict(reviews[key]), now_ms=now_ms)
        for sk, key in keys.items()
        if key in reviews and key.run in heads and _waits(heads[key.run], key)
    }


def _waits(head: Head, key: ReviewKey) -> bool:
    return head.generation == key.generation and head.status in OPEN


def _verdict(stored: StoredReview) -> Verdict:
    option = tenant_text(stored.tenant)
    return Verdict(
        reason="not_notified",
        since_ms=stored.created_ms,
        detail=f"no reviewer could be notified of its review {stored.key.id}: {stored.undelivered}",
        advice="correct the notifiers or the addresses of the reviewers, or decide: "
        f"holdfast review list{option}",
    )
