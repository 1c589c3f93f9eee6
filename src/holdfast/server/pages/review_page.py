"""The page of a review: what is asked, the data, the form, and what was done so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from litestar import Response

from holdfast.app import Holdfast
from holdfast.model.review import NOTICE_WORDS, Review, ReviewAction, ReviewDecision
from holdfast.records.review_state import is_same_person
from holdfast.server.pages.form_fields import FormField, leaves, review_form
from holdfast.server.pages.page import PageRequest, rendered
from holdfast.server.pages.shown_data import shown_parts

__all__ = ["Banner", "Entered", "Viewing", "review_response"]

_TRAIL_MAX = 200
_NOTICE_SAID = {"escalated": "escalated it to"}


class Viewing(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks at which review, and with what right."""

    hf: Holdfast
    id: str
    tenant: str
    person: str
    path: str
    """The path of the page, to which its forms are posted."""
    by_link: bool = False
    form_token: str = ""
    """What guards the forms of a person who is signed in; a link guards itself."""
    is_operator: bool = False
    may_sign_out: bool = False
    is_open: bool = False
    """Whether the server has no authentication, so that people choose their names."""


class Banner(msgspec.Struct, frozen=True):
    """A message at the top of a page."""

    kind: str
    """``done``, ``wrong`` or ``changed``."""
    title: str
    lines: tuple[str, ...] = ()


class Entered(msgspec.Struct, kw_only=True):
    """What a person has entered, to be shown again."""

    form: FormField | None = None
    comment: str = ""
    to: str = ""
    text: str = ""
    after_change: bool = False
    """Whether the review was changed since the person saw it."""


def review_response(
    request: PageRequest,
    review: Review,
    viewing: Viewing,
    *,
    status: int = 200,
    notices: Sequence[Banner] = (),
    entered: Entered | None = None,
) -> Response[bytes]:
    """Return the page of a review."""
    entered = entered or Entered()
    form = entered.form
    if form is None and review.form is not None:
        form = review_form(review.form, review.values)
    now = datetime.fromtimestamp(viewing.hf.clock.now_ms() / 1000, UTC)
    hindrance = _hindrance(review, viewing.person)
    context: dict[str, Any] = {
        "review": review,
        "viewing": viewing,
        "now": now,
        "data": None if review.shown is None else shown_parts(review.shown),
        "form": form,
        "was": json.dumps(review.values),
        "values": None if review.form is None else shown_parts(_final_values(review)),
        "may_decide": review.status == "pending" and not hindrance,
        "hindrance": hindrance,
        "may_handle": viewing.is_operator or _is_assigned(review, viewing.person),
        "may_claim": _is_assigned(review, viewing.person),
        "notices": notices,
        "wrong": [] if form is None else [each for each in _with_groups(form) if each.error],
        "entered": entered,
        "approvals": sum(vote.approve for vote in review.votes),
        "trail": [_line_of(action) for action in review.trail[-_TRAIL_MAX:]],
        "trail_cut": max(0, len(review.trail) - _TRAIL_MAX),
        "is_claimer": is_same_person(review.claimed_by or "", viewing.person),
    }
    return rendered(request, "review.html", context, status=status)


def _final_values(review: Review) -> Any:
    decision: ReviewDecision[Any] | None = review.decision
    return review.values if decision is None or decision.values is None else decision.values


def _hindrance(review: Review, person: str) -> str:
    """Return why a person cannot decide a pending review; empty if they can."""
    if not _is_assigned(review, person):
        return f"This review is assigned to {', '.join(review.assignees)}."
    if review.claimed_by is not None and not is_same_person(review.claimed_by, person):
        return f"{review.claimed_by} has claimed this review."
    if any(is_same_person(vote.by, person) for vote in review.votes):
        return "You have voted. The review is decided when enough others have voted, too."
    return ""


def _is_assigned(review: Review, person: str) -> bool:
    return not review.assignees or any(is_same_person(each, person) for each in review.assignees)


def _with_groups(form: FormField) -> list[FormField]:
    return [*([form] if form.kind == "group" and form.error else []), *leaves(form)]


def _line_of(action: ReviewAction) -> dict[str, Any]:
    """Return one entry of the trail as a page shows it: who did what, and details of it."""
    data = action.data
    given = cast(dict[str, Any], data if isinstance(data, dict) else {})
    note = str(given.get("comment") or given.get("text") or "")
    match action.kind:
        case "claimed":
            said = f"took it over from {given['from']}" if given.get("from") else "claimed it"
        case "released":
            said = "released it"
        case "reassigned":
            said = f"reassigned it to {_people(given.get('to'))}"
            note = note or str(given.get("reason") or "")
        case "commented":
            said, note = "commented", note or (data if isinstance(data, str) else "")
        case "edited":
            said = "changed the values"
        case "notified":
            word = NOTICE_WORDS.get(str(given.get("notice")), "notified")
            said = f"{_NOTICE_SAID.get(word, word)} {_people(given.get('to'))}"
            if given.get("failed"):
                note = f"It did not reach {_people(given['failed'])}."
            if not given.get("to"):
                said = "could not send a notice"
        case "decided":
            status = str(given.get("status") or "decided")
            said = {"expired": "let it expire", "withdrawn": "withdrew it"}.get(status, status)
    who = action.by or "Holdfast"
    if given.get("through"):
        who = f"{who} (through {given['through']})"
    return {"who": who, "said": said, "note": note, "at": action.at}


def _people(names: Any) -> str:
    listed = [names] if isinstance(names, str) else list(cast(Any, names or ()))
    return ", ".join("all reviewers" if name == "*" else str(name) for name in listed) or "all"
