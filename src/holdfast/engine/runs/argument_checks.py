"""Checks of the arguments that callers pass, before anything is read or written."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_args

from msgspec import UNSET

from holdfast.errors import InvalidName, InvalidQuery, InvalidRequest
from holdfast.model.budget import Budget, BudgetLimits, check_limits
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.names import validated_name
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability
from holdfast.model.program import Program
from holdfast.model.run import PAUSE_REASONS, OnBusy, Status
from holdfast.model.signals import SignalName
from holdfast.records.run_filter import RunFilter

__all__ = [
    "LIMIT_MAX",
    "check_program",
    "positive_ms",
    "takes_run_filter",
    "validated_age_ms",
    "validated_budget",
    "validated_bulk_filter",
    "validated_bulk_limit",
    "validated_durability",
    "validated_filter",
    "validated_keep_answers",
    "validated_limit",
    "validated_limits",
    "validated_node",
    "validated_on_busy",
    "validated_pause_reason",
    "validated_reason",
    "validated_resolution",
    "validated_signal_name",
    "validated_statuses",
    "validated_user",
    "validated_user_key",
]

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_MAX = 1_000
"""The largest page of a list or a history."""
_REASON_CHARS_MAX = 400
_NO_REASON = "no reason was given"
_USER_BYTES_MAX = 1_024
# A node's own name has at most 64; this allows for fifteen nested graphs, and fits into a row.
_NODE_CHARS_MAX = 1_024
# A start that is still under way cannot be so old.
_AGE_MIN = days(1)


def validated_limit(limit: object) -> int:
    """Return the largest number of entries of a page.

    Raises:
        InvalidQuery: not an integer from 1 to 1,000.
    """
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InvalidQuery(
            f"limit must be an integer from 1 to {LIMIT_MAX}, got {limit!r:.80}", field="limit"
        )
    return limit


def validated_user_key(key: bytes | None) -> bytes | None:
    """Return the key under which users are hashed; None if the store keeps one.

    Raises:
        InvalidRequest: it is not bytes, or too short.
    """
    if key is not None and (not isinstance(key, bytes) or len(key) < 16):
        raise InvalidRequest("user_key must be bytes, at least 16 of them", field="user_key")
    return key


def validated_limits(limits: PayloadLimits | None) -> PayloadLimits | None:
    """Return the limits on the sizes of values.

    Raises:
        InvalidRequest: not PayloadLimits.
    """
    if limits is not None and not isinstance(limits, PayloadLimits):
        raise InvalidRequest(f"limits must be PayloadLimits, got {limits!r:.80}", field="limits")
    return limits


def validated_budget(budget: Budget | BudgetLimits | None) -> BudgetLimits | None:
    """Return the limits on a run's spending. The budget may be that of a `Run`.

    Raises:
        InvalidRequest: not a Budget, or not one that a Run can have.
    """
    if isinstance(budget, BudgetLimits):
        check_limits(budget)
        return budget
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidRequest(f"budget must be a Budget, got {budget!r:.80}", field="budget")
    return None if budget is None else budget.limits


def validated_durability(durability: Durability | None, graph: Program) -> Durability:
    """Return when a run becomes durable: as the start says, otherwise as its graph says.

    Raises:
        InvalidRequest: no such durability.
    """
    if durability is not None and durability not in get_args(Durability):
        raise InvalidRequest(
            f"durability must be 'every_node' or 'on_pause', got {durability!r:.80}",
            field="durability",
        )
    return durability or graph.durability


def validated_statuses(statuses: tuple[Status, ...]) -> tuple[Status, ...]:
    """Return the statuses that a caller waits for.

    Raises:
        InvalidRequest: there is none, or one is not a status.
    """
    known = get_args(Status)
    for status in statuses or (None,):
        if not isinstance(status, str) or status not in known:
            given = "no status" if status is None and not statuses else f"{status!r:.80}"
            raise InvalidRequest(
                f"statuses must be one or more of {', '.join(known)}, got {given}",
                field="statuses",
            )
    return statuses


def validated_pause_reason(reason: object, statuses: tuple[Status, ...]) -> str | None:
    """Return the reason for which a run must be paused, if a caller waits for such a pause.

    Raises:
        InvalidRequest: not a reason, or the caller does not wait for a pause.
    """
    if reason is None:
        return None
    if not isinstance(reason, str) or reason not in PAUSE_REASONS:
        raise InvalidRequest(
            f"reason must be one of {', '.join(PAUSE_REASONS)}, got {reason!r:.80}", field="reason"
        )
    if "waiting" not in statuses:
        raise InvalidRequest(
            "reason needs 'waiting' among the statuses: only a waiting run is paused for a reason",
            field="reason",
        )
    return reason


def validated_node(node: object) -> str:
    """Return the name of a node; a node of an included graph is called ``name/node``.

    Raises:
        InvalidName: no node can have this name.
    """
    parts: list[object] = [*node.split("/")] if isinstance(node, str) else [node]
    named = "/".join(validated_name(part, "from_node") for part in parts)
    if len(named) > _NODE_CHARS_MAX:
        raise InvalidName(
            f"from_node must have at most {_NODE_CHARS_MAX:,} characters, got {len(named):,}",
            field="from_node",
            size=len(named),
            limit=_NODE_CHARS_MAX,
        )
    return named


def validated_keep_answers(keep_answers: object, *, from_node: str | None) -> bool:
    """Return whether a retry keeps the answers of the failed visit.

    Raises:
        InvalidRequest: it is not a bool, or the retry starts a node from its beginning.
    """
    if type(keep_answers) is not bool:
        raise InvalidRequest(
            f"keep_answers must be True or False, got {keep_answers!r:.80}", field="keep_answers"
        )
    if keep_answers and from_node is not None:
        raise InvalidRequest(
            "keep_answers must not be given with from_node: a node that starts from its beginning "
            "has no answers",
            field="keep_answers",
        )
    return keep_answers


def check_program(graph: object) -> None:
    """Check that a value is a graph or a workflow.

    Raises:
        InvalidRequest: it is something else, for example the name of a graph.
    """
    if not isinstance(graph, Program):
        raise InvalidRequest(
            f"graph must be a Graph or a @workflow, got {graph!r:.80}", field="graph"
        )


def validated_on_busy(on_busy: OnBusy | None, session: str | None) -> OnBusy:
    """Return what a start does while another run of its session goes on.

    Raises:
        InvalidRequest: no such choice, or a start without a session.
    """
    if on_busy is None:
        return "queue"
    if session is None:
        raise InvalidRequest("on_busy needs a session: pass session=…, too", field="on_busy")
    if on_busy not in get_args(OnBusy):
        raise InvalidRequest(
            f"on_busy must be one of {', '.join(get_args(OnBusy))}, got {on_busy!r:.80}",
            field="on_busy",
        )
    return on_busy


def takes_run_filter(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method that takes a RunFilter say so where it gets a field of one instead."""
    own = inspect.signature(method).parameters
    fields = frozenset(RunFilter.__struct_fields__).difference(own)

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for field in kwargs:
            if field in fields:
                raise InvalidQuery(
                    f"{method.__name__}() takes a filter, not {field}=…: pass "
                    f"RunFilter({field}=…) as its first argument",
                    field=field,
                )
        return method(*args, **kwargs)

    return checked


