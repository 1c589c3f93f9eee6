"""Types as JSON schemas, for models that are to answer in them or to call functions with them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict, cast

import msgspec

from holdfast.errors import InvalidAnswer, InvalidArguments, InvalidRequest
from holdfast.graph.models import is_model
from holdfast.graph.slots import cleared
from holdfast.graph.values import Misfit, complaint, converted
from holdfast.model.invocation import ToolSpec

__all__ = ["Convert", "arguments_schema", "schema_of", "tool_of", "validated"]

Convert: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Turns the arguments that a model gave into those that a function takes, or raises
`InvalidArguments`, whose message can be told to the model."""

# What the engine hands to a tool; no model is asked for it.
_HANDED = frozenset({"ctx", "idempotency_key"})


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type: a TypedDict, struct, dataclass or pydantic model, say.

    Raises:
        InvalidRequest: JSON cannot express it.
    """
    return _finished(_schema(kind, f"{_name(kind)} has no JSON schema"))


def validated(value: Any, kind: Any) -> Any:
    """Return what a model answered as that type has it.

    Raises:
        InvalidAnswer: it does not fit; ``field`` says where.
    """
    try:
        if is_model(kind):
            try:
                return kind.model_validate(value)
            except ValueError as error:
                raise complaint(error) from None
        return converted(value, cleared(kind) if typing.is_typeddict(kind) else kind, objects=False)
    except Misfit as misfit:
        raise InvalidAnswer(
            f"the answer does not fit {_name(kind)}: {misfit}", field=misfit.field
        ) from None


def tool_of(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> tuple[ToolSpec, Convert]:
    """Return a function as a tool: its name, what its docstring begins with, its parameters.

    Raises:
        InvalidRequest: a parameter cannot be given as JSON.
        InvalidPrompt: no tool can have this name.
    """
    named = name or getattr(function, "__name__", type(function).__name__)
    schema, convert = arguments_schema(function, name=named)
    if description is None:
        description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return ToolSpec(named, description, schema), convert


def arguments_schema(
    function: Callable[..., Any], *, name: str | None = None
) -> tuple[dict[str, Any], Convert]:
    """Return the JSON schema of a function's parameters, and what makes arguments of an object.

    ``ctx`` and ``idempotency_key`` are left out. A text in ``Annotated`` describes a parameter.

    Raises:
        InvalidRequest: a parameter has no name, or a type that JSON cannot express.
    """
    tool = name or getattr(function, "__name__", type(function).__name__)
    parameters = _parameters(function, tool)
    fields: dict[str, Any] = {}
    for each, (hint, default) in parameters.items():
        fields[each] = hint if default is inspect.Parameter.empty else NotRequired[hint]
    kind = cast(Any, TypedDict)(tool, fields)
    schema = _finished(_schema(kind, f"a parameter of {tool} has no JSON schema"))
    schema.pop("title", None)
    for each, (hint, default) in parameters.items():
        _describe(schema["properties"][each], hint, default)

    def convert(arguments: Mapping[str, Any]) -> dict[str, Any]:
        for each in arguments:
            if each not in parameters:
                known = ", ".join(parameters) or "none"
                raise InvalidArguments(
                    f"{tool} has no parameter {each!r:.80}; it has: {known}",
                    tool=tool,
                    field=str(each)[:80],
                )
        try:
            return cast(dict[str, Any], converted(dict(arguments), kind, objects=False))
        except Misfit as misfit:
            raise InvalidArguments(
                f"{tool} cannot be called so: {misfit}", tool=tool, field=misfit.field
            ) from None

    return schema, convert


def _parameters(function: Callable[..., Any], tool: str) -> dict[str, tuple[Any, Any]]:
    """Return the types and defaults of what a model may give."""
    try:
        signature = inspect.signature(function)
        called: Any = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(called, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the parameters of {tool} cannot be read: {error}", field=tool
        ) from None
    found: dict[str, tuple[Any, Any]] = {}
    for parameter in signature.parameters.values():
        if parameter.name in _HANDED:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"{tool} takes {parameter}, and a model gives every argument by its name",
                field=parameter.name,
            )
        found[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return found


def _schema(kind: Any, complaint: str) -> dict[str, Any]:
    try:
        if is_model(kind):
            return cast(dict[str, Any], kind.model_json_schema())
        plain = cleared(kind) if typing.is_typeddict(kind) else kind
        return msgspec.json.schema(plain, schema_hook=_foreign)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"{complaint}: {error}") from None


def _foreign(kind: Any) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know."""
    if is_model(kind):
        return _inlined(cast(dict[str, Any], kind.model_json_schema()))
    raise TypeError(f"{_name(kind)} cannot be said in JSON")


def _finished(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root says what it is, and whose objects have no further fields."""
    definitions = cast(dict[str, Any], schema.get("$defs", {}))
    root = schema.get("$ref")
    if root is not None:
        schema = {**definitions[root.rpartition("/")[2]], "$defs": definitions}
    _close(schema)
    if not _refers(schema):
        schema.pop("$defs", None)
    return schema


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for each in cast(list[Any], schema):
            _close(each)
    elif isinstance(schema, dict):
        fields = cast(dict[str, Any], schema)
        if fields.get("type") == "object" and "properties" in fields:
            fields.setdefault("additionalProperties", False)
        for each in fields.values():
            _close(each)


def _refers(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(_refers(each) for each in cast(list[Any], schema))
    if isinstance(schema, dict):
        fields = cast(dict[str, Any], schema)
        return "$ref" in fields or any(
            _refers(each) for name, each in fields.items() if name != "$defs"
        )
    return False


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references, for a place where its definitions cannot stand."""
    definitions = cast(dict[str, Any], schema.get("$defs", {}))

    def resolved(part: Any, seen: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [resolved(each, seen) for each in cast(list[Any], part)]
        if not isinstance(part, dict):
            return part
        fields = cast(dict[str, Any], part)
        name = str(fields.get("$ref", "")).rpartition("/")[2]
        if not name:
            return {key: resolved(each, seen) for key, each in fields.items() if key != "$defs"}
        if name in seen:
            raise TypeError(f"{name} holds itself, and can only be the whole")
        others = {key: each for key, each in fields.items() if key != "$ref"}
        return {**resolved(definitions[name], (*seen, name)), **others}

    return cast(dict[str, Any], resolved(schema, ()))


def _describe(schema: dict[str, Any], hint: Any, default: Any) -> None:
    if typing.get_origin(hint) is Annotated:
        texts = [each for each in typing.get_args(hint)[1:] if isinstance(each, str)]
        if texts:
            schema.setdefault("description", texts[0])
    if default is inspect.Parameter.empty or default is None:
        return
    # Where JSON cannot say it, Python knows it; a model has to know only that it may be left out.
    with suppress(TypeError, ValueError):
        schema.setdefault("default", msgspec.to_builtins(default, str_keys=True))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)
