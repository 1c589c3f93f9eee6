"""Finds the waits and sleeps of a fixed length in the code of nodes.

A run that expires earlier cannot sit them out. What the code does not show as a constant is not
found, and neither is anything in a function without readable source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.node import CONTEXT_NAMES, AnyFunction, Node
from holdfast.model.conditions import Timer, timer
from holdfast.model.durations import days, duration_text, hours, milliseconds_of, minutes, seconds

__all__ = [
    "DeclaredWait",
    "declared_waits",
    "names_of",
    "parsed_function",
    "plain_function",
    "referenced",
    "span_ms_of",
]

_WaitForm: TypeAlias = Literal["wait", "timer", "sleep", "pause"]

_UNITS: tuple[Callable[..., timedelta], ...] = (days, hours, minutes, seconds, timedelta)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
}
_WAITS = ("wait", "wait_any")


class DeclaredWait(msgspec.Struct, frozen=True):
    """A wait whose length the code of a graph shows."""

    node: str
    form: _WaitForm
    """``wait`` is a ``max_wait``, ``timer`` a condition of ``ctx.wait_any``, ``pause`` the
    ``max_pause`` of the node."""
    span_ms: int

    def warning(self, expires_in_ms: int) -> str:
        """Return for people what happens to it in a run that expires after that time."""
        span, expires = duration_text(self.span_ms), duration_text(expires_in_ms)
        does, then = _TEXTS[self.form]
        return f"node {self.node!r} {does} {span}, and the run expires after {expires}: {then}"


_TEXTS: Mapping[_WaitForm, tuple[str, str]] = {
    "wait": (
        "waits up to",
        "the wait will time out at the expiry; pass a longer expires=",
    ),
    "timer": (
        "waits with a timer of",
        "the timer will end at the expiry; pass a longer expires=",
    ),
    "sleep": (
        "sleeps for",
        "the sleep will raise WaitBeyondExpiry; pass a longer expires=",
    ),
    "pause": (
        "has a max_pause of",
        "the run will expire before on_stale applies; pass a longer expires=",
    ),
}


def declared_waits(nodes: Iterable[Node]) -> tuple[DeclaredWait, ...]:
    """Return the waits whose length the nodes declare or their code shows."""
    found: dict[DeclaredWait, None] = {}
    for node in nodes:
        if node.max_pause_ms is not None:
            found[DeclaredWait(node.name, "pause", node.max_pause_ms)] = None
        if node.takes_context:
            for form, span_ms in _waits_in_code(node.function):
                found[DeclaredWait(node.name, form, span_ms)] = None
    return tuple(found)


def _waits_in_code(function: AnyFunction) -> Iterator[tuple[_WaitForm, int]]:
    function = plain_function(function)
    tree = parsed_function(function)
    if tree is None:
        return
    parameters = [*tree.args.posonlyargs, *tree.args.args]
    contexts = {parameter.arg for parameter in parameters[1:3]}
    contexts |= {parameter.arg for parameter in parameters[:1] if parameter.arg in CONTEXT_NAMES}
    names = names_of(function)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner, method = call.func.value, call.func.attr
        if not isinstance(owner, ast.Name) or owner.id not in contexts:
            continue
        yield from _waits_of_call(call, method, names)


def _waits_of_call(
    call: ast.Call, method: str, names: Mapping[str, Any]
) -> Iterator[tuple[_WaitForm, int]]:
    """Yield the waits of a call of a method of the context."""
    found: dict[_WaitForm, list[int | None]] = {}
    if method == "sleep":
        given = [*_keyword(call, "duration"), *call.args[:1]]
        found["sleep"] = [span_ms_of(each, names) for each in given]
    elif method in _WAITS:
        found["wait"] = [span_ms_of(each, names) for each in _keyword(call, "max_wait")]
    if method == "wait_any":
        found["timer"] = [_timer_ms(each, names) for each in call.args]
    for form, spans in found.items():
        for span_ms in spans:
            if span_ms is not None:
                yield form, span_ms


def _keyword(call: ast.Call, name: str) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords if keyword.arg == name]


def _timer_ms(condition: ast.expr, names: Mapping[str, Any]) -> int | None:
    """Return the length of a timer, made in the call or before; None if it is no such condition."""
    try:
        if not isinstance(condition, ast.Call):
            made = referenced(condition, names)
            return made.duration_ms if isinstance(made, Timer) else None
        if referenced(condition.func, names) is not timer:
            return None
    except LookupError:
        return None
    given = [*condition.args, *_keyword(condition, "duration")]
    return span_ms_of(given[0], names) if len(given) == 1 else None


def plain_function(function: AnyFunction) -> Any:
    """Return the function as its code defines it, without wrappers."""
    while isinstance(function, functools.partial):
        function = cast(AnyFunction, function.func)
    if inspect.ismethod(function):
        return function.__func__
    return inspect.unwrap(function)


def parsed_function(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the syntax tree of a function; None if its source cannot be read."""
    if not inspect.isfunction(function):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError):
        return None
    first = tree.body[0] if tree.body else None
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None


def names_of(function: Any) -> Mapping[str, Any]:
    """Return the objects that a function's code finds outside of it, by name."""
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    own = set(function.__code__.co_varnames)
    return {name: value for name, value in function.__globals__.items() if name not in own} | cells


def span_ms_of(expression: ast.expr, names: Mapping[str, Any]) -> int | None:
    """Return the length of a duration of constants; None if it is something else."""
    try:
        return milliseconds_of(_constant(expression, names), "duration")
    except (ArithmeticError, InvalidRequest, LookupError, TypeError, ValueError):
        return None


def _constant(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of constants and durations.

    Raises:
        LookupError, TypeError, ArithmeticError, InvalidRequest: it is not such an expression.
    """
    match expression:
        case ast.Constant(value) if isinstance(value, int | float | str):
            return value
        case ast.Name() | ast.Attribute():
            value = referenced(expression, names)
            if isinstance(value, int | float | timedelta | str):
                return value
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            operands = _constant(left, names), _constant(right, names)
            if not any(isinstance(operand, str) for operand in operands):
                return _OPERATORS[type(op)](*operands)
        case ast.Call(func, args, keywords):
            if referenced(func, names) in _UNITS:
                given = {str(word.arg): _constant(word.value, names) for word in keywords}
                return referenced(func, names)(*(_constant(arg, names) for arg in args), **given)
        case _:
            pass
    raise LookupError


def referenced(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the object of a name, or of a name in a module.

    Raises:
        LookupError: the expression is something else, or the name is not known.
    """
    if isinstance(expression, ast.Name):
        return names[expression.id]
    if isinstance(expression, ast.Attribute):
        module = referenced(expression.value, names)
        if isinstance(module, types.ModuleType):
            return getattr(module, expression.attr, None)
    raise LookupError
