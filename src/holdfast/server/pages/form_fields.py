"""The fields of a form, from the JSON schema of its values.

A field that a browser could not show or send back exactly is a text with JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, TypeAlias, cast

from msgspec import UNSET

from holdfast.display import escaped_json, printable

__all__ = ["FormField", "leaves", "review_form"]

FieldKind: TypeAlias = Literal[
    "check", "choice", "date", "group", "json", "lines", "number", "text", "textarea"
]

_FIELDS_MAX = 1_000
_DEPTH_MAX = 6
_OPTIONS_MAX = 500
_LINE_CHARS_MAX = 80
_LINE_KINDS = ("string", "integer", "number")


@dataclass(slots=True)
class FormField:
    """One field of a form, or a group of them."""

    name: str
    """Its name in the request: ``v`` and the JSON pointer of the value."""
    id: str
    label: str
    kind: FieldKind
    schema: Mapping[str, Any]
    """The schema of the value, with the definitions that it refers to."""
    value: Any
    """The current value; UNSET if there is none."""
    required: bool
    """Whether there must be a value."""
    nullable: bool = False
    key: str = ""
    """Its key in the object around it."""
    text: str = ""
    """What the field shows; of a choice, the number of the option."""
    description: str = ""
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    """The limits that a browser checks."""
    options: tuple[tuple[str, str, Any], ...] = ()
    """Of a choice: number, label and value of each option."""
    fields: tuple[FormField, ...] = ()
    error: str = ""
    original: str = ""
    """What the field shows of the current value, whatever a person has entered."""


def review_form(schema: Mapping[str, Any], values: Any) -> FormField:
    """Return the form for values of a schema, with the current values."""
    builder = _Builder(schema)
    root = builder.root(values)
    return root if builder.count <= _FIELDS_MAX else _Builder(schema).json(values)


def leaves(form: FormField) -> Iterator[FormField]:
    """Yield the fields of a form without its groups."""
    if form.kind == "group":
        for each in form.fields:
            yield from leaves(each)
    else:
        yield form


class _Builder:
    """Builds the fields of one form."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        definitions = schema.get("$defs")
        self._schema = schema
        self._definitions: Mapping[str, Any] = _mapping(definitions)
        self.count = 0
        """How many fields there are. Above the limit, the rest is left out."""

    def root(self, values: Any) -> FormField:
        current = UNSET if values is None and not _allows_null(self._schema) else values
        if current is UNSET and _mapping(self._schema.get("properties")):
            current = {}
        return self._field("v", "", self._schema, current, required=True, depth=0)

    def json(self, values: Any) -> FormField:
        """Return the whole form as one text with JSON."""
        made = self._made("v", "", self._schema, values, required=True)
        return self._as_json(made)

    def _field(
        self, name: str, key: str, schema: Any, value: Any, *, required: bool, depth: int
    ) -> FormField:
        given = _mapping(schema)
        plain, nullable = self._resolved(given)
        made = self._made(name, key, plain, value, required=required)
        made.nullable = nullable
        made.label = _label(given, key)
        made.description = str(given.get("description") or "")
        if not made.description and "$ref" not in given and "properties" not in plain:
            made.description = str(plain.get("description") or "")
        self._set_kind(made, plain, depth)
        made.original = made.text
        return made

    def _made(
        self, name: str, key: str, schema: Mapping[str, Any], value: Any, *, required: bool
    ) -> FormField:
        self.count += 1
        return FormField(
            name=name,
            id=f"f{self.count}",
            label=_label(schema, key),
            kind="text",
            schema={**schema, "$defs": self._definitions},
            value=value,
            required=required,
            key=key,
        )

    def _resolved(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Return a schema without references and without null, and whether null is allowed."""
        nullable = False
        for _ in range(_DEPTH_MAX):
            if "$ref" in schema:
                name = str(schema["$ref"]).rpartition("/")[2]
                schema = _mapping(self._definitions.get(name))
                continue
            options = _listed(schema.get("anyOf", schema.get("oneOf")))
            if options:
                rest = [each for each in options if each != {"type": "null"}]
                nullable = nullable or len(rest) < len(options)
                if len(rest) != 1:
                    return {**schema, "anyOf": rest}, nullable
                schema = _mapping(rest[0])
                continue
            parts = _listed(schema.get("allOf"))
            if len(parts) != 1:
                break
            schema = _mapping(parts[0])
        kinds = _listed(schema.get("type"))
        if kinds:
            rest = [each for each in kinds if each != "null"]
            nullable = nullable or len(rest) < len(kinds)
            schema = {**schema, "type": rest[0] if len(rest) == 1 else rest}
        return schema, nullable

    def _set_kind(self, made: FormField, schema: Mapping[str, Any], depth: int) -> None:
        options = _options(schema)
        kind = schema.get("type")
        if options is not None:
            self._as_choice(made, options)
        elif kind == "boolean":
            self._as_boolean(made)
        elif kind in ("integer", "number"):
            self._as_number(made, schema, integer=kind == "integer")
        elif kind == "string":
            self._as_text(made, schema)
        elif kind == "array":
            self._as_lines(made, schema)
        elif kind == "object":
            self._as_group(made, schema, depth)
        else:
            self._as_json(made)

    def _as_choice(self, made: FormField, values: list[Any]) -> None:
        if len(values) > _OPTIONS_MAX:
            self._as_json(made)
            return
        made.kind = "choice"
        made.options = tuple((str(at), _option_label(each), each) for at, each in enumerate(values))
        known = [number for number, _, each in made.options if _is_same(each, made.value)]
        if not known and made.value is not UNSET and made.value is not None:
            self._as_json(made)
            return
        made.text = known[0] if known else ""

    def _as_boolean(self, made: FormField) -> None:
        if isinstance(made.value, bool) and not made.nullable:
            made.kind, made.text = "check", "1" if made.value else ""
        else:  # it may also have no value, which a check box cannot say
            self._as_choice(made, [True, False])

    def _as_number(self, made: FormField, schema: Mapping[str, Any], *, integer: bool) -> None:
        if not _is_empty(made.value) and type(made.value) not in (int, float):
            self._as_json(made)
            return
        made.kind = "number"
        made.text = "" if _is_empty(made.value) else repr(made.value)
        made.attributes = {"step": "1" if integer else "any"}
        for limit, attribute in (("minimum", "min"), ("maximum", "max")):
            if type(schema.get(limit)) in (int, float):
                made.attributes[attribute] = repr(schema[limit])
        if made.required and not made.nullable:
            made.attributes["required"] = ""

    def _as_text(self, made: FormField, schema: Mapping[str, Any]) -> None:
        value = "" if _is_empty(made.value) else made.value
        if not isinstance(value, str) or not _survives(value):
            self._as_json(made)
            return
        made.text = value
        if schema.get("format") == "date" and (not value or _is_date(value)):
            made.kind = "date"
            made.attributes = {"required": ""} if made.required and not made.nullable else {}
            return
        limit = schema.get("maxLength")
        is_short = type(limit) is int and limit <= _LINE_CHARS_MAX
        is_line = "\n" not in value and len(value) <= _LINE_CHARS_MAX
        made.kind = "text" if is_line and (is_short or bool(value) or limit is None) else "textarea"
        if schema.get("format") == "date-time":
            made.description = made.description or "For example 2026-11-18T09:30:00Z"
        made.attributes = _text_limits(schema, required=made.required and not made.nullable)

    def _as_lines(self, made: FormField, schema: Mapping[str, Any]) -> None:
        items, nullable = self._resolved(_mapping(schema.get("items")))
        listed = _listed(made.value)
        usable = (
            (type(made.value) is list or _is_empty(made.value))
            and not nullable
            and items.get("type") in _LINE_KINDS
            and "prefixItems" not in schema
            and all(_is_line(each) for each in listed)
        )
        if not usable:
            self._as_json(made)
            return
        made.kind = "lines"
        made.text = "\n".join(each if isinstance(each, str) else repr(each) for each in listed)
        note = "One in each line."
        made.description = f"{made.description} {note}".strip()

    def _as_group(self, made: FormField, schema: Mapping[str, Any], depth: int) -> None:
        properties = _mapping(schema.get("properties"))
        value: Any = made.value
        fits = isinstance(value, dict) and cast(dict[str, Any], value).keys() <= properties.keys()
        if value is UNSET and made.required and properties:
            value, fits = dict[str, Any](), True
        if not fits or not properties or depth >= _DEPTH_MAX:
            self._as_json(made)
            return
        made.kind = "group"
        required = _listed(schema.get("required"))
        held = cast(dict[str, Any], value)
        made.fields = tuple(
            self._field(
                f"{made.name}/{_escaped(key)}",
                key,
                each,
                held.get(key, UNSET),
                required=key in required,
                depth=depth + 1,
            )
            for key, each in properties.items()
            if self.count <= _FIELDS_MAX
        )

    def _as_json(self, made: FormField) -> FormField:
        made.kind = "json"
        made.text = ""
        if made.value is not UNSET:
            written = json.dumps(made.value, ensure_ascii=False, indent=2)
            made.text = escaped_json(written)
        made.description = f"{made.description} As JSON.".strip()
        made.original = made.text
        return made


def _text_limits(schema: Mapping[str, Any], *, required: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    if "format" in schema or "contentEncoding" in schema:
        return {"required": ""} if required else {}
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if type(longest) is int:
        found["maxlength"] = str(longest)
    if type(shortest) is int and shortest > 0:
        found["minlength"] = str(shortest)
        if required:
            found["required"] = ""
    return found


def _options(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of an enumeration; None if the schema is not one."""
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    parts = [_options(_mapping(each)) for each in _listed(schema.get("anyOf"))]
    if parts and all(part is not None for part in parts):
        return [value for part in parts for value in part or ()]
    return None


def _label(schema: Mapping[str, Any], key: str) -> str:
    titled = schema.get("title")
    if isinstance(titled, str) and titled.strip() and "properties" not in schema:
        return titled.strip()
    words = re.sub(r"[_\s]+", " ", key).strip()
    return words[:1].upper() + words[1:] if words else key or "Values"


def _option_label(value: Any) -> str:
    names = {True: "Yes", False: "No"}
    if isinstance(value, bool):
        return names[value]
    return value if isinstance(value, str) else json.dumps(value)


def _survives(text: str) -> bool:
    """Return whether a browser shows a text as it is, and sends it back unchanged."""
    lines = text.split("\n")
    return all(printable(each) == each for each in lines) and not text.startswith("\n")


def _is_line(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and "\n" not in value and _survives(value)
    return type(value) in (int, float)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_same(option: Any, value: Any) -> bool:
    # Not with == alone, for which 1 and True are equal.
    return value is not UNSET and option == value and type(option) is type(value)


def _is_empty(value: Any) -> bool:
    return value is UNSET or value is None


def _allows_null(schema: Mapping[str, Any]) -> bool:
    options = _listed(schema.get("anyOf")) + _listed(schema.get("type"))
    return {"type": "null"} in options or "null" in options or schema.get("type") == "null"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
