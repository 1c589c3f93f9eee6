"""Finds the nodes that a chooser may return by reading its code."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

__all__ = ["Chooser", "referenced_values"]

Chooser: TypeAlias = Callable[[Any], Any]
"""Takes the state, returns the next node."""

_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")

# A string that is compared or used as a key is not the name of the next node.
_NOT_RESULTS = ("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP")


def referenced_values(function: Any) -> Iterator[Any]:
    """Yield the objects and the strings that a chooser's code refers to."""
    while isinstance(function, functools.partial):
        yield from function.args
        yield from function.keywords.values()
        function = cast(Any, function.func)
    if inspect.ismethod(function):
        function = function.__func__
    if not inspect.isfunction(function):
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from _referenced_in_code(function.__code__, function.__globals__, cells)


def _referenced_in_code(
    code: types.CodeType, names: Mapping[str, Any], cells: Mapping[str, Any]
) -> Iterator[Any]:
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        kind, value = instruction.opname, instruction.argval
        after = instructions[position + 1 : position + 2]
        if kind in _GLOBALS and value in names:
            yield _resolved_attribute(names[value], instructions[position + 1 :])
        elif kind in _CELLS and value in cells:
            yield _resolved_attribute(cells[value], instructions[position + 1 :])
        elif isinstance(value, types.CodeType):
            yield from _referenced_in_code(value, names, cells)
        elif isinstance(value, str) and kind in ("LOAD_CONST", "RETURN_CONST"):
            if not (after and after[0].opname in _NOT_RESULTS):
                yield value
        elif isinstance(value, tuple) and kind == "LOAD_CONST":
            yield from value


def _resolved_attribute(value: Any, following: list[dis.Instruction]) -> Any:
    """Return the object that ``module.name`` refers to, if the value is a module."""
    for instruction in following:
        if instruction.opname not in _ATTRIBUTES or not isinstance(value, types.ModuleType):
            break
        value = getattr(value, instruction.argval, None)
    return value
