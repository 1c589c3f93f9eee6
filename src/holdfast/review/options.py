"""`ReviewOptions`: how a process tells reviewers of reviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, milliseconds_of, seconds_of
from holdfast.records.review import NoticeKind
from holdfast.review.delegation import Delegate
from holdfast.review.log_notifier import LogNotifier
from holdfast.review.notice import Notifier
from holdfast.review.templates import DEFAULT_TEMPLATES, NOTICE_KINDS, NoticeTemplate

__all__ = ["ReviewOptions", "validated_review_options"]

_POLL_SECONDS_MIN = 1.0
_NAME_CHARS_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOptions:
    """How a process tells reviewers of reviews. All processes of a store should have the same.

    Raises:
        InvalidRequest: an option is wrong; ``field`` says which.
    """

    notifiers: Sequence[Notifier] = ()
    """What sends notices; each has a name of its own. Without any, notices are only logged."""
    templates: Mapping[NoticeKind, NoticeTemplate] = field(
        default_factory=dict[NoticeKind, NoticeTemplate]
    )
    """How notices are worded, by kind; the others have default texts."""
    delegate: Delegate | None = None
    """Says who decides instead of an assignee who is away. It is asked before the first notice."""
    link_expires: Duration | None = None
    """How long the links in notices work; None for as long as the review is open."""
    poll: Duration = 15
    """How often a process looks for notices to send. What a worker of the same process asks for is
    sent at once."""

    send_in_workers: bool = True
    """Whether workers of this instance send notices, if it has notifiers. If not, only servers and
    blocks of `Reviews.notify` do."""

    def __post_init__(self) -> None:
        _check_notifiers(self.notifiers)
        object.__setattr__(self, "notifiers", tuple(self.notifiers))
        _check_templates(self.templates)
        if self.delegate is not None and not callable(self.delegate):
            raise InvalidRequest(
                f"delegate must be a function, got {self.delegate!r:.80}", field="delegate"
            )
        if self.link_expires is not None and not milliseconds_of(self.link_expires, "link_expires"):
            raise InvalidRequest("link_expires must be more than 0 seconds", field="link_expires")
        if seconds_of(self.poll, "poll") < _POLL_SECONDS_MIN:
            raise InvalidRequest(
                f"poll must be at least {_POLL_SECONDS_MIN:g} s, got {self.poll!r:.40}",
                field="poll",
            )

    @property
    def are_configured(self) -> bool:
        """Whether notices go anywhere but into the log."""
        return any(not isinstance(each, LogNotifier) for each in self.notifiers)

    def template(self, kind: NoticeKind) -> NoticeTemplate:
        """Return how notices of a kind are worded."""
        return self.templates.get(kind) or DEFAULT_TEMPLATES[kind]


def validated_review_options(options: object) -> ReviewOptions:
    """Return the options of reviews that were passed, or the default ones.

    Raises:
        InvalidRequest: they are something else.
    """
    if options is None:
        return ReviewOptions()
    if not isinstance(options, ReviewOptions):
        raise InvalidRequest(f"reviews must be ReviewOptions, got {options!r:.80}", field="reviews")
    return options


def _check_notifiers(notifiers: object) -> None:
    if isinstance(notifiers, str) or not isinstance(notifiers, Sequence):
        raise InvalidRequest(
            f"notifiers must be a list of notifiers, got {notifiers!r:.80}", field="notifiers"
        )
    names: set[str] = set()
    for each in cast(Sequence[Any], notifiers):
        name = getattr(each, "name", None)
        if isinstance(each, type) or not callable(getattr(each, "send", None)):
            raise InvalidRequest(
                f"notifiers must contain objects with a name and an async method send(notice), "
                f"got {each!r:.80}",
                field="notifiers",
            )
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS_MAX:
            raise InvalidRequest(
                f"the name of a notifier must be a text of 1 to {_NAME_CHARS_MAX} characters, "
                f"got {name!r:.80}",
                field="notifiers",
            )
        if name in names:
            raise InvalidRequest(
                f"notifiers must have different names, got two of {name!r}: pass name=…",
                field="notifiers",
            )
        names.add(name)


def _check_templates(templates: object) -> None:
    if not isinstance(templates, Mapping):
        raise InvalidRequest(
            f"templates must be a dict by kind of notice, got {templates!r:.80}", field="templates"
        )
    for kind, template in cast(Mapping[Any, Any], templates).items():
        if kind not in NOTICE_KINDS:
            raise InvalidRequest(
                f"templates must be by kind ({', '.join(NOTICE_KINDS)}), got {kind!r:.80}",
                field="templates",
            )
        if not isinstance(template, NoticeTemplate):
            raise InvalidRequest(
                f"templates must contain NoticeTemplate, got {template!r:.80}", field="templates"
            )
