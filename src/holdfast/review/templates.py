"""Templates of notices: how a subject, a text and a page of HTML are made of a review."""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import datetime
from string import Template
from typing import Any, get_args

import msgspec

from holdfast.display import escaped_json, printable
from holdfast.errors import InvalidRequest
from holdfast.model.review import ReviewEntry
from holdfast.records.review import NoticeKind

__all__ = ["DEFAULT_TEMPLATES", "NOTICE_KINDS", "NoticeFacts", "NoticeTemplate"]

NOTICE_KINDS: tuple[NoticeKind, ...] = get_args(NoticeKind)
_SUBJECT_CHARS_MAX = 150
_SHOWN_CHARS_MAX = 4_000
_FIELDS = frozenset(
    {
        "assignees", "command", "deadline", "expires", "graph", "greeting", "link", "node", "open",
        "question", "review", "reviewer", "run", "shown", "tenant",
    }
)  # fmt: skip


class NoticeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a template can show."""

    reviewer: str | None
    review: ReviewEntry
    question: str
    link: str | None
    command: str
    shown: Any = None

    def values(self, *, as_html: bool, with_shown: bool) -> dict[str, str]:
        """Return the values of all fields; in HTML, markup in them is text."""
        review = self.review
        plain = {
            "assignees": ", ".join(review.assignees) or "every reviewer",
            "command": self.command,
            "deadline": _deadline(review.expires_at),
            "expires": "" if review.expires_at is None else _time_text(review.expires_at),
            "graph": review.graph,
            "greeting": "Hello," if self.reviewer is None else f"Hello {self.reviewer},",
            "link": self.link or "",
            "node": review.node,
            "question": self.question,
            "review": review.id,
            "reviewer": self.reviewer or "",
            "run": review.run,
            "shown": _shown_text(self.shown) if with_shown else "",
            "tenant": review.tenant,
        }
        shown = {name: _lines(value) for name, value in plain.items()}
        if not as_html:
            way = f"Look at it and decide:\n{self.link}" if self.link else ""
            return shown | {"open": way or f"Look at it and decide with:\n    {self.command}"}
        escaped = {name: html.escape(value) for name, value in shown.items()}
        if self.link:
            way = f'<a href="{escaped["link"]}">Look at it and decide</a>'
        else:
            way = f"Look at it and decide with: <code>{escaped['command']}</code>"
        return escaped | {"open": way}


class NoticeTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """How a notice is worded. Fields are written as in ``string.Template``: ``$question``.

    ``$question``, ``$link`` (empty if there is none), ``$command``, ``$open`` (how to open the
    review: the link, or the command), ``$greeting``, ``$deadline`` (a sentence), ``$expires``,
    ``$reviewer``, ``$assignees``, ``$review``, ``$run``, ``$graph``, ``$node``, ``$tenant``, and
    ``$shown``: the data of the review, cut to 4,000 characters. Mails are not confidential: without
    ``$shown`` a notice has no data but the question.

    Raises:
        InvalidRequest: a text has an unknown field, or a ``$`` that begins none.
    """

    subject: str
    text: str
    html: str | None = None
    """None sends text only. Values are escaped; the template itself is not."""

    def __post_init__(self) -> None:
        for name in ("subject", "text", "html"):
            value = getattr(self, name)
            if name == "html" and value is None:
                continue
            if not isinstance(value, str) or not value.strip():
                raise InvalidRequest(
                    f"{name} must be a text that is not empty, got {value!r:.80}", field=name
                )
            _check_fields(name, Template(value))

    def rendered(self, facts: NoticeFacts) -> tuple[str, str, str | None]:
        """Return the subject, which is one line, the text and the HTML."""
        sources = (self.subject, self.text, self.html or "")
        with_shown = any("shown" in Template(source).get_identifiers() for source in sources)
        plain = facts.values(as_html=False, with_shown=with_shown)
        subject = " ".join(Template(self.subject).substitute(plain).split())
        if len(subject) > _SUBJECT_CHARS_MAX:
            subject = f"{subject[: _SUBJECT_CHARS_MAX - 1].rstrip()}…"
        page = None
        if self.html is not None:
            page = Template(self.html).substitute(facts.values(as_html=True, with_shown=with_shown))
        return printable(subject), Template(self.text).substitute(plain), page


def _check_fields(name: str, template: Template) -> None:
    if not template.is_valid():
        raise InvalidRequest(
            f"{name} must have '$' only before the name of a field; write '$$' for the sign itself",
            field=name,
        )
    unknown = sorted(set(template.get_identifiers()) - _FIELDS)
    if unknown:
        raise InvalidRequest(
            f"{name} must use known fields, got ${unknown[0]:.80}; the fields are: "
            + ", ".join(f"${each}" for each in sorted(_FIELDS)),
            field=name,
        )


def _lines(text: str) -> str:
    """Return text whose characters are visible, with its line breaks."""
    return "\n".join(map(printable, text.splitlines()))


def _shown_text(shown: Any) -> str:
    if shown is None:
        return ""
    encoded = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    text = escaped_json(encoded)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}\n…"


def _time_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _deadline(expires_at: datetime | None) -> str:
    if expires_at is None:
        return "The run waits until there is a decision, or until it expires itself."
    return (
        f"Please decide before {_time_text(expires_at)}. Without a decision by then, the review "
        "expires, and the run goes on without an approval."
    )


def _default(subject: str, why: str) -> NoticeTemplate:
    text = f"$greeting\n\n{why}\n\n    $question\n\n$open\n\n$deadline\n\n-- \nRun $run of $graph\n"
    page = (
        f'<p>$greeting</p>\n<p>{why}</p>\n<blockquote style="white-space: pre-line">$question'
        "</blockquote>\n<p>$open</p>\n<p>$deadline</p>\n<p><small>Run $run of $graph</small></p>\n"
    )
    return NoticeTemplate(subject=subject, text=text, html=page)


DEFAULT_TEMPLATES: Mapping[NoticeKind, NoticeTemplate] = {
    "requested": _default(
        "Please decide: $question", "A run of $graph waits for your decision on this question:"
    ),
    "reassigned": _default(
        "Now yours to decide: $question",
        "This question was assigned to you. A run of $graph waits for the decision:",
    ),
    "edited": _default(
        "Please vote again: $question",
        "The values of this question were edited, so your vote counts no more. A run of $graph "
        "waits for the decision:",
    ),
    "reminder": _default(
        "Reminder: $question", "A run of $graph still waits for a decision on this question:"
    ),
    "escalation": _default(
        "Overdue: $question",
        "A run of $graph has waited for too long for a decision on this question, so you are asked "
        "as well:",
    ),
}
"""How notices are worded unless the application says otherwise."""
