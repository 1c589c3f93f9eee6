"""Reviews as callers see them, and what was changed since a reviewer saw one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.display import get_logger
from holdfast.engine.runs.reviewing import LoadedReview, review_expiry_ms
from holdfast.model.review import Review
from holdfast.records.head import Head
from holdfast.records.review_state import ReviewState, folded_review, shown_decision
from holdfast.records.times import utc_datetime

__all__ = ["difference_since", "shown_review"]

_log = get_logger("holdfast.reviews")
_VALUE_CHARS_MAX = 80
_EVERYBODY = "everybody"


def shown_review(
    head: Head, loaded: LoadedReview, decision: Mapping[str, Any] | None, *, now_ms: int
) -> Review:
    """Return a review as callers see it; ``decision`` is how it was decided."""
    stored, state, content = loaded.stored, loaded.state, loaded.content
    if not (is_intact := loaded.is_intact):
        _log.error("%s was changed in the store: its trail is broken", loaded.key.log_name)
    pending = decision is None
    due_ms = stored.due_ms
    return Review(
        id=loaded.key.id,
        run=stored.run,
        tenant=stored.tenant,
        graph=stored.graph,
        node=stored.node,
        question=content.question,
        status="pending" if decision is None else decision["status"],
        note=content.note,
        shown=content.shown,
        form=content.form,
        values=state.values,
        changes=_changes(loaded, decision),
        tool=", ".join(each.tool for each in content.tools) or None,
        assignees=state.assignees,
        claimed_by=state.claimed_by,
        quorum=content.quorum,
        votes=tuple(vote.shown() for vote in loaded.votes if vote.round == state.round),
        former_votes=tuple(vote.shown() for vote in loaded.votes if vote.round != state.round),
        created_at=utc_datetime(stored.created_ms),
        expires_at=utc_datetime(review_expiry_ms(head, stored)),
        due_at=None if due_ms is None else utc_datetime(due_ms),
        overdue=pending and due_ms is not None and now_ms >= due_ms,
        undelivered=stored.undelivered or None,
        decision=None if decision is None else shown_decision(decision),
        trail=tuple(action.shown() for action in loaded.actions),
        is_intact=is_intact,
        digest=loaded.digest,
        rendered=state.rendered(loaded.digest),
    )


def _changes(loaded: LoadedReview, decision: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what was changed in the values since the run asked, for people."""
    content = loaded.content
    if content.form is None:
        return ()
    final = (decision or {}).get("values", loaded.state.values)
    return tuple(_value_difference(content.values, final))


def difference_since(loaded: LoadedReview, seen: str) -> tuple[str, ...]:
    """Return what was changed in a review since a page with that hash showed it, for people."""
    for count in range(len(loaded.actions), -1, -1):
        before = folded_review(loaded.content, loaded.actions[:count])
        if before.rendered(loaded.digest) == seen:
            return _difference(before, loaded.state)
    return ("what was shown before is not known",)


def _difference(before: ReviewState, after: ReviewState) -> tuple[str, ...]:
    lines = _value_difference(before.values, after.values)
    if before.assignees != after.assignees:
        old, new = (", ".join(each.assignees) or _EVERYBODY for each in (before, after))
        lines.append(f"assignees: {old} → {new}")
    if before.round != after.round and not lines:
        lines.append("values: edited, and now as they were")
    return tuple(lines)


def _value_difference(before: Any, after: Any) -> list[str]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"values: {_text(before)} → {_text(after)}"]
    old, new = cast(dict[str, Any], before), cast(dict[str, Any], after)
    return [
        f"{name}: {_text(old.get(name))} → {_text(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name) or (name in old) != (name in new)
    ]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"
