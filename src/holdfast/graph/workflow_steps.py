"""Reads the steps of a workflow from the code of its function, in the order of the source.

A step is what the function asks of its context: a call, a model, a wait, a sleep, a child. What the
code does not name is shown as ``…``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.graph.declared_waits import (
    names_of,
    parsed_function,
    plain_function,
    referenced,
    span_ms_of,
)
from holdfast.graph.node import CONTEXT_NAMES, AnyFunction
from holdfast.model.conditions import Timer, timer
from holdfast.model.durations import duration_text
from holdfast.model.program import Program
from holdfast.model.signals import SignalName, signal

__all__ = ["Attempt", "Block", "Choice", "Exit", "Loop", "Step", "steps_of"]

UNREAD = "…"
_INLINED_MAX = 8

_FunctionTree: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Step(msgspec.Struct, frozen=True):
    """Something that the function asks of its context."""

    label: str


class Choice(msgspec.Struct, frozen=True):
    """Alternatives, of which one is taken; an empty one passes by."""

    options: tuple[tuple[Block, ...], ...]


class Loop(msgspec.Struct, frozen=True):
    """Steps that are repeated."""

    body: tuple[Block, ...]
    is_endless: bool
    """Whether it starts for certain and only a ``break`` or ``return`` leaves it."""


class Attempt(msgspec.Struct, frozen=True):
    """A ``try`` with its handlers."""

    body: tuple[Block, ...]
    handlers: tuple[tuple[Block, ...], ...]
    final: tuple[Block, ...]


class Exit(msgspec.Struct, frozen=True):
    """A statement after which the next one does not run."""

    kind: Literal["return", "raise", "break", "continue"]


Block: TypeAlias = Step | Choice | Loop | Attempt | Exit


def steps_of(function: AnyFunction) -> tuple[Block, ...] | None:
    """Return the steps that the code of a function shows; None if it cannot be read."""
    try:
        plain = plain_function(function)
        tree = parsed_function(plain)
        return None if tree is None else tuple(_Reader(tree, names_of(plain)).read())
    except (RecursionError, ValueError, AttributeError, TypeError):
        return None


class _Reader:
    """Reads the code of one function."""

    def __init__(self, tree: _FunctionTree, names: Mapping[str, Any]) -> None:
        self._tree = tree
        self._names = names
        parameters = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
        named = [each for each in parameters if each in CONTEXT_NAMES]
        self._contexts = frozenset(named or parameters[1:2])
        self._callers = frozenset(self._names_of_callers())
        inner = [each for each in ast.walk(tree) if isinstance(each, _FunctionTree)]
        self._inner = {each.name: each for each in inner if each is not tree}
        self._locals = frozenset(_assigned_names(tree)) - self._inner.keys()
        self._inlining: list[str] = []

    def read(self) -> Iterator[Block]:
        """Yield the steps of the function."""
        yield from self._statements(self._tree.body)

    def _names_of_callers(self) -> Iterator[str]:
        """Yield the variables that hold what ``ctx.with_options`` returned."""
        for each in ast.walk(self._tree):
            if isinstance(each, ast.Assign) and self._is_caller(each.value):
                yield from (name.id for name in each.targets if isinstance(name, ast.Name))

    # --- statements -------------------------------------------------------------------------------

    def _statements(self, body: Iterable[ast.stmt]) -> Iterator[Block]:
        for statement in body:
            yield from self._statement(statement)

    def _block(self, body: Iterable[ast.stmt]) -> tuple[Block, ...]:
        return tuple(self._statements(body))

    def _statement(self, statement: ast.stmt) -> Iterator[Block]:
        match statement:
            case ast.If(test, body, orelse):
                yield from self._steps(test)
                yield from _choice(self._block(body), self._block(orelse))
            case ast.For(iter=items) | ast.AsyncFor(iter=items):
                yield from self._steps(items)
                yield from _loop(self._block(statement.body))
                yield from self._statements(statement.orelse)
            case ast.While(test, body, orelse):
                endless = isinstance(test, ast.Constant) and bool(test.value)
                yield from _loop((*self._steps(test), *self._block(body)), is_endless=endless)
                yield from self._statements(orelse)
            case ast.Try(body, handlers, orelse, final) | ast.TryStar(
                body, handlers, orelse, final
            ):
                handled = tuple(self._block(each.body) for each in handlers)
                yield Attempt(self._block([*body, *orelse]), handled, self._block(final))
            case ast.Match(subject, cases):
                yield from self._steps(subject)
                taken = [self._block(each.body) for each in cases]
                yield from _choice(*taken, *([] if _has_wildcard(cases) else [()]))
            case ast.With(items, body) | ast.AsyncWith(items, body):
                for item in items:
                    yield from self._steps(item.context_expr)
                yield from self._statements(body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return  # its steps are those of the place that calls it
            case ast.Return():
                yield from self._steps(statement.value)
                yield Exit("return")
            case ast.Raise():
                yield from self._steps(statement.exc)
                yield Exit("raise")
            case ast.Break():
                yield Exit("break")
            case ast.Continue():
                yield Exit("continue")
            case _:
                yield from self._steps(statement)

    # --- expressions ------------------------------------------------------------------------------

    def _steps(self, node: ast.AST | None) -> Iterator[Block]:
        """Yield the steps of an expression, those of arguments first."""
        match node:
            case None | ast.Lambda():
                return
            case ast.IfExp(test, body, orelse):
                yield from self._steps(test)
                yield from _choice(tuple(self._steps(body)), tuple(self._steps(orelse)))
            case ast.BoolOp(values=values):
                yield from self._steps(values[0])
                for later in values[1:]:
                    yield from _choice(tuple(self._steps(later)), ())
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from self._steps(node.generators[0].iter)
                parts: list[ast.AST] = [node.value] if isinstance(node, ast.DictComp) else []
                parts += [node.key] if isinstance(node, ast.DictComp) else [node.elt]
                conditions = [test for each in node.generators for test in each.ifs]
                inner = [step for each in (*conditions, *parts) for step in self._steps(each)]
                yield from _loop(tuple(inner))
            case ast.Call():
                yield from self._call(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._steps(child)

    def _call(self, call: ast.Call) -> Iterator[Block]:
        for argument in (*call.args, *(word.value for word in call.keywords)):
            yield from self._steps(argument)
        match call.func:
            case ast.Attribute(owner, "call") if self._is_caller(owner):
                yield Step(self._function_label(_argument(call, 0)))
            case ast.Attribute(ast.Name(owner), method) if owner in self._contexts:
                if label := _LABELS.get(method):
                    yield Step(label(self, call))
            case ast.Name(name) if name in self._inner:
                yield from self._inlined(name)
            case _:
                yield from self._steps(call.func)
                if any(self._is_context(each) for each in call.args) or any(
                    self._is_context(word.value) for word in call.keywords
                ):
                    # The steps are in the code of another function, or of an agent.
                    yield Step(f"{_dotted(call.func) or ''} {UNREAD}".strip())

    def _inlined(self, name: str) -> Iterator[Block]:
        """Yield the steps of a function that is defined inside of this one."""
        if name in self._inlining or len(self._inlining) >= _INLINED_MAX:
            yield Step(f"{name} {UNREAD}")
            return
        self._inlining.append(name)
        body = self._block(self._inner[name].body)
        self._inlining.pop()
        # Its returns lead back here and not to the end of the run.
        yield from _without_returns(body)

    def _is_context(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._contexts

    def _is_caller(self, node: ast.expr) -> bool:
        """Return whether an expression has calls: ``ctx.with_options(…)``, or a variable of it."""
        match node:
            case ast.Call(ast.Attribute(ast.Name(owner), "with_options")):
                return owner in self._contexts
            case ast.Name(name):
                return name in getattr(self, "_callers", ())
            case _:
                return False

    # --- labels -----------------------------------------------------------------------------------

    def _function_label(self, function: ast.expr | None) -> str:
        name = None if function is None else _dotted(function)
        if name is None or name.partition(".")[0] in self._locals:
            return UNREAD
        return name

    def _call_label(self, call: ast.Call) -> str:
        return self._function_label(_argument(call, 0))

    def _model_label(self, call: ast.Call) -> str:
        name = self._value(_argument(call, 0, "name"))
        return f"{name if isinstance(name, str) else UNREAD} (model)"

    def _wait_label(self, call: ast.Call) -> str:
        conditions = call.args or [each for each in [_argument(call, 0, "condition")] if each]
        return "wait: " + " or ".join(self._condition_label(each) for each in conditions)

    def _sleep_label(self, call: ast.Call) -> str:
        duration = _argument(call, 0, "duration")
        span_ms = None if duration is None else span_ms_of(duration, self._names)
        return f"sleep: {UNREAD if span_ms is None else duration_text(span_ms)}"

    def _start_label(self, call: ast.Call) -> str:
        return f"start: {self._program_label(_argument(call, 0, 'graph'))}"

    def _run_label(self, call: ast.Call) -> str:
        return f"run: {self._program_label(_argument(call, 0, 'graph'))}"

    def _program_label(self, program: ast.expr | None) -> str:
        known = self._value(program)
        return known.name if isinstance(known, Program) else self._function_label(program)

    def _condition_label(self, condition: ast.expr) -> str:
        if isinstance(condition, ast.Call) and condition.args:
            made, given = self._value(condition.func), condition.args[0]
            if made is signal:
                name = self._value(given)
                return name if isinstance(name, str) else UNREAD
            if made is timer:
                span_ms = span_ms_of(given, self._names)
                return UNREAD if span_ms is None else duration_text(span_ms)
        known = self._value(condition)
        if isinstance(known, SignalName):
            return known.name
        if isinstance(known, Timer):
            return duration_text(known.duration_ms)
        return UNREAD

    def _value(self, expression: ast.expr | None) -> Any:
        """Return the value of a constant or of a name outside of the function; None otherwise."""
        if isinstance(expression, ast.Constant):
            return expression.value
        try:
            return None if expression is None else referenced(expression, self._names)
        except LookupError:
            return None


_LABELS: Mapping[str, Callable[[_Reader, ast.Call], str]] = {
    "call": _Reader._call_label,  # pyright: ignore[reportPrivateUsage]
    "model": _Reader._model_label,  # pyright: ignore[reportPrivateUsage]
    "wait": _Reader._wait_label,  # pyright: ignore[reportPrivateUsage]
    "wait_any": _Reader._wait_label,  # pyright: ignore[reportPrivateUsage]
    "sleep": _Reader._sleep_label,  # pyright: ignore[reportPrivateUsage]
    "start": _Reader._start_label,  # pyright: ignore[reportPrivateUsage]
    "run": _Reader._run_label,  # pyright: ignore[reportPrivateUsage]
}


def _choice(*options: tuple[Block, ...]) -> Iterator[Block]:
    if any(options):
        yield Choice(options)


def _loop(body: tuple[Block, ...], *, is_endless: bool = False) -> Iterator[Block]:
    if body:
        yield Loop(body, is_endless)


def _without_returns(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        match block:
            case Exit("return"):
                return
            case Choice(options):
                yield Choice(tuple(tuple(_without_returns(each)) for each in options))
            case Loop(body, endless):
                yield Loop(tuple(_without_returns(body)), endless)
            case Attempt(body, handlers, final):
                handled = tuple(tuple(_without_returns(each)) for each in handlers)
                yield Attempt(
                    tuple(_without_returns(body)), handled, tuple(_without_returns(final))
                )
            case _:
                yield block


def _argument(call: ast.Call, position: int, keyword: str = "") -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((word.value for word in call.keywords if word.arg == keyword), None)


def _dotted(expression: ast.expr) -> str | None:
    """Return a name with dots; None for another expression."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute) and (owner := _dotted(expression.value)):
        return f"{owner}.{expression.attr}"
    return None


def _assigned_names(tree: _FunctionTree) -> Iterator[str]:
    yield from (each.arg for each in ast.walk(tree.args) if isinstance(each, ast.arg))
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _has_wildcard(cases: Iterable[ast.match_case]) -> bool:
    patterns = [each.pattern for each in cases if each.guard is None]
    return any(isinstance(each, ast.MatchAs) and each.pattern is None for each in patterns)
