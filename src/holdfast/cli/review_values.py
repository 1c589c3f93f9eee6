"""Values of a review's form from the command line: ``--set name=value`` and ``--values FILE``."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
import msgspec

from holdfast.cli.parameters import parse_json, parse_path
from holdfast.model.review import Review

__all__ = ["changed_values", "values_options"]

F = TypeVar("F", bound=Callable[..., Any])

_BYTES_MAX = 1024 * 1024


def _read_values(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """Return the values in a file, or a marker where the option is not given."""
    if given is None:
        return msgspec.UNSET
    if given == "-":
        return parse_json(given)
    file = parse_path(given)
    try:
        with file.open("rb") as opened:
            text = opened.read(_BYTES_MAX + 1)
    except OSError as error:
        raise click.ClickException(f"the values cannot be read: {error}") from None
    if len(text) > _BYTES_MAX:
        raise click.ClickException(f"the values must have at most {_BYTES_MAX:,} bytes")
    return parse_json(text.decode(errors="replace"))


def _parse_assignments(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    assigned: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not all(name.split(".")) or name in assigned:
            raise click.BadParameter(
                f"{text!r} must have the form name=value, with each name once; name.part is a part "
                "of a value"
            )
        assigned[name] = value
    return assigned


def values_options(function: F) -> F:
    """Give a command the options that change the values of a form."""
    for option in (
        click.option(
            "--values",
            callback=_read_values,
            metavar="FILE",
            help="A JSON file with all values of the form (- reads standard input).",
        ),
        click.option(
            "--set",
            "assigned",
            multiple=True,
            callback=_parse_assignments,
            metavar="NAME=VALUE",
            help="Change one value of the form. May be given several times.",
        ),
    ):
        function = option(function)
    return function


def changed_values(review: Review, values: Any, assigned: Mapping[str, str]) -> Any:
    """Return the values of a form with single ones changed: those in the file, or those shown.

    Raises:
        click.ClickException: the review has no form, or a value has no parts.
    """
    if review.form is None:
        raise click.ClickException(f"review {review.id} has no form: it takes no values")
    changed: Any = copy.deepcopy(review.values) if values is msgspec.UNSET else values
    for name, text in assigned.items():
        changed = _with_value(review.form, changed, name, text)
    return changed


def _with_value(form: Mapping[str, Any], values: Any, name: str, text: str) -> Any:
    root: Any = {} if values is None else values
    place, schema, parts = root, _resolved(form, form), name.split(".")
    for part in parts[:-1]:
        _check_object(place, name)
        place = place.setdefault(part, {})
        schema = _part_schema(form, schema, part)
    _check_object(place, name)
    place[parts[-1]] = _value(text, _part_schema(form, schema, parts[-1]))
    return root


def _check_object(place: Any, name: str) -> None:
    if not isinstance(place, dict):
        raise click.ClickException(f"--set {name}: what it should be set in is not an object")


def _part_schema(form: Mapping[str, Any], schema: Mapping[str, Any], part: str) -> dict[str, Any]:
    properties = schema.get("properties")
    found: Any = cast(dict[str, Any], properties).get(part) if isinstance(properties, dict) else {}
    return _resolved(form, found or {})


def _resolved(form: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema, or the one of the form that it refers to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return dict(schema)
    return dict(form.get("$defs", {}).get(reference.rpartition("/")[2], {}))


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return a value that is typed without quotes if the form wants text, else as JSON."""
    if schema.get("type") == "string" or _is_word(text, schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_word(text: str, schema: Mapping[str, Any]) -> bool:
    return text in cast("list[Any]", schema.get("enum") or [])
