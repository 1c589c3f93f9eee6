"""Asks people to approve calls, and checks that exactly what they approved is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.display import get_logger
from holdfast.engine.effects.approval_content import approval_content, approval_of, filled_form
from holdfast.engine.effects.call_host import ApprovalHost, CallHost, CallRequest, ReviewedCall
from holdfast.engine.runs.reviewing import LoadedReview
from holdfast.errors import CallChanged, CallRejected, InvalidArguments
from holdfast.records.codec import canonical_hash
from holdfast.records.review import ReviewContent, ToolArguments

__all__ = ["Approvals"]

_log = get_logger("holdfast.calls")

_DECIDED = ("status", "digest", "values")
_EDIT_CHARS_MAX = 10_000


class Approvals:
    """The approvals of the calls of one visit."""

    def __init__(self, host: CallHost, reviews: ApprovalHost) -> None:
        self._host = host
        self._reviews = reviews
        self._asked: dict[str, dict[str, Any]] = {}
        self._warned: set[str] = set()

    def prepared(self, call: str, request: CallRequest) -> CallRequest:
        """Return a call with its arguments by name, as a reviewer sees them.

        Raises:
            ArgumentsTooLarge, InvalidRequest: a reviewer cannot be shown the arguments.
            CallChanged: the node used the key of the call before, with other arguments.
        """
        filled = approval_of(request).form.filled(request.args, request.kwargs)
        if request.key is not None and self._asked.setdefault(call, filled.stored) != filled.stored:
            raise CallChanged(
                f"{request.tool.name!r} was called under the key {request.key!r} before, with "
                "other arguments; another call needs another key"
            )
        return msgspec.structs.replace(request, args=(), kwargs=filled.arguments, filled=filled)

    async def approved(self, call: str, request: CallRequest) -> CallRequest | CallRejected:
        """Return a call with the arguments that were approved; pause the run until they are.

        A call that needs no approval is returned as it is, a rejected one as its error. A call for
        which the run has paused needs its approval, whatever its arguments are now.

        Raises:
            CallChanged: the approved arguments do not fit the parameters of the tool any more.
            InvalidRequest: a function of the approval raised, or returned something invalid.
        """
        reviewed, subject = request.reviewed, f"call {call}"
        if reviewed is None:
            known = self._reviews.known_decision(subject) is not None
            if not (known or self._reviews.is_awaited(subject)) and not approval_of(
                request
            ).is_needed(request.kwargs):
                return request
            reviewed = ReviewedCall(await self._decide(subject, {"": request}))
        decision = self._decision(reviewed)
        if decision["status"] != "approved":
            return _rejection(decision)
        try:
            arguments = approval_of(request).form.converted(_values(decision, reviewed.name))
        except InvalidArguments as error:
            raise CallChanged(
                f"the approved arguments of {request.tool.name!r} do not fit its parameters any "
                f"more: {error}; nothing was called"
            ) from None
        return msgspec.structs.replace(request, kwargs=arguments, reviewed=reviewed)

    async def needing(
        self, subject: str, calls: Mapping[str, CallRequest]
    ) -> dict[str, CallRequest]:
        """Return which of several calls one review is about, by name.

        Calls for which the run has paused are those of the review, whatever they are now.
        """
        subject = _together(subject)
        if self._reviews.known_decision(subject) is None and not self._reviews.is_awaited(subject):
            return {
                name: request
                for name, request in calls.items()
                if approval_of(request).is_needed(request.kwargs)
            }
        loaded = await self._reviews.load_review(subject)
        listed = () if loaded is None else loaded.content.tools
        names = {each.name for each in listed}
        return {name: request for name, request in calls.items() if name in names}

    async def decided_together(
        self, subject: str, calls: Mapping[str, CallRequest]
    ) -> dict[str, ReviewedCall]:
        """Return the review that decided about several calls; pause the run until it has."""
        decided = await self._decide(_together(subject), calls)
        return {name: ReviewedCall(decided, name) for name in calls}

    async def check(self, call: str, request: CallRequest) -> None:
        """Check, immediately before a call, that it is what the reviewers approved.

        Raises:
            CallChanged: it is not; nothing must be called.
        """
        reviewed = request.reviewed
        assert reviewed is not None
        loaded = await self._reviews.load_review(reviewed.subject)
        decision = self._decision(reviewed)
        fault = _tampering(loaded, decision) or _other_tool(loaded, reviewed, request)
        if fault:
            raise CallChanged(
                f"call {call} of tool {request.tool.name!r} is not what was approved: {fault}; "
                "nothing was called"
            )
        assert loaded is not None
        approved = _tool_arguments(loaded.content, reviewed.name)
        if call not in self._warned and _differs(approved, request):
            self._warned.add(call)
            _log.warning(
                "%s: call %s has other arguments than those that were approved; exactly the "
                "approved arguments are executed",
                self._host.run.log_name,
                call,
            )

    async def has_changed(self, call: str, request: CallRequest) -> bool:
        """Return whether the node asks for other arguments than it did when they were approved.

        Arguments that only the reviewer edited have not changed. A change that was logged before
        the call was made does not count again.
        """
        if call in self._warned:
            return False
        reviewed = request.reviewed or self._last_review(call)
        if reviewed is None:
            return True
        loaded = await self._reviews.load_review(reviewed.subject)
        return loaded is None or _differs(_tool_arguments(loaded.content, reviewed.name), request)

    def rejection(self, call: str, request: CallRequest) -> CallRejected | None:
        """Return the error of a call that was not approved; None if it was, or need not be."""
        reviewed = request.reviewed or self._last_review(call)
        decision = None if reviewed is None else self._reviews.known_decision(reviewed.subject)
        if decision is None or decision["status"] == "approved":
            return None
        return _rejection(decision, tool=request.tool.name)

    def edit(self, call: str, request: CallRequest) -> str:
        """Return a sentence with the arguments that the reviewers edited; empty if they did not."""
        reviewed = request.reviewed or self._last_review(call)
        decision = None if reviewed is None else self._reviews.known_decision(reviewed.subject)
        if reviewed is None or decision is None or decision["status"] != "approved":
            return ""
        values = _values(decision, reviewed.name)
        if values == filled_form(request).stored:
            return ""
        by = "the reviewers" if decision.get("votes") else decision.get("by")
        text = msgspec.json.encode(values).decode()
        if len(text) > _EDIT_CHARS_MAX:
            text = f"{text[: _EDIT_CHARS_MAX - 1]}…"
        return f"{by} changed the arguments to {text}"

    async def _decide(self, subject: str, calls: Mapping[str, CallRequest]) -> str:
        """Return the subject of the review that decided about calls; pause the run until then.

        Arguments that a reviewer edited, and that do not fit after all, are asked for again in
        another review, which says why.
        """
        again, note = 0, ""
        while True:
            named = _again(subject, again)
            decision = self._reviews.known_decision(named)
            if decision is None:
                content = approval_content(calls, note=note)
                terms = approval_of(next(iter(calls.values()))).terms
                decision = await self._reviews.await_decision(named, content, terms)
            else:
                await self._reviews.settle(named, decision)
            misfit = _misfit(decision, calls)
            if not misfit:
                return named
            await self._check_schemas(named, calls, misfit)
            again += 1
            note = f"{decision.get('by')} approved arguments that do not fit: {misfit}"

    async def _check_schemas(
        self, subject: str, calls: Mapping[str, CallRequest], misfit: str
    ) -> None:
        """Check that approved arguments do not fit because a reviewer edited them.

        Raises:
            CallChanged: the parameters of a tool have changed since.
        """
        loaded = await self._reviews.load_review(subject)
        for name, request in calls.items():
            approved = None if loaded is None else _tool_arguments(loaded.content, name)
            if approved is None or approved.schema != approval_of(request).form.digest:
                raise CallChanged(
                    f"the approved arguments of {request.tool.name!r} do not fit its parameters "
                    f"any more: {misfit}; nothing was called"
                )

    def _decision(self, reviewed: ReviewedCall) -> dict[str, Any]:
        decision = self._reviews.known_decision(reviewed.subject)
        assert decision is not None
        return decision

    def _last_review(self, call: str) -> ReviewedCall | None:
        """Return the review that decided about a call; None if none did."""
        subject, again = f"call {call}", 0
        while self._reviews.known_decision(_again(subject, again)) is not None:
            again += 1
        return ReviewedCall(_again(subject, again - 1)) if again else None


def _together(subject: str) -> str:
    return f"calls {subject}"


def _again(subject: str, number: int) -> str:
    return f"again {number} {subject}" if number else subject


def _values(decision: Mapping[str, Any], name: str) -> Any:
    values: Any = decision.get("values")
    if not name:
        return values
    return cast(dict[str, Any], values).get(name) if isinstance(values, dict) else None


def _misfit(decision: Mapping[str, Any], calls: Mapping[str, CallRequest]) -> str:
    """Return why approved arguments do not fit the parameters of the tools; empty if they do."""
    if decision["status"] != "approved":
        return ""
    for name, request in calls.items():
        try:
            approval_of(request).form.converted(_values(decision, name))
        except InvalidArguments as error:
            return str(error)
    return ""


def _tool_arguments(content: ReviewContent, name: str) -> ToolArguments | None:
    return next((each for each in content.tools if each.name == name), None)


def _differs(approved: ToolArguments | None, request: CallRequest) -> bool:
    """Return whether a node asks for something else than reviewers were shown."""
    return (
        approved is None
        or approved.arguments != filled_form(request).stored
        or approved.schema != approval_of(request).form.digest
    )


def _tampering(loaded: LoadedReview | None, decision: Mapping[str, Any]) -> str:
    """Return what was changed in the store since the decision; empty if nothing was."""
    if loaded is None:
        return "its review is not stored any more"
    if loaded.digest != decision.get("digest"):
        return "what the reviewers were shown was changed in the store"
    if not loaded.is_intact:
        return "its review was changed in the store"
    if loaded.settled is None or _decided_hash(loaded.settled) != _decided_hash(decision):
        return "the decision about it was changed in the store"
    return ""


def _decided_hash(decision: Mapping[str, Any]) -> bytes:
    return canonical_hash([decision.get(field) for field in _DECIDED])


def _other_tool(loaded: LoadedReview | None, reviewed: ReviewedCall, request: CallRequest) -> str:
    approved = None if loaded is None else _tool_arguments(loaded.content, reviewed.name)
    if approved is None:
        return "its review is about something else"
    if approved.tool != request.tool.name:
        return f"the reviewers approved a call of {approved.tool!r}"
    return ""


def _rejection(decision: Mapping[str, Any], *, tool: str = "") -> CallRejected:
    status, by, comment = decision["status"], decision.get("by"), decision.get("comment", "")
    match status:
        case "rejected":
            reason = f"{by} rejected this call"
        case "expired":
            reason = "no reviewer approved this call in time"
        case _:
            reason = f"{by} withdrew the review of this call" if by else "its review was withdrawn"
    if comment:
        reason += f": {comment}"
    message = f"{tool!r} was not called: {reason}" if tool else reason
    return CallRejected(
        message,
        kinds=[f"{CallRejected.__module__}.{CallRejected.__qualname__}"],
        reason=reason,
        status=status,
        by=by,
        comment=comment,
    )
