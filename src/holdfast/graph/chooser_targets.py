"""Finds the nodes that a chooser may return by reading its code."""

from __future__ import annotations

import dis
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from holdfast.graph.node import Reference
from holdfast.model.type_parameters import StateT

__all__ = ["Chooser", "chooser_name", "referenced_values", "returned_names"]

Chooser: TypeAlias = Callable[[StateT], Reference]
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
    yield from _referenced_in_code(function.__code__, function.__globals__, _cell_values(function))


def returned_names(function: Any) -> Iterator[str]:
    """Yield the texts that a chooser certainly returns, where a path of its code is taken.

    These are constants, the values of module constants and of enums that a ``return`` names, and
    those of a return annotation ``Literal[…]``.
    """
    function = _plain_function(function)
    if function is None:
        return
    yield from _literal_names(function)
    names = function.__globals__
    instructions = list(dis.get_instructions(function.__code__))
    by_offset = {each.offset: position for position, each in enumerate(instructions)}
    for position, instruction in enumerate(instructions):
        kind, value = instruction.opname, instruction.argval
        if kind == "RETURN_CONST":
            if isinstance(value, str):
                yield value
            continue
        after = position + 1
        if kind in _GLOBALS and value in names:
            value = names[value]
            while instructions[after].opname in _ATTRIBUTES and isinstance(
                value, type | types.ModuleType
            ):
                value = getattr(value, instructions[after].argval, None)
                after += 1
        elif kind != "LOAD_CONST":
            continue
        if isinstance(value, str) and _is_return(instructions, after, by_offset):
            yield value + ""  # the text of an enum's member


def chooser_name(function: Any) -> str:
    """Return how errors name a chooser."""
    while isinstance(function, functools.partial):
        function = cast(Any, function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _is_return(
    instructions: Sequence[dis.Instruction], position: int, by_offset: Mapping[int, int]
) -> bool:
    """Return whether the value that was pushed last is returned next."""
    instruction = instructions[position]
    if instruction.opname == "JUMP_FORWARD":
        instruction = instructions[by_offset[instruction.argval]]
    return instruction.opname == "RETURN_VALUE"


def _literal_names(function: types.FunctionType) -> Iterator[str]:
    try:
        annotation = typing.get_type_hints(function).get("return")
    except Exception:  # resolving unknown names can raise anything
        return
    parts = typing.get_args(annotation)
    for part in (annotation,) if typing.get_origin(annotation) is typing.Literal else parts:
        if typing.get_origin(part) is typing.Literal:
            yield from (each for each in typing.get_args(part) if isinstance(each, str))


def _plain_function(function: Any) -> types.FunctionType | None:
    while isinstance(function, functools.partial):
        function = cast(Any, function.func)
    function = function.__func__ if inspect.ismethod(function) else function
    return function if inspect.isfunction(function) else None


def _cell_values(function: types.FunctionType) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return cells


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
