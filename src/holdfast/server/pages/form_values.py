"""Reads the values that a person entered into a form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from holdfast.graph.schema_check import schema_mismatch
from holdfast.server.pages.form_fields import FormField

__all__ = ["Misentered", "has_text", "read_values"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_MISSING = "it must not be empty"


class Misentered(Exception):
    """A value that was entered into a field does not fit it."""


def read_values(form: FormField, posted: Mapping[str, str]) -> Any:
    """Return the values that were entered; the fields keep what was entered, and say what is wrong.

    A field that was left as it was keeps its exact value. The result is UNSET if a field has an
    error.
    """
    read = _Reader(posted)
    values = read.value_of(form)
    if read.failed:
        return UNSET
    mismatch = schema_mismatch(values, form.schema)
    if mismatch is not None:
        form.error = str(mismatch)
        return UNSET
    return values


def has_text(field: FormField, text: str) -> bool:
    """Return whether a text is what a field shows of its current value."""
    return _with_plain_lines(text) == _with_plain_lines(field.original)


class _Reader:
    """Reads one posted form."""

    def __init__(self, posted: Mapping[str, str]) -> None:
        self._posted = posted
        self.failed = False

    def value_of(self, field: FormField) -> Any:
        if field.kind == "group":
            found = {each.key: self.value_of(each) for each in field.fields}
            return {key: value for key, value in found.items() if value is not UNSET}
        field.text = _with_plain_lines(self._posted.get(field.name, ""))
        try:
            value = _entered(field)
            if value is not UNSET:
                mismatch = schema_mismatch(value, field.schema)
                if mismatch is not None and not (value is None and field.nullable):
                    raise Misentered(mismatch.reason)
        except Misentered as error:
            field.error = str(error)
            self.failed = True
            return UNSET
        return value


def _entered(field: FormField) -> Any:
    """Return the value of a field.

    Raises:
        Misentered: the text does not fit the field.
    """
    if field.kind == "check":
        return bool(field.text)
    if has_text(field, field.text) and (field.value is not UNSET or not field.required):
        return field.value
    if field.kind == "choice":
        chosen = [value for number, _, value in field.options if number == field.text]
        return chosen[0] if chosen else _nothing(field, "choose one")
    if field.kind == "lines":
        lines = [line for line in field.text.split("\n") if line.strip()]
        return _nothing(field, "") if not lines and field.nullable else _items(field, lines)
    if field.kind in ("text", "textarea"):
        if not field.text and (field.nullable or not field.required):
            return _nothing(field, _MISSING)
        return field.text
    text = field.text.strip()
    if not text:
        return _nothing(field, _MISSING)
    if field.kind == "json":
        return _parsed_json(text)
    return _number(text, field.schema.get("type")) if field.kind == "number" else text


def _nothing(field: FormField, reason: str) -> Any:
    """Return what an empty field stands for."""
    if field.nullable:
        return None
    if field.required:
        raise Misentered(reason)
    return UNSET


def _items(field: FormField, lines: list[str]) -> list[Any]:
    items = cast(Mapping[str, Any], field.schema.get("items") or {})
    kind = items.get("type")
    if "$ref" in items:
        name = str(items["$ref"]).rpartition("/")[2]
        kind = field.schema["$defs"].get(name, {}).get("type")
    return [line if kind == "string" else _number(line.strip(), kind) for line in lines]


def _number(text: str, kind: Any) -> float:
    if _INTEGER.fullmatch(text):
        return int(text)
    if kind == "integer":
        raise Misentered("it must be an integer such as 12")
    try:
        number = float(text)
    except ValueError:
        raise Misentered("it must be a number such as 12.5") from None
    if not math.isfinite(number):
        raise Misentered("it must be a number such as 12.5")
    return number


def _parsed_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Misentered(f"it must be JSON: {error}") from None


def _with_plain_lines(text: str) -> str:
    """Return a text with the line ends of Python: browsers send others."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
