"""What callers hand in, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args

from msgspec import UNSET

from holdfast.errors import InvalidName, InvalidQuery, InvalidRequest
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.names import validated_labels, validated_name
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability
from holdfast.model.program import Program
from holdfast.model.run import OnBusy, Status
from holdfast.model.run_filter import RunFilter

__all__ = [
    "LIMIT_MAX",
    "moment_ms",
    "positive_ms",
    "validated_age_ms",
    "validated_budget",
    "validated_bulk",
    "validated_durability",
    "validated_filter",
    "validated_limit",
    "validated_limits",
    "validated_node",
    "validated_on_busy",
    "validated_reason",
    "validated_resolution",
    "validated_user",
]

LIMIT_MAX = 1_000
"""The largest page of a list or a history."""
_REASON_CHARS_MAX = 400
_NO_REASON = "no reason was given"
_USER_BYTES_MAX = 1_024
# A node's own name has 64; this is for one fifteen graphs deep, and fits into a row.
_NODE_CHARS_MAX = 1_024
# Nothing that may still be on its way to being started can be so old.
_AGE_MIN = days(1)


def validated_limit(limit: object) -> int:
    """Return how many a page holds.

    Raises:
        InvalidQuery: it is not a whole number from 1 to 1,000.
    """
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InvalidQuery(
            f"limit is a whole number from 1 to {LIMIT_MAX}, not {limit!r:.80}", field="limit"
        )
    return limit


def validated_limits(limits: PayloadLimits | None) -> PayloadLimits | None:
    """Return how large values may be.

    Raises:
        InvalidRequest: it does not say so.
    """
    if limits is not None and not isinstance(limits, PayloadLimits):
        raise InvalidRequest(f"limits must be PayloadLimits, got {limits!r:.80}", field="limits")
    return limits


def validated_budget(budget: Budget | None) -> BudgetLimits | None:
    """Return what a run may spend.

    Raises:
        InvalidRequest: it is not a budget.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidRequest(f"budget is a Budget, not {budget!r:.80}", field="budget")
    return None if budget is None else budget.limits


def validated_durability(durability: Durability | None, graph: Program) -> Durability:
    """Return when a run becomes durable: as the start says, otherwise as its graph does.

    Raises:
        InvalidRequest: there is no such way.
    """
    if durability is not None and durability not in get_args(Durability):
        raise InvalidRequest(
            f"durability is 'every_node' or 'on_pause', not {durability!r:.80}", field="durability"
        )
    return durability or graph.durability


def validated_node(node: object) -> str:
    """Return the name of a node; in a graph inside the graph it is called ``name/node``.

    Raises:
        InvalidName: it cannot be one.
    """
    parts: list[object] = [*node.split("/")] if isinstance(node, str) else [node]
    named = "/".join(validated_name(part, "from_node") for part in parts)
    if len(named) > _NODE_CHARS_MAX:
        raise InvalidName(
            f"from_node has at most {_NODE_CHARS_MAX:,} letters, not {len(named):,}",
            field="from_node",
            size=len(named),
            limit=_NODE_CHARS_MAX,
        )
    return named


def validated_on_busy(on_busy: OnBusy | None, session: str | None) -> OnBusy:
    """Return what becomes of a start in a session in which another run goes on.

    Raises:
        InvalidRequest: there is no session, or no such way.
    """
    if on_busy is None:
        return "queue"
    if session is None:
        raise InvalidRequest("on_busy is for a session, and none is given", field="on_busy")
    if on_busy not in get_args(OnBusy):
        raise InvalidRequest(
            f"on_busy is one of {', '.join(get_args(OnBusy))}, not {on_busy!r:.80}", field="on_busy"
        )
    return on_busy


