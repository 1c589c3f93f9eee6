"""An invocation of a Lambda function: its time left, and the event loop that all of them share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from holdfast.errors import StoreClosed
from holdfast.portal import Portal

__all__ = ["Event", "Handler", "LambdaContext", "run_in_loop", "seconds_left", "shape_of"]

T = TypeVar("T")
Event: TypeAlias = Any
"""What Lambda passes to a handler: any JSON value."""

# Lambda kills the process at its timeout. The answer has to be out before that.
_RETURN_SECONDS = 1.0


class LambdaContext(Protocol):
    """The part of Lambda's context that the handlers use."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation may still take."""
        ...


Handler: TypeAlias = Callable[[Event, LambdaContext], Any]


def seconds_left(context: LambdaContext) -> float:
    """Return how long a handler may still work, so that its answer is out in time."""
    return max(0.0, context.get_remaining_time_in_millis() / 1000 - _RETURN_SECONDS)


def shape_of(value: object) -> str:
    """Return what a part of an event is, without its values: they may be secret."""
    if isinstance(value, dict):
        names = ", ".join(sorted(f"{name!s:.40}" for name in cast("dict[Any, Any]", value))[:10])
        return f"a mapping with the keys: {names or 'none'}"
    return type(value).__name__


def run_in_loop(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call in the event loop of this process, and return its result.

    A `Holdfast` belongs to one event loop, so all invocations in a process share one.
    """
    portal = _portal()
    try:
        return portal.call(function)
    except StoreClosed as error:
        if portal.is_closed:
            # A node raised SystemExit, which ends the loop. Lambda starts a new process.
            sys.exit(f"the event loop has ended: {error}")
        raise


@functools.cache
def _portal() -> Portal:
    return Portal()
