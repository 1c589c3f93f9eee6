"""Types as JSON schemas, for models that are to answer in them or to call functions with them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict, cast

import msgspec
import msgspec.inspect

from holdfast.errors import InvalidAnswer, InvalidArguments, InvalidRequest
from holdfast.graph.fields import nested_types, normalized_typed_dict
from holdfast.graph.mismatch import Mismatch, pydantic_mismatch
from holdfast.graph.pydantic_shape import is_pydantic_model
from holdfast.graph.values import converted
from holdfast.model.invocation import ToolSpec

__all__ = ["ConvertArguments", "arguments_schema", "schema_of", "tool_of", "validated"]

ConvertArguments: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Turns the arguments that a model gave into those that a function takes, or raises
`InvalidArguments`, whose message can be told to the model."""

# What the engine hands to a tool; no model is asked for it.
_INJECTED_PARAMETERS = frozenset({"ctx", "idempotency_key"})


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type: a TypedDict, struct, dataclass or pydantic model, say.

    Raises:
        InvalidRequest: JSON cannot express it.
    """
    return _schema(kind, f"{_name(kind)} has no JSON schema")


def validated(value: Any, kind: Any) -> Any:
    """Return what a model answered as that type has it.

    Raises:
        InvalidAnswer: it does not fit; ``field`` says where.
    """
    try:
        if is_pydantic_model(kind):
            try:
                return kind.model_validate(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise pydantic_mismatch(error, kind) from None
        return converted(
            value, normalized_typed_dict(kind) if typing.is_typeddict(kind) else kind, objects=False
        )
    except Mismatch as misfit:
        raise InvalidAnswer(
            f"the answer does not fit {_name(kind)}: {misfit}", field=misfit.field
        ) from None


def tool_of(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> tuple[ToolSpec, ConvertArguments]:
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
) -> tuple[dict[str, Any], ConvertArguments]:
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
    schema = _schema(kind, f"a parameter of {tool} has no JSON schema")
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
        except Mismatch as misfit:
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
        if parameter.name in _INJECTED_PARAMETERS:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"{tool} takes {parameter}, and a model gives every argument by its name",
                field=parameter.name,
            )
        found[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return found


def _schema(kind: Any, error_prefix: str) -> dict[str, Any]:
    try:
        if is_pydantic_model(kind):
            return _normalized(kind.model_json_schema())
        plain = normalized_typed_dict(kind) if typing.is_typeddict(kind) else kind
        schema = msgspec.json.schema(plain, schema_hook=_schema_hook)
        _restore_field_order([schema, *schema.get("$defs", {}).values()], plain)
        return _normalized(schema)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"{error_prefix}: {error}") from None


def _schema_hook(kind: Any) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know."""
    if is_pydantic_model(kind):
        return _inlined(cast(dict[str, Any], kind.model_json_schema()))
    raise TypeError(f"{_name(kind)} cannot be said in JSON")


def _normalized(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root says what it is, and whose objects have no further fields."""
    definitions = cast(dict[str, Any], schema.pop("$defs", {}))
    root = schema.get("$ref")
    if root is not None:
        schema = dict(definitions[_definition_name(root)])
    needed: dict[str, Any] = {}
    left = _references(schema)
    while left:
        name = left.pop()
        if name not in needed:
            needed[name] = definitions[name]
            left += _references(definitions[name])
    if needed:
        schema["$defs"] = {name: needed[name] for name in sorted(needed)}
    for each in _schemas(schema):
        if each.get("type") == "object" and "properties" in each:
            each.setdefault("additionalProperties", False)
    return schema


def _restore_field_order(schemas: list[dict[str, Any]], kind: Any) -> None:
    """Give the keys of TypedDicts the order in which they were written.

    msgspec sorts them; but a model answers in the order of the schema, and whoever lets it give its
    reasons before its verdict means that.
    """
    for part in nested_types(kind):
        if not isinstance(part, msgspec.inspect.TypedDictType):
            continue
        order = list(typing.get_type_hints(part.cls))
        for schema in schemas:
            properties = schema.get("properties", {})
            if schema.get("title") == part.cls.__name__ and properties.keys() == set(order):
                required = schema.get("required", ())
                schema["properties"] = {key: properties[key] for key in order}
                schema["required"] = [key for key in order if key in required]


def _schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all that it is made of."""
    if isinstance(part, list):
        for each in cast(list[Any], part):
            yield from _schemas(each)
    elif isinstance(part, dict):
        fields = cast(dict[str, Any], part)
        yield fields
        for each in fields.values():
            yield from _schemas(each)


def _references(schema: Any) -> list[str]:
    found = [each.get("$ref") for each in _schemas(schema)]
    return [_definition_name(reference) for reference in found if isinstance(reference, str)]


def _definition_name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references, for a place where its definitions cannot stand."""
    definitions = cast(dict[str, Any], schema.get("$defs", {}))

    def resolved(part: Any, seen: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [resolved(each, seen) for each in cast(list[Any], part)]
        if not isinstance(part, dict):
            return part
        fields = cast(dict[str, Any], part)
        name = _definition_name(str(fields.get("$ref", "")))
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
