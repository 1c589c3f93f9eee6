"""JSON schemas of Python types, for the answers of models and the arguments of tools."""

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
"""Converts the arguments from a model to those of the function, or raises `InvalidArguments`.

The message of the error can be sent to the model."""

# The engine passes these to a tool, so they are not part of its schema.
_INJECTED_PARAMETERS = frozenset({"ctx", "idempotency_key"})


def schema_of(kind: Any, *, open_models: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a type, such as a TypedDict or a pydantic model.

    With ``open_models`` a pydantic model that does not forbid other fields allows them.

    Raises:
        InvalidRequest: JSON cannot express the type.
    """
    return _schema(kind, f"{_name(kind)} has no JSON schema", open_models=open_models)


def validated(value: Any, kind: Any) -> Any:
    """Return the answer of a model, converted to a type.

    Raises:
        InvalidAnswer: the answer does not fit the type. ``field`` says where.
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
    except Mismatch as mismatch:
        raise InvalidAnswer(
            f"the answer does not fit {_name(kind)}: {mismatch}", field=mismatch.field
        ) from None


def tool_of(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> tuple[ToolSpec, ConvertArguments]:
    """Return the specification of a function as a tool, and the converter of its arguments.

    The description is the first paragraph of the docstring, unless one is given.

    Raises:
        InvalidRequest: JSON cannot express a parameter.
        InvalidPrompt: the name is not a valid name of a tool.
    """
    named = name or getattr(function, "__name__", type(function).__name__)
    schema, convert = arguments_schema(function, name=named)
    if description is None:
        description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return ToolSpec(named, description, schema), convert


def arguments_schema(
    function: Callable[..., Any], *, name: str | None = None
) -> tuple[dict[str, Any], ConvertArguments]:
    """Return the JSON schema of a function's parameters, and the converter of its arguments.

    ``ctx`` and ``idempotency_key`` are left out. A string in ``Annotated`` describes a parameter.

    Raises:
        InvalidRequest: a parameter is positional-only or variadic, or JSON cannot express its type.
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
        except Mismatch as mismatch:
            raise InvalidArguments(
                f"the arguments of {tool} do not fit: {mismatch}", tool=tool, field=mismatch.field
            ) from None

    return schema, convert


def _parameters(function: Callable[..., Any], tool: str) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each parameter that a model may pass."""
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
                f"{tool} has the parameter {parameter}: a model passes arguments by name only",
                field=parameter.name,
            )
        found[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return found


def _schema(kind: Any, error_prefix: str, *, open_models: bool = False) -> dict[str, Any]:
    def schema_hook(part: Any) -> dict[str, Any]:
        """Return the schema of a type that msgspec does not know."""
        if is_pydantic_model(part):
            return _inlined(_model_schema(part, is_open=open_models))
        raise TypeError(f"JSON cannot express {_name(part)}")

    try:
        if is_pydantic_model(kind):
            return _normalized(_model_schema(kind, is_open=open_models))
        plain = normalized_typed_dict(kind) if typing.is_typeddict(kind) else kind
        schema = msgspec.json.schema(plain, schema_hook=schema_hook)
        _restore_field_order([schema, *schema.get("$defs", {}).values()], plain)
        return _normalized(schema)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"{error_prefix}: {error}") from None


def _model_schema(model: Any, *, is_open: bool) -> dict[str, Any]:
    schema = cast(dict[str, Any], model.model_json_schema())
    if is_open:
        for each in _schemas(schema):
            if each.get("type") == "object" and "properties" in each:
                each.setdefault("additionalProperties", True)
    return schema


def _normalized(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without a reference at its root; its objects allow no other fields.

    Only where the schema says that an object allows them, it stays so.
    """
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
    """Restore the order in which the keys of TypedDicts were declared.

    msgspec sorts them, but a model answers in the order of the schema. The order matters: a model
    that gives its reasons first comes to a better verdict.
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
    """Yield a schema and all schemas nested in it."""
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
    """Return a schema with all references replaced by what they refer to."""
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
            raise TypeError(
                f"{name} is recursive, so it must be the whole type and not a part of one"
            )
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
    # A default that JSON cannot express is left out: Python applies it anyway.
    with suppress(TypeError, ValueError):
        schema.setdefault("default", msgspec.to_builtins(default, str_keys=True))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)
