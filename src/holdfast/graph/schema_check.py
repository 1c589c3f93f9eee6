"""Checks a value against a JSON schema, as far as `schemas` writes such schemas.

A process that does not have a type checks values against the schema of the type. The check refuses
only what certainly does not fit: a keyword that it does not know passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from holdfast.graph.fields import unknown_field
from holdfast.graph.mismatch import Mismatch

__all__ = ["schema_mismatch"]

# A schema whose references lead in a circle ends here.
_DEPTH_MAX = 200
_OPTIONS_MAX = 10

_EXPECTED = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_FOUND = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def schema_mismatch(
    value: Any, schema: Mapping[str, Any], *, allow_unknown: bool = False
) -> Mismatch | None:
    """Return why a durable value does not fit a schema; None if it fits, or may fit.

    With ``allow_unknown`` its objects may have fields that the schema does not allow.
    """
    return _Check(schema, allow_unknown=allow_unknown).mismatch(value, schema, "", 0)


class _Check:
    """The check of one value against one schema with its definitions."""

    def __init__(self, root: Mapping[str, Any], *, allow_unknown: bool) -> None:
        self._allow_unknown = allow_unknown
        definitions = root.get("$defs")
        self._definitions: Mapping[str, Any] = (
            cast(Mapping[str, Any], definitions) if isinstance(definitions, Mapping) else {}
        )

    def mismatch(self, value: Any, schema: Any, path: str, depth: int) -> Mismatch | None:
        if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
            return None
        rules = cast(Mapping[str, Any], schema)
        if "$ref" in rules:
            return self.mismatch(value, self._definition(rules["$ref"]), path, depth + 1)
        options = rules.get("anyOf", rules.get("oneOf"))
        if isinstance(options, list):
            return self._option_mismatch(value, cast(list[Any], options), path, depth + 1)
        for part in _listed(rules.get("allOf")):
            if (found := self.mismatch(value, part, path, depth + 1)) is not None:
                return found
        reason = _own_misfit(value, rules)
        if reason is not None:
            return Mismatch(path, reason)
        if isinstance(value, list):
            return self._item_mismatch(cast(list[Any], value), rules, path, depth + 1)
        if isinstance(value, dict):
            return self._field_mismatch(cast(dict[Any, Any], value), rules, path, depth + 1)
        return None

    def _definition(self, reference: Any) -> Any:
        return self._definitions.get(str(reference).rpartition("/")[2])

    def _option_mismatch(
        self, value: Any, options: list[Any], path: str, depth: int
    ) -> Mismatch | None:
        found: list[Mismatch] = []
        for option in options:
            mismatch = self.mismatch(value, option, path, depth)
            if mismatch is None:
                return None
            if option != {"type": "null"}:
                found.append(mismatch)
        if len(found) == 1:
            return found[0]
        reasons = list(dict.fromkeys(each.reason for each in found))[:_OPTIONS_MAX]
        return Mismatch(path, f"it fits none of its types: {'; or '.join(reasons)}")

    def _item_mismatch(
        self, items: list[Any], rules: Mapping[str, Any], path: str, depth: int
    ) -> Mismatch | None:
        first = _listed(rules.get("prefixItems"))
        rest = rules.get("items")
        for number, item in enumerate(items):
            schema = first[number] if number < len(first) else rest
            found = self.mismatch(item, schema, f"{path}[{number}]", depth)
            if found is not None:
                return found
        return None

    def _field_mismatch(
        self, fields: dict[Any, Any], rules: Mapping[str, Any], path: str, depth: int
    ) -> Mismatch | None:
        named = rules.get("properties")
        properties = cast(Mapping[str, Any], named if isinstance(named, Mapping) else {})
        for name in _listed(rules.get("required")):
            if name not in fields:
                return Mismatch(f"{path}.{name}", "it is missing")
        others = rules.get("additionalProperties")
        closed = others is False and "patternProperties" not in rules and not self._allow_unknown
        for name, value in fields.items():
            if closed and name not in properties:
                return Mismatch(path, unknown_field(name, properties).reason)
            # Keys of maps are user data: the path does not quote them.
            schema, shown = (properties[name], name) if name in properties else (others, "…")
            found = self.mismatch(value, schema, f"{path}.{shown}", depth)
            if found is not None:
                return found
        return None


def _own_misfit(value: Any, rules: Mapping[str, Any]) -> str | None:
    """Return why a value does not fit a schema, its parts aside."""
    if "const" in rules and not _is_same(value, rules["const"]):
        return f"it must be {_shown(rules['const'])}"
    allowed = rules.get("enum")
    if isinstance(allowed, list):
        values = cast(list[Any], allowed)
        if not any(_is_same(value, each) for each in values):
            return f"it must be one of {', '.join(map(_shown, values[:_OPTIONS_MAX]))}"
    kind = rules.get("type")
    if isinstance(kind, str) and kind in _EXPECTED and not _is_of_kind(value, kind, rules):
        found = [word for each, word in _FOUND.items() if type(value) is each]
        return f"it must be {_EXPECTED[kind]}, got {found[0] if found else 'another value'}"
    return _bound_misfit(value, rules)


def _is_of_kind(value: Any, kind: str, rules: Mapping[str, Any]) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    match kind:
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, int | float)
        case "string":
            # Some types that JSON writes as text are also read from bytes or numbers.
            formatted = "format" in rules or "contentEncoding" in rules
            return isinstance(value, str | bytes | int | float if formatted else str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return False


def _bound_misfit(value: Any, rules: Mapping[str, Any]) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _number_misfit(value, rules)
    if isinstance(value, str) and "format" not in rules and "contentEncoding" not in rules:
        return _size_misfit(len(value), rules, "Length", "characters") or _text_misfit(value, rules)
    if isinstance(value, list):
        return _size_misfit(len(cast(list[Any], value)), rules, "Items", "items")
    if isinstance(value, dict):
        return _size_misfit(len(cast(dict[Any, Any], value)), rules, "Properties", "fields")
    return None


def _number_misfit(value: float, rules: Mapping[str, Any]) -> str | None:
    low, high = rules.get("minimum"), rules.get("maximum")
    above, below = rules.get("exclusiveMinimum"), rules.get("exclusiveMaximum")
    if _is_number(low) and value < low:
        return f"it must be at least {low}"
    if _is_number(high) and value > high:
        return f"it must be at most {high}"
    if _is_number(above) and value <= above:
        return f"it must be more than {above}"
    if _is_number(below) and value >= below:
        return f"it must be less than {below}"
    step = rules.get("multipleOf")
    # Remainders of floats are not exact.
    if type(step) is int and type(value) is int and step > 0 and value % step:
        return f"it must be a multiple of {step}"
    return None


def _size_misfit(size: int, rules: Mapping[str, Any], what: str, unit: str) -> str | None:
    low, high = rules.get(f"min{what}"), rules.get(f"max{what}")
    if _is_number(low) and size < low:
        return f"it must have at least {low} {unit}, got {size}"
    if _is_number(high) and size > high:
        return f"it must have at most {high} {unit}, got {size}"
    return None


def _text_misfit(value: str, rules: Mapping[str, Any]) -> str | None:
    pattern = rules.get("pattern")
    if not isinstance(pattern, str):
        return None
    try:
        return None if re.search(pattern, value) else f"it must match {pattern!r:.200}"
    except re.error:  # another dialect
        return None


def _is_same(value: Any, expected: Any) -> bool:
    # Not with == alone, for which 1 and True are equal.
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _shown(value: Any) -> str:
    names = {"True": "true", "False": "false", "None": "null"}
    shown = f"{value!r:.80}"
    return names.get(shown, shown)
