"""A node: a function and what was declared about it."""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidGraph
from holdfast.model.policy import ONCE, OnStale, Pausable, Retry

__all__ = [
    "END",
    "AnyFunction",
    "Node",
    "Reference",
    "escalate",
    "fail",
    "function_fault",
    "function_identity",
    "is_sync_function",
    "name_fault",
    "name_of",
    "restart",
    "takes_context",
    "takes_state",
]


class _End(enum.Enum):
    """The type of END."""

    END = "END"

    def __repr__(self) -> str:
        return "END"

    __str__ = __repr__


END: Literal[_End.END] = _End.END
"""Where a run ends: the last of a route, or what a choice returns."""

AnyFunction: TypeAlias = Callable[..., Any]

Reference: TypeAlias = AnyFunction | str | Literal[_End.END]
"""A node by its function or its name, or the end."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph."""

    name: str
    function: AnyFunction
    is_sync: bool
    """Whether it is a plain function, to be run in a thread, and not a coroutine function."""
    takes_context: bool
    """Whether it takes the context after the state."""
    pausable: Pausable = "yes"
    retry: Retry = ONCE
    timeout_ms: int | None = None
    max_pause_ms: int | None = None
    on_stale: OnStale | None = None
    writes: frozenset[str] | None = None
    """The fields that it may change; None where that is not known."""
    writes_declared: bool = False
    """Whether that was declared, and not only derived."""


def restart(node: AnyFunction | str) -> OnStale:
    """Return the rule that a run whose pause took too long goes back to that node.

    A node that was registered under another name than its function's is given by that name.
    """
    return OnStale("restart", name_of(node))


def escalate(node: AnyFunction | str) -> OnStale:
    """Return the rule that a run whose pause took too long goes to a node that sees to that."""
    return OnStale("escalate", name_of(node))


def fail() -> OnStale:
    """Return the rule that a run whose pause took too long fails."""
    return OnStale("fail")


def name_of(node: AnyFunction | str) -> str:
    """Return the name of a node, which is its function's unless another is given.

    Raises:
        InvalidGraph: it is not a function, or has no name.
    """
    if isinstance(node, str):
        return node
    if not callable(node):
        raise InvalidGraph(f"a node is a function, not {node!r:.80}")
    name = getattr(node, "__name__", None)
    if not isinstance(name, str):
        raise InvalidGraph(f"{node!r:.80} has no name of its own; give it one with name=")
    return name


def function_identity(function: Any) -> tuple[int, ...]:
    """Return what tells a function from any other, as long as it lives."""
    if inspect.ismethod(function):
        # Every look at a method of an object makes a new one.
        return id(function.__self__), id(function.__func__)
    return (id(function),)


def is_sync_function(function: AnyFunction) -> bool:
    """Return whether calling the function does its work, rather than returning a coroutine."""
    return not _passes_any(function, inspect.iscoroutinefunction)


def takes_context(function: AnyFunction) -> bool:
    """Return whether the function asks for something after the state.

    A second parameter that has a default does not, unless it is called ``ctx`` or ``context``: it
    may be how a loop hands its variable on.
    """
    if not _accepts_positional(function, 2):
        return False
    second = list(inspect.signature(function).parameters.values())[1:2]
    has_default = any(parameter.default is not inspect.Parameter.empty for parameter in second)
    return not has_default or second[0].name in ("ctx", "context")


def takes_state(function: AnyFunction) -> bool:
    """Return whether the function can be called with the state alone."""
    return _accepts_positional(function, 1)


def function_fault(function: AnyFunction) -> str | None:
    """Return what keeps a function from being a node."""
    if _passes_any(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        return "it is a generator function, and a node returns once"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "its parameters cannot be told"
    if not takes_state(function) and not takes_context(function):
        return f"a node takes (state) or (state, ctx), not {signature}"
    if next(iter(signature.parameters)) == "ctx":
        return f"a node takes the state first, then ctx, not {signature}"
    return None


def name_fault(name: Any) -> str | None:
    """Return what keeps a name from being that of a graph or a node."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return (
            f"{name!r:.80} is not a name: 1 to 64 of the letters a to z, digits, '_', '-' and '.'"
        )
    if name == END.value:
        return "'END' is no name for a node, since it is where runs end"
    return None


def _accepts_positional(function: AnyFunction, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _passes_any(function: AnyFunction, *tests: Callable[[Any], bool]) -> bool:
    while isinstance(function, functools.partial):
        function = cast(AnyFunction, function.func)
    # An object is called as its type says.
    called = inspect.getattr_static(type(function), "__call__", None)
    return any(test(function) or test(called) for test in tests)
