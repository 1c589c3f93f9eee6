"""The signature of a workflow's function: which parameters it has, and the types of its values."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Never, NoReturn, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidGraph
from holdfast.graph.node import CONTEXT_NAMES

__all__ = ["WorkflowSignature", "read_signature", "resolved_types"]

_CONTEXT_TYPES = ("Context", "BlockingContext")
_FORM = "async def {name}(order: Order, ctx: Context) -> Receipt"

_Parameter: TypeAlias = inspect.Parameter


class WorkflowSignature(msgspec.Struct, frozen=True):
    """What the function of a workflow takes."""

    input: inspect.Parameter | None
    """The parameter of the input; None if the function takes none."""
    takes_context: bool


def read_signature(function: Any, name: str) -> WorkflowSignature:
    """Return what a function takes.

    Raises:
        InvalidGraph: the function cannot be a workflow. The error says what to write instead.
    """
    if fault := _function_fault(function, name):
        raise InvalidGraph(f"workflow {name!r:.80} {fault}")
    parameters = list(_parameters(function, name))
    contexts = [each for each in parameters if _is_context(each)]
    inputs = [each for each in parameters if each not in contexts]
    form = _FORM.format(name=name if name.isidentifier() else "approve")
    shown = ", ".join(each.name for each in parameters)
    if len(inputs) > 1 or len(contexts) > 1:
        raise InvalidGraph(
            f"workflow {name!r:.80} must take at most one input, and ctx after it, got ({shown}): "
            f"put the values of the input into one class, such as {form}{_context_hint(parameters)}"
        )
    if contexts and inputs and parameters[0] is contexts[0]:
        raise InvalidGraph(
            f"workflow {name!r:.80} must take its input first and {contexts[0].name} second, got "
            f"({shown}): write {form}"
        )
    return WorkflowSignature(inputs[0] if inputs else None, bool(contexts))


def resolved_types(function: Callable[..., Any], signature: WorkflowSignature) -> tuple[Any, Any]:
    """Return the types of the input and of the result; `Any` where there is no annotation.

    Raises:
        InvalidGraph: an annotation names something that does not exist.
    """
    plain = cast(types.FunctionType, inspect.unwrap(function))
    wanted: dict[str, Any] = {}
    if signature.input is not None and signature.input.annotation is not inspect.Parameter.empty:
        wanted["input"] = signature.input.annotation
    returned = inspect.signature(function).return_annotation
    if returned is not inspect.Signature.empty:
        wanted["return"] = returned
    # Only these two: the annotation of ctx may be imported for type checkers alone.
    holder = types.SimpleNamespace(__annotations__=wanted)
    try:
        found = typing.get_type_hints(
            holder, plain.__globals__, inspect.getclosurevars(plain).nonlocals, include_extras=True
        )
    except Exception as error:  # resolving unknown names can raise anything
        raise InvalidGraph(
            f"the types of workflow {function.__name__!r:.80} cannot be resolved: {error}; define "
            "them in the module of the function, outside of other functions"
        ) from None
    result = found.get("return", Any)
    return found.get("input", Any), Any if result in (Never, NoReturn) else result


def _function_fault(function: Any, name: str) -> str | None:
    form = _FORM.format(name=name if name.isidentifier() else "approve")
    if inspect.isclass(function):
        return f"must be a function, got a class: write {form}"
    if inspect.ismethod(function) or _is_defined_in_class(function):
        return (
            f"must be a function, got a method: write {form} outside of the class, and let it use "
            "the object"
        )
    if not inspect.isfunction(function):
        return f"must be a function made by def or async def, got {function!r:.80}: write {form}"
    plain = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        return f"must return its result and must not yield: write {form}"
    return None


def _is_defined_in_class(function: Any) -> bool:
    if isinstance(function, staticmethod | classmethod):
        return True
    owner = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def _parameters(function: Any, name: str) -> typing.Iterator[_Parameter]:
    """Yield the parameters of a function, which all have a position."""
    form = _FORM.format(name=name if name.isidentifier() else "approve")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            shown = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
            only = "keyword-only " if parameter.kind is parameter.KEYWORD_ONLY else ""
            raise InvalidGraph(
                f"workflow {name!r:.80} must take at most one input, and ctx after it, got the "
                f"{only}parameter {shown}: write {form}"
            )
        yield parameter


def _context_hint(parameters: list[_Parameter]) -> str:
    """Return what to write if the second of two parameters is meant to be the context."""
    if len(parameters) != 2 or any(_is_context(each) for each in parameters):
        return ""
    second = parameters[1].name
    return f"; if {second} is the context, call it ctx, or annotate it as Context"


def _is_context(parameter: _Parameter) -> bool:
    if parameter.name in CONTEXT_NAMES:
        return True
    if parameter.default is not parameter.empty:
        return False  # as for nodes: it is often a value bound by its default
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(named).rpartition(".")[2].strip("'\"") in _CONTEXT_TYPES
