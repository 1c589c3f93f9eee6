"""A node of a graph: a function and its options."""

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
    "CONTEXT_NAMES",
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
"""Ends the run: the last argument of a route, or a value that a chooser returns."""

AnyFunction: TypeAlias = Callable[..., Any]

Reference: TypeAlias = AnyFunction | str | Literal[_End.END]
"""A node, given by its function or its name; or END."""

CONTEXT_NAMES = ("ctx", "context")
"""A parameter with one of these names takes the context."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph."""

    name: str
    function: Callable[..., Any]
    is_sync: bool
    """Whether it is a plain function, which runs in a thread, and not a coroutine function."""
    takes_context: bool
    """Whether the function takes the context after the state."""
    pausable: Pausable = "yes"
    retry: Retry = ONCE
    timeout_ms: int | None = None
    max_pause_ms: int | None = None
    on_stale: OnStale | None = None
    writes: frozenset[str] | None = None
    """The fields that the node may change; None if they are not known."""
    writes_declared: bool = False
    """Whether the user declared them. Otherwise they come from the return annotation."""


def restart(node: Callable[..., Any] | str) -> OnStale:
    """Return the rule that a run goes back to a node when its pause exceeds ``max_pause``.

    Pass the name if the node was registered under another name than that of its function.
    """
    return OnStale("restart", name_of(node))


def escalate(node: Callable[..., Any] | str) -> OnStale:
    """Return the rule that a run goes on to a node when its pause exceeds ``max_pause``."""
    return OnStale("escalate", name_of(node))


def fail() -> OnStale:
    """Return the rule that a run fails when its pause exceeds ``max_pause``."""
    return OnStale("fail")


def name_of(node: AnyFunction | str) -> str:
    """Return the name of a node: a given name, or that of the function.

    Raises:
        InvalidGraph: the argument is not a function, or the function has no name.
    """
    if isinstance(node, str):
        return node
    if not callable(node):
        raise InvalidGraph(f"a node must be a function, got {node!r:.80}")
    name = getattr(node, "__name__", None)
    if not isinstance(name, str):
        raise InvalidGraph(f"{node!r:.80} has no __name__: pass name=")
    return name


def function_identity(function: Any) -> tuple[int, ...]:
    """Return a key that identifies a function for as long as it exists."""
    if inspect.ismethod(function):
        # Every access to a method creates a new object.
        return id(function.__self__), id(function.__func__)
    return (id(function),)


def is_sync_function(function: AnyFunction) -> bool:
    """Return whether the function is a plain function, and not a coroutine function."""
    return not _passes_any(function, inspect.iscoroutinefunction)


def takes_context(function: AnyFunction) -> bool:
    """Return whether the function takes the context as its second argument.

    A second parameter with a default takes it only if it is called ``ctx`` or ``context``. Others
    are often loop variables bound by a default.
    """
    if not _accepts_positional(function, 2):
        return False
    second = list(inspect.signature(function).parameters.values())[1:2]
    has_default = any(parameter.default is not inspect.Parameter.empty for parameter in second)
    return not has_default or second[0].name in CONTEXT_NAMES


def takes_state(function: AnyFunction) -> bool:
    """Return whether the function can be called with the state alone."""
    return _accepts_positional(function, 1)


def function_fault(function: AnyFunction) -> str | None:
    """Return why a function cannot be a node; None if it can."""
    if _passes_any(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        return "a node must not be a generator function"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "the signature of the function cannot be read"
    if not takes_state(function) and not takes_context(function):
        return f"a node must take (state) or (state, ctx), got {signature}"
    if next(iter(signature.parameters)) == "ctx":
        return f"a node must take the state first and ctx second, got {signature}"
    return None


def name_fault(name: Any) -> str | None:
    """Return why a graph or a node cannot have a name; None if it can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return (
            "it must have 1 to 64 characters, each a letter a to z, a digit, '_', '-' or '.', "
            f"got {name!r:.80}"
        )
    if name == END.value:
        return "it must not be 'END', which ends a run"
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
    # Calling an object calls the __call__ of its type.
    called = inspect.getattr_static(type(function), "__call__", None)
    return any(test(function) or test(called) for test in tests)
