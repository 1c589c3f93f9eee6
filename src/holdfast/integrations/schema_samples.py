"""The smallest value that fits a JSON schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["smallest_value"]

_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "PT0S",
    "email": "name@example.com",
    "time": "00:00:00Z",
    "uri": "https://example.com",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
_NESTED_MAX = 50


def smallest_value(schema: Mapping[str, Any]) -> Any:
    """Return the smallest value that fits a schema; patterns of texts are ignored."""
    return _value(schema, cast(Mapping[str, Any], schema.get("$defs", {})), 0)


def _value(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    if depth > _NESTED_MAX:
        return None
    if "$ref" in schema:
        return _value(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _value(_plainest(schema[key]), definitions, depth + 1)
    if "allOf" in schema:
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= part
        return _value(merged, definitions, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = cast(list[str], kind)[0]
    if kind == "object" or "properties" in schema:
        fields = cast(Mapping[str, Any], schema.get("properties", {}))
        return {
            name: _value(fields.get(name, {}), definitions, depth + 1)
            for name in schema.get("required", ())
        }
    if kind == "array":
        return _elements(schema, definitions, depth)
    return _scalar(kind, schema)


def _plainest(choices: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a choice without a reference if there is one: a reference may be circular."""
    plain = [choice for choice in choices if "$ref" not in choice]
    return (plain or choices)[0]


def _elements(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> list[Any]:
    kinds = list(schema.get("prefixItems", ()))
    while len(kinds) < schema.get("minItems", 0):
        kinds.append(schema.get("items") or {})
    return [_value(kind, definitions, depth + 1) for kind in kinds]


def _scalar(kind: Any, schema: Mapping[str, Any]) -> Any:
    if kind == "string":
        text = _FORMATS.get(schema.get("format", ""), "")
        return text.ljust(schema.get("minLength", 0), "x")
    if kind in ("integer", "number"):
        return _number(schema)
    return False if kind == "boolean" else None


def _number(schema: Mapping[str, Any]) -> int | float:
    """Return the integer nearest to zero that fits."""
    step = schema.get("multipleOf", 1)
    minimum = schema.get("minimum", -math.inf)
    if "exclusiveMinimum" in schema:
        minimum = max(minimum, math.floor(schema["exclusiveMinimum"]) + 1)
    maximum = schema.get("maximum", math.inf)
    if "exclusiveMaximum" in schema:
        maximum = min(maximum, math.ceil(schema["exclusiveMaximum"]) - 1)
    if minimum <= 0 <= maximum:
        return 0
    return math.ceil(minimum / step) * step if minimum > 0 else math.floor(maximum / step) * step
