"""Makes an input that fits a graph, for the examples that ``holdfast dev`` prints."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.schemas import schema_of
from holdfast.model.program import Program

__all__ = ["example_input", "example_value"]

_EMPTY: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
_DEPTH_MAX = 8


def example_input(program: Program) -> Any:
    """Return an input that a start of the program accepts, as far as its type says what fits."""
    if program.input_type is msgspec.UNSET:
        return {}
    try:
        schema = schema_of(program.input_type)
    except InvalidRequest:  # JSON cannot express it
        return {}
    return example_value(schema, schema.get("$defs", {}))


def example_value(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """Return a small value that fits a JSON schema; an object has its required fields only."""
    if "$ref" in schema and depth < _DEPTH_MAX:
        named = definitions.get(schema["$ref"].rpartition("/")[2], {})
        return example_value(named, definitions, depth + 1)
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("anyOf"):
        return example_value(schema["anyOf"][0], definitions, depth + 1)
    if schema.get("type") == "object":
        fields = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
        return {
            name: example_value(fields[name], definitions, depth + 1)
            for name in schema.get("required", ())
            if name in fields
        }
    return _EMPTY.get(schema.get("type", "object"), {})
