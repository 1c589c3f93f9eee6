"""Reviews in the shape of AG-UI 1.0: interrupts of a run, and the entries that resume it.

AG-UI is the Agent User Interaction Protocol. Its names are in camel case. See
https://docs.ag-ui.com/spec/1.0/basic/patterns/interrupt-resume.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import InvalidRequest
from holdfast.model.moments import utc_text
from holdfast.model.review import Review

__all__ = [
    "Interrupt",
    "InterruptAnswer",
    "InterruptPage",
    "ResumeEntry",
    "answer_of",
    "entry_key",
    "interrupt_of",
]

_COMMENT_CHARS_MAX = 4_000
_CANCELLED = "cancelled without an answer"
_ENVELOPE = "holdfast"


class Interrupt(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A question of a run that waits for an answer from outside."""

    id: str
    """The review's id."""
    reason: str
    """``confirmation``, ``input_required`` for a form, or ``holdfast:tool_call`` for a tool."""
    message: str
    expires_at: str | None = None
    response_schema: dict[str, Any]
    """The JSON schema of an answer's payload."""
    metadata: dict[str, Any]
    """Under ``holdfast``: what is shown, the current values, who may decide, and ``seen``."""


class InterruptPage(msgspec.Struct, frozen=True):
    """What a run waits for people to answer."""

    interrupts: list[Interrupt]
    cursor: str | None = None
    """Pass it to read the next page; null at the end."""


class InterruptAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The payload of an answer, as the interrupt's ``responseSchema`` describes it."""

    approved: bool
    comment: Annotated[str, Meta(max_length=_COMMENT_CHARS_MAX)] = ""
    values: Any | UnsetType = UNSET
    """The values of the form; by default those that it shows."""
    edited_args: Any | UnsetType = UNSET
    """All arguments of the tool; by default those that it shows."""


class AnswerEnvelope(msgspec.Struct, frozen=True):
    """What Holdfast knows of an answer."""

    seen: Annotated[str, Meta(max_length=64)] | None = None
    """``seen`` of the interrupt: refuses the answer if the review was changed meanwhile."""


class ResumeMetadata(msgspec.Struct, frozen=True):
    """What belongs to an answer and not to the question; other members are ignored."""

    holdfast: AnswerEnvelope = AnswerEnvelope()


_NO_METADATA = ResumeMetadata()


class ResumeEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An answer to one interrupt."""

    interrupt_id: Annotated[str, Meta(min_length=1, max_length=145)]
    status: Literal["resolved", "cancelled"]
    """``cancelled``: the person gives no answer, which rejects the review."""
    payload: InterruptAnswer | None = None
    metadata: ResumeMetadata = _NO_METADATA
    """What belongs to the answer and not to the question."""

    @property
    def seen(self) -> str | None:
        """The hash of what the person saw; None if the entry does not say."""
        return self.metadata.holdfast.seen


def interrupt_of(review: Review) -> Interrupt:
    """Return a pending review as an interrupt."""
    form = dict(review.form) if review.form is not None else None
    reason = "confirmation" if form is None else "input_required"
    shown = {
        "run": review.run,
        "graph": review.graph,
        "node": review.node,
        "shown": review.shown,
        "values": review.values,
        "assignees": list(review.assignees),
        "claimedBy": review.claimed_by,
        "quorum": review.quorum,
        "votes": len(review.votes),
        "tool": review.tool,
        "seen": review.rendered,
    }
    return Interrupt(
        id=review.id,
        # Not tool_call: AG-UI binds that to an earlier event with the id of the model's call.
        reason=reason if review.tool is None else f"{_ENVELOPE}:tool_call",
        message=review.question,
        expires_at=None if review.expires_at is None else utc_text(review.expires_at),
        response_schema=_response_schema(form, of_tool=review.tool is not None),
        metadata={_ENVELOPE: shown},
    )


def _response_schema(form: dict[str, Any] | None, *, of_tool: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "approved": {"type": "boolean"},
        "comment": {"type": "string", "maxLength": _COMMENT_CHARS_MAX},
    }
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": ["approved"],
        "additionalProperties": False,
    }
    if form is not None:
        # References in the form start at the root of the document, which is this schema now.
        if "$defs" in form:
            schema["$defs"] = form.pop("$defs")
        properties["editedArgs" if of_tool else "values"] = form
    return schema


def answer_of(entry: ResumeEntry) -> InterruptAnswer:
    """Return what an entry answers; a cancelled one rejects.

    Raises:
        InvalidRequest: the entry is resolved and has no payload, or the other way round.
    """
    if entry.status == "cancelled":
        if entry.payload is not None:
            raise InvalidRequest("a cancelled entry must not have a payload", field="payload")
        return InterruptAnswer(approved=False, comment=_CANCELLED)
    if entry.payload is None:
        raise InvalidRequest(
            "a resolved entry must have a payload that fits the interrupt's responseSchema",
            field="payload",
        )
    return entry.payload


def entry_key(entry: ResumeEntry, number: int, key: str | None) -> str:
    """Return the idempotency key of an entry: AG-UI permits to send the same entry again."""
    told = msgspec.json.encode([entry.interrupt_id, entry.status, entry.payload])
    text = told if key is None else f"{key}#{number}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