def validated_filter(
    *,
    status: Status | None,
    graph: str | None,
    labels: Mapping[str, str] | None,
    since: datetime | None,
    until: datetime | None,
) -> RunFilter:
    """Return which runs a list is to show.

    Raises:
        InvalidQuery, InvalidName, InvalidRequest: what is wrong with it.
    """
    if status is not None and status not in get_args(Status):
        raise InvalidQuery(f"there is no status {status!r:.80}", field="status")
    if graph is not None and not isinstance(graph, str):
        raise InvalidQuery(f"a graph is asked for by its name, not {graph!r:.80}", field="graph")
    span: dict[str, int] = {}
    if since is not None:
        span["since_ms"] = moment_ms(since, "since")
    if until is not None:
        span["until_ms"] = moment_ms(until, "until")
    statuses = None if status is None else frozenset({status})
    return RunFilter(statuses=statuses, graph=graph, labels=validated_labels(labels), **span)


def validated_bulk(
    *, among: frozenset[str], everything: bool, limit: int | None, **filters: Any
) -> RunFilter:
    """Return which runs are to be acted on, each of which has one of these statuses.

    Raises:
        InvalidQuery: no filter at all, unless everything is meant; a status that nothing can come
            of; a wrong limit.
        InvalidName, InvalidRequest: what else is wrong with the filter.
    """
    found = validated_filter(**filters)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidQuery(
            f"limit is a whole number from 1 on, or None, not {limit!r:.80}", field="limit"
        )
    if found == RunFilter() and everything is not True:
        raise InvalidQuery(
            "this would act on every run of the tenant: give a filter, or everything=True",
            field="everything",
        )
    if found.statuses is None:
        return found.with_statuses(among)
    if not found.statuses <= among:
        raise InvalidQuery(
            f"only runs that are {', '.join(sorted(among))} can be acted on so, "
            f"not {filters['status']}",
            field="status",
        )
    return found


def validated_reason(reason: object) -> str:
    """Return why somebody wants runs to end.

    Raises:
        InvalidRequest: it is not text.
    """
    if not isinstance(reason, str):
        raise InvalidRequest("the reason is text", field="reason")
    return reason[:_REASON_CHARS_MAX] or _NO_REASON


def validated_resolution(*, result: Any, error: str | None, void: bool) -> dict[str, Any]:
    """Return what somebody says became of a call.

    Raises:
        InvalidRequest: it is said in two ways, or in none, or the error is not text.
    """
    if (result is not UNSET) + (error is not None) + bool(void) != 1:
        raise InvalidRequest(
            "say what became of the call in one way: result=…, which may be None, error=… or "
            "void=True"
        )
    if error is not None and not isinstance(error, str):
        raise InvalidRequest("the error is text", field="error")
    if error is not None:
        return {"outcome": "failed", "error": error[:_REASON_CHARS_MAX] or _NO_REASON}
    return {"outcome": "void"} if void else {"outcome": "done", "result": result}


def validated_age_ms(age: Duration) -> int:
    """Return, in milliseconds, how old at the least something is that is to be swept.

    Raises:
        InvalidRequest: less than a day, or not a duration.
    """
    ms = milliseconds_of(age, "older_than")
    if ms < milliseconds_of(_AGE_MIN, "older_than"):
        raise InvalidRequest("older_than is a day at the least", field="older_than")
    return ms


def validated_user(user: str | None) -> str | None:
    """Return for whom a run is.

    Raises:
        InvalidName: it cannot be a user.
    """
    if user is None:
        return None
    try:
        fits = isinstance(user, str) and 1 <= len(user.encode()) <= _USER_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidName(f"a user is text of 1 to {_USER_BYTES_MAX} bytes", field="user")
    return user


def moment_ms(moment: datetime, field: str) -> int:
    """Return a time as it is kept.

    Raises:
        InvalidRequest: it has no time zone, or is out of range.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidRequest(f"{field} is a datetime with a time zone, not {moment!r}", field=field)
    ms = round(moment.timestamp() * 1000)
    if not 0 <= ms <= 9_999_999_999_999:
        raise InvalidRequest(f"{field} is out of range: {moment}", field=field)
    return ms


def positive_ms(duration: Duration, field: str) -> int:
    """Return a duration that is longer than nothing.

    Raises:
        InvalidRequest: it is none.
    """
    ms = milliseconds_of(duration, field)
    if ms == 0:
        raise InvalidRequest(f"{field} is more than 0 seconds", field=field)
    return ms
