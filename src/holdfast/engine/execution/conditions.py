"""What a node passes to its waits, checked before anything is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.values import durable
from holdfast.model.conditions import Timer
from holdfast.model.names import validated_name
from holdfast.model.program import Program, ResultT
from holdfast.model.signals import SignalName
from holdfast.model.wait import ChildWait, SignalWait, TimerWait, WaitKind
from holdfast.records.codec import encode

__all__ = [
    "ABOUT_BYTES_MAX",
    "ChildCondition",
    "packed_about",
    "takes_max_wait",
    "validated_conditions",
]

P = ParamSpec("P")
T = TypeVar("T")

ABOUT_BYTES_MAX = 1_024
"""How large the packed ``about`` of a wait may be: it is stored in the run's row."""


class ChildCondition(Generic[ResultT]):
    """A child of a run, as a node refers to it. As a condition: the child has ended."""

    id: str
    """The id of the run."""
    graph: Program[Any, ResultT] | None
    """The graph of the run; None if it is unknown."""


def validated_conditions(conditions: Sequence[object]) -> tuple[WaitKind, ...]:
    """Return what each condition of a wait for the first of several waits for.

    Raises:
        InvalidRequest: there is none, one of them is no condition, or one is there twice.
        InvalidName: the name of a signal is not a valid name.
    """
    if not conditions:
        raise InvalidRequest("wait_any needs at least one condition", field="conditions")
    kinds = tuple(_kind_of(condition, index) for index, condition in enumerate(conditions))
    positions: dict[WaitKind, int] = {}
    for index, kind in enumerate(kinds):
        first = positions.setdefault(kind, index)
        if first < index:
            what = (
                "are both timers, and only the shorter one can ever win; pass that one"
                if isinstance(kind, TimerWait)
                else f"both wait for {kind.description('')}; pass it once"
            )
            raise InvalidRequest(
                f"conditions {first + 1} and {index + 1} of wait_any {what}", field="conditions"
            )
    return kinds


def _kind_of(condition: object, index: int) -> WaitKind:
    match condition:
        case SignalName(name):
            return SignalWait(validated_name(name, "a signal's name"))
        case Timer():
            return TimerWait()
        case ChildCondition():
            return ChildWait(condition.id)
        case _:
            pass
    hint = ""
    if isinstance(condition, Coroutine):
        hint = "; pass the child itself, not child.result()"
        cast(Coroutine[Any, Any, Any], condition).close()  # it is never awaited
    elif isinstance(condition, str):
        hint = f"; did you mean signal({condition!r:.80})?"
    raise InvalidRequest(
        f'condition {index + 1} of wait_any must be signal("name"), timer(duration) or a child '
        f"that ctx.start returned, got {condition!r:.80}{hint}",
        field="conditions",
    )


def takes_max_wait(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method that waits say so where it gets ``timeout`` instead of ``max_wait``."""

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "timeout" in kwargs:
            raise InvalidRequest(
                f"{method.__name__} takes max_wait=…, not timeout=…: the wait may outlast this "
                "process",
                field="timeout",
            )
        return method(*args, **kwargs)

    return checked


def packed_about(about: Any) -> bytes | msgspec.UnsetType:
    """Return what a node says about a wait, packed for the run's row.

    Raises:
        InvalidRequest: it is no JSON value, or too large.
    """
    if about is None:
        return msgspec.UNSET
    try:
        return encode(durable(about, bytes_max=ABOUT_BYTES_MAX))
    except TooLarge as error:
        raise InvalidRequest(
            f"about must have at most {ABOUT_BYTES_MAX:,} bytes packed, because it is stored in "
            f"the run's row, got {error.size:,}; pass an id, and keep the rest in the state",
            field="about",
        ) from None
    except Mismatch as error:
        raise InvalidRequest(f"about must be a JSON value: {error}", field="about") from None