def validated_filter(run_filter: RunFilter | None) -> RunFilter:
    """Return the filter of a list; None means all runs.

    Raises:
        InvalidQuery: not a RunFilter.
    """
    if run_filter is not None and not isinstance(run_filter, RunFilter):
        raise InvalidQuery(
            f'run_filter must be a RunFilter, such as RunFilter(status="failed"), got '
            f"{run_filter!r:.80}",
            field="run_filter",
        )
    return run_filter or RunFilter()


def validated_bulk_filter(
    run_filter: RunFilter | None, *, among: frozenset[str], everything: bool
) -> RunFilter:
    """Return which runs a bulk action acts on; all of them have one of the statuses ``among``.

    Raises:
        InvalidQuery: not a RunFilter; an empty one, unless ``everything`` is True; or a status
            that the action does not apply to.
    """
    found = validated_filter(run_filter)
    if found.is_empty and everything is not True:
        raise InvalidQuery(
            "run_filter is empty. Pass everything=True to act on all runs of the tenant.",
            field="everything",
        )
    if found.statuses is None:
        return found.with_statuses(among)
    if not found.statuses <= among:
        raise InvalidQuery(
            f"status must be one of {', '.join(sorted(among))} for this action, "
            f"got {', '.join(sorted(found.statuses))}",
            field="status",
        )
    return found


