"""Formats reviews for a terminal. What they show comes from outside, so it is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from holdfast.cli.facts import cut_to_line
from holdfast.cli.text import columns, compact, pretty
from holdfast.display import printable
from holdfast.model.moments import utc_text
from holdfast.model.review import (
    NOTICE_WORDS,
    Review,
    ReviewAction,
    ReviewDecision,
    ReviewEntry,
    ReviewVote,
)

__all__ = ["decision_text", "review_lines", "review_list_lines", "trail_cells"]

# The columns that a narrow terminal loses first: the question, people, times.
_CUT = (6, 4, 3, 0, 5)
_EVERY_REVIEWER = "every reviewer"


def review_list_lines(reviews: Sequence[ReviewEntry]) -> Iterable[str]:
    """Return reviews as lines of a table."""
    if not reviews:
        return ()
    headings = ("ASKED", "STATUS", "ID", "EXPIRES", "ASSIGNEES", "GRAPH", "QUESTION")
    return columns([headings, *map(_cells, reviews)], cut=_CUT)


def _cells(entry: ReviewEntry) -> tuple[str, ...]:
    status = f"{entry.status}, overdue" if entry.overdue else entry.status
    people = ", ".join(entry.assignees) or _EVERY_REVIEWER
    if entry.claimed_by is not None:
        people = f"claimed by {entry.claimed_by}"
    if entry.decided_by is not None:
        status = f"{entry.status} by {entry.decided_by}"
    return (
        utc_text(entry.created_at),
        status,
        entry.id,
        "" if entry.expires_at is None else utc_text(entry.expires_at),
        people,
        entry.graph,
        cut_to_line(entry.question),
    )


def decision_text(decision: ReviewDecision[Any]) -> str:
    """Return how a review was decided, in one line."""
    by = "" if decision.by is None else f" by {decision.by}"
    comment = f": {decision.comment}" if decision.comment else ""
    return f"{decision.status}{by} at {utc_text(decision.at)}{comment}"


def review_lines(review: Review) -> Iterator[str]:
    """Yield a review as text: the question, what is shown, the values, the votes, the trail."""
    for line in review.question.splitlines():
        yield printable(line)
    yield ""
    yield from columns([*_facts(review)])
    if review.shown is not None:
        yield from ("", "shown:", pretty(review.shown))
    if review.form is not None:
        yield from _values(review, review.form)
    if review.votes:
        yield from ("", "votes:")
        yield from columns([_vote(each) for each in review.votes])
    if review.trail:
        yield from ("", "trail:")
        yield from columns([trail_cells(each) for each in review.trail])


def _values(review: Review, form: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that were approved, else the current ones, and what people changed."""
    word = "arguments" if review.tool is not None else "values"
    decision: ReviewDecision[Any] | None = review.decision
    if decision is not None and decision.approved:
        yield from ("", f"approved {word}:", pretty(decision.values))
    else:
        yield from ("", f"{word}:", pretty(review.values))
    if review.changes:
        yield f"changed since the run asked ({len(review.changes)}):"
        yield from (f"  {printable(line)}" for line in review.changes)
    if decision is None:
        yield from _fields(form)


def _vote(vote: ReviewVote) -> tuple[str, ...]:
    voted = "approve" if vote.approve else "reject"
    return utc_text(vote.at), _actor(vote.by, vote.through), voted, vote.comment


def _facts(review: Review) -> Iterator[tuple[str, str]]:
    yield "id", review.id
    yield "status", review.status + (", overdue" if review.overdue else "")
    if review.decision is not None:
        yield "decision", decision_text(review.decision)
    yield "run", f"{review.run} ({review.graph}, node {review.node})"
    if review.tool is not None:
        yield "tool", review.tool
    yield "assignees", ", ".join(review.assignees) or _EVERY_REVIEWER
    if review.claimed_by is not None:
        yield "claimed by", review.claimed_by
    if review.quorum > 1:
        yield "quorum", f"{review.quorum} votes; {len(review.votes)} so far"
    yield "asked", utc_text(review.created_at)
    if review.due_at is not None:
        yield "overdue at", utc_text(review.due_at)
    if review.expires_at is not None:
        yield "expires", utc_text(review.expires_at)
    if review.note:
        yield "asked again", review.note
    if not review.is_intact:
        yield "attention", "what was shown, or the trail, was changed in the store"
    if review.undelivered is not None:
        yield "attention", f"no reviewer could be notified: {review.undelivered}"
    yield "seen", review.rendered
    if review.status == "pending":
        yield "to decide", f"holdfast review approve {shlex.quote(review.id)} (or reject)"


def _fields(form: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names and types of the fields of a form."""
    properties: dict[str, Any] = form.get("properties") or {}
    required: Sequence[str] = form.get("required") or ()
    rows = [
        (f"  {name}", _kind(schema), "required" if name in required else "")
        for name, schema in properties.items()
    ]
    if rows:
        yield "fields:"
        yield from columns(rows)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    return kind if isinstance(kind, str) else cut_to_line(compact(schema))


def trail_cells(action: ReviewAction) -> tuple[str, ...]:
    """Return an entry of the trail: when, what, who, and what people want to know of it."""
    given = action.data
    data = dict(cast(dict[str, Any], given if isinstance(given, dict) else {}))
    through = data.pop("through", None)
    data.pop("key", None)
    word, details = action.kind, _details(action, data)
    if action.kind == "notified":
        word = NOTICE_WORDS.get(data.get("notice", ""), word)
    return utc_text(action.at), word, _actor(action.by or "holdfast", through), details


def _actor(person: str, through: str | None) -> str:
    return person if through is None else f"{person} (through {through})"


def _details(action: ReviewAction, data: Mapping[str, Any]) -> str:
    if action.kind == "decided":
        status, comment = str(data.get("status", "")), data.get("comment")
        parts = [f"{status}: {comment}" if comment else status]
        if "values" in data:
            parts.append(f"values {compact(data['values'])}")
        return cut_to_line("; ".join(parts))
    if action.kind == "commented":
        return cut_to_line(str(data.get("text", "")))
    shown = {name: value for name, value in data.items() if name != "notice"}
    return cut_to_line(compact(shown)) if shown else ""
