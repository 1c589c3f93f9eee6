"""The approval of a tool: which of its calls a person must approve, and whom the run asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.node import is_sync_function
from holdfast.graph.tool_form import ToolForm
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.people import validated_people, validated_quorum
from holdfast.model.review_times import check_review_times

__all__ = ["Approval", "ApprovalTerms", "NeedsApproval", "ToolApproval", "tool_approval"]


class ApprovalTerms(msgspec.Struct, frozen=True):
    """Who may approve calls, and in what time."""

    assignees: tuple[str, ...] = ()
    expires_ms: int | None = None
    remind_after_ms: int | None = None
    escalate_after_ms: int | None = None
    escalate_to: tuple[str, ...] = ()
    quorum: int = 1


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls of a tool a person must approve, and whom the run asks: ``@tool(approval=…)``.

    ``when``, ``question`` and ``show`` may be plain functions of the arguments. They get the
    arguments by name, those for which they have a parameter: ``lambda amount: amount > 100``.

    Raises:
        InvalidRequest: a field has an invalid value.
    """

    when: Callable[..., bool] | None = None
    """Says whether a call needs an approval; None if every call does."""
    question: str | Callable[..., str] = ""
    """What the reviewer is asked; by default the call itself: ``Call transfer(amount=100)?``."""
    show: Callable[..., Mapping[str, Any]] | None = None
    """Returns what the reviewer is shown beside the arguments: JSON values by name."""
    assignees: str | Sequence[str] = ()
    """The names of the people who may decide; without them every reviewer may."""
    expires: Duration | None = None
    """After that time the call is rejected; None if it waits for as long as the run."""
    remind_after: Duration | None = None
    """After that time the reviewers are reminded."""
    escalate_after: Duration | None = None
    """After that time those in ``escalate_to`` may decide, too."""
    escalate_to: str | Sequence[str] = ()
    quorum: int = 1
    """How many votes decide."""

    def __post_init__(self) -> None:
        for field in ("when", "show"):
            _check_function(getattr(self, field), field)
        if not isinstance(self.question, str):
            _check_function(self.question, "question")
        _ = self.terms

    @property
    def terms(self) -> ApprovalTerms:
        """Who may approve calls, and in what time; the same for equal options."""
        assignees = validated_people(self.assignees, "assignees")
        terms = ApprovalTerms(
            assignees=assignees,
            expires_ms=_ms(self.expires, "expires"),
            remind_after_ms=_ms(self.remind_after, "remind_after"),
            escalate_after_ms=_ms(self.escalate_after, "escalate_after"),
            escalate_to=validated_people(self.escalate_to, "escalate_to"),
            quorum=validated_quorum(self.quorum, assignees),
        )
        check_review_times(
            expires_ms=terms.expires_ms,
            remind_after_ms=terms.remind_after_ms,
            escalate_after_ms=terms.escalate_after_ms,
            escalate_to=terms.escalate_to,
        )
        return terms


NeedsApproval: TypeAlias = bool | Callable[..., bool] | Approval
"""Whether calls of a tool need an approval: always, if a function says so, or as an `Approval`."""


class ToolApproval:
    """The approval of one tool, with the form of its parameters."""

    def __init__(self, approval: Approval, form: ToolForm) -> None:
        self.form = form
        self.terms = approval.terms
        self._approval = approval
        self._chosen = {
            field: _parameters_of(getattr(approval, field), form, field)
            for field in ("when", "question", "show")
            if callable(getattr(approval, field))
        }

    def is_needed(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments needs an approval.

        Raises:
            InvalidRequest: the function that says so raised, or returned no bool.
        """
        if self._approval.when is None:
            return True
        needed = self._ask("when", arguments)
        if type(needed) is not bool:  # None, for a forgotten return, must not approve
            raise self._fault("when", f"must return True or False, got {needed!r:.80}")
        return needed

    def question(self, arguments: Mapping[str, Any]) -> str:
        """Return what reviewers are asked; empty for the default question.

        Raises:
            InvalidRequest: the function that says so raised, or returned no text.
        """
        if isinstance(self._approval.question, str):
            return self._approval.question
        asked = self._ask("question", arguments)
        if not isinstance(asked, str):
            raise self._fault("question", f"must return a text, got {asked!r:.80}")
        return asked

    def shown(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what reviewers are shown beside the arguments.

        Raises:
            InvalidRequest: the function that says so raised, or returned no dict.
        """
        if self._approval.show is None:
            return {}
        shown = self._ask("show", arguments)
        if not isinstance(shown, Mapping):
            raise self._fault("show", f"must return a dict, got {shown!r:.80}")
        return cast(Mapping[str, Any], shown)

    def _ask(self, field: str, arguments: Mapping[str, Any]) -> Any:
        names = self._chosen[field]
        known = {**self.form.defaults, **arguments}
        chosen = known if names is None else {n: known[n] for n in names if n in known}
        try:
            return getattr(self._approval, field)(**chosen)
        except Exception as error:
            raise self._fault(field, f"raised {type(error).__name__}: {error}") from error

    def _fault(self, field: str, fault: str) -> InvalidRequest:
        return InvalidRequest(
            f"{field} of the approval of tool {self.form.name!r} {fault}; nothing was called",
            field=field,
        )


def tool_approval(approval: object, form: Callable[[], ToolForm]) -> ToolApproval | None:
    """Return the approval of a tool as its declaration says; None if it needs none.

    Raises:
        InvalidRequest: it is none, or does not fit the parameters of the tool.
    """
    if approval is False:
        return None
    if approval is True:
        approval = Approval()
    elif not isinstance(approval, Approval):
        if not callable(approval):
            raise InvalidRequest(
                "approval must be True, a plain function of the arguments or an Approval, "
                f"got {approval!r:.80}",
                field="approval",
            )
        approval = Approval(when=cast(Callable[..., bool], approval))
    return ToolApproval(approval, form())


def _check_function(function: object, field: str) -> None:
    if function is None:
        return
    if not callable(function) or not is_sync_function(function):
        raise InvalidRequest(
            f"{field} must be a plain function of the arguments, got {function!r:.80}", field=field
        )


def _parameters_of(
    function: Callable[..., Any], form: ToolForm, field: str
) -> tuple[str, ...] | None:
    """Return which arguments a function takes; None if it takes all."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY or (
            each.name not in form.names and each.default is each.empty
        ):
            raise InvalidRequest(
                f"{field} of the approval of tool {form.name!r} has the parameter {each.name!r}; "
                f"the tool has: {', '.join(form.names) or 'none'}",
                field=field,
            )
    return tuple(each.name for each in parameters if each.name in form.names)


def _ms(duration: Duration | None, field: str) -> int | None:
    return None if duration is None else milliseconds_of(duration, field)