def validated_bulk_limit(limit: object) -> int | None:
    """Return the largest number of runs that a bulk action acts on; None is no limit.

    Raises:
        InvalidQuery: neither None nor an integer from 1 on.
    """
    if limit is None:
        return None
    if type(limit) is not int or limit < 1:
        raise InvalidQuery(
            f"limit must be an integer from 1 on, or None, got {limit!r:.80}", field="limit"
        )
    return limit


def validated_reason(reason: object) -> str:
    """Return why runs are cancelled, cut to the length that a row keeps.

    Raises:
        InvalidRequest: not text.
    """
    if not isinstance(reason, str):
        raise InvalidRequest(f"reason must be text, got {reason!r:.80}", field="reason")
    return reason[:_REASON_CHARS_MAX] or _NO_REASON


def validated_signal_name(name: object) -> str:
    """Return the name of a signal that a caller sends, given as text or as ``signal("name")``.

    Raises:
        InvalidName: it is neither, or the name is invalid.
    """
    if isinstance(name, SignalName):
        name = name.name
    elif not isinstance(name, str):
        raise InvalidName(
            f'a signal\'s name must be a string or signal("name"), got {type(name).__name__}',
            field="a signal's name",
        )
    return validated_name(name, "a signal's name")


def validated_resolution(*, result: Any, error: str | None, void: bool) -> dict[str, Any]:
    """Return what the caller says became of an ambiguous call.

    Raises:
        InvalidRequest: not exactly one of result, error and void; or the error is not text.
    """
    if (result is not UNSET) + (error is not None) + bool(void) != 1:
        raise InvalidRequest(
            "pass exactly one of result=… (which may be None), error=… and void=True to say what "
            "became of the call"
        )
    if error is not None and not isinstance(error, str):
        raise InvalidRequest(f"error must be text, got {error!r:.80}", field="error")
    if error is not None:
        return {"outcome": "failed", "error": error[:_REASON_CHARS_MAX] or _NO_REASON}
    return {"outcome": "void"} if void else {"outcome": "done", "result": result}


def validated_age_ms(age: Duration) -> int:
    """Return the least age of the blobs that a sweep deletes, in milliseconds.

    Raises:
        InvalidRequest: less than a day, or not a duration.
    """
    ms = milliseconds_of(age, "older_than")
    if ms < milliseconds_of(_AGE_MIN, "older_than"):
        raise InvalidRequest(
            f"older_than must be at least a day, got {age!r:.80}", field="older_than"
        )
    return ms


def validated_user(user: str | None) -> str | None:
    """Return the user that a run is for.

    Raises:
        InvalidName: not text of 1 to 1,024 bytes.
    """
    if user is None:
        return None
    try:
        fits = isinstance(user, str) and 1 <= len(user.encode()) <= _USER_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidName(f"user must be text of 1 to {_USER_BYTES_MAX} bytes", field="user")
    return user


def positive_ms(duration: Duration, field: str) -> int:
    """Return a duration above 0 in milliseconds.

    Raises:
        InvalidRequest: 0, or not a duration.
    """
    ms = milliseconds_of(duration, field)
    if ms == 0:
        raise InvalidRequest(f"{field} must be more than 0 seconds", field=field)
    return ms
