"""The smallest value that fits a schema."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.integrations.schema_samples import smallest_value

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["next"],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"a": False},
        ),
        ({"type": "array", "items": {"type": "null"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}, ["", 0]),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": "string", "format": "date"}, "2000-01-01"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "minimum": 3, "multipleOf": 5}, 5),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "number", "exclusiveMaximum": -2.5}, -3),
        ({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1}, 0),
        ({"type": ["string", "null"]}, ""),
        ({"const": 5}, 5),
        ({"default": [1]}, [1]),
        ({"enum": ["b", "a"]}, "b"),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, 2),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 0),
        ({**NODE, "$defs": {"Node": NODE}}, {"next": None}),
        ({}, None),
    ],
    ids=str,
)
def test_the_smallest_value(schema: dict[str, Any], value: Any) -> None:
    assert smallest_value(schema) == value


def test_what_has_no_end_is_left_off() -> None:
    forever = {"type": "object", "properties": {"a": {"$ref": "#/$defs/F"}}, "required": ["a"]}
    assert smallest_value({**forever, "$defs": {"F": forever}})["a"]["a"]
