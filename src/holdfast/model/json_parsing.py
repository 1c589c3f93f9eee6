"""Reads the form in JSON of what callers read back into the classes: the inverse of `json_form`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["parse_ms", "parse_nanodollars", "parse_seconds", "parsed", "parser_of"]

T = TypeVar("T")
Parser = Callable[[Any], Any]


class _Field(Protocol):
    """A field of the form in JSON, as `json_form.JsonField` is."""

    @property
    def name(self) -> str: ...
    @property
    def attribute(self) -> str | None: ...
    @property
    def parse(self) -> Parser | None: ...


def parsed(kind: type[T], shown: object, fields: Iterable[_Field]) -> T:
    """Return the value of a class that has these fields in JSON; unknown names do not matter.

    Raises:
        InvalidRequest: it is not an object, or a field is missing or has another type.
    """
    if not isinstance(shown, Mapping):
        raise InvalidRequest(
            f"the form of a {kind.__name__} must be an object, got {type(shown).__name__}"
        )
    given: dict[str, Any] = {}
    for field in fields:
        if field.attribute is None or field.parse is None or field.name not in shown:
            continue
        try:
            given[field.attribute] = field.parse(cast(Mapping[str, Any], shown)[field.name])
        except InvalidRequest as error:
            path = field.name if error.field is None else f"{field.name}.{error.field}"
            raise InvalidRequest(
                f"the form of a {kind.__name__} is wrong at {path!r:.200}: {error}", field=path
            ) from None
    try:
        return kind(**given)
    except TypeError as error:
        raise InvalidRequest(f"the form of a {kind.__name__} lacks a field: {error}") from None


def parse_ms(shown: object) -> int | None:
    """Return the milliseconds since 1970 of ISO 8601 text.

    Raises:
        InvalidRequest: the text is not a time.
    """
    return None if shown is None else round(_time(shown).timestamp() * 1000)


def parse_seconds(shown: object) -> int | None:
    """Return the milliseconds of a number of seconds.

    Raises:
        InvalidRequest: it is not a number.
    """
    return None if shown is None else round(_number(shown) * 1000)


def parse_nanodollars(shown: object) -> int | None:
    """Return the nanodollars of an amount in dollars.

    Raises:
        InvalidRequest: it is not a number.
    """
    # Not as a float: the product would be one nanodollar off.
    return None if shown is None else round(Decimal(str(_number(shown))).scaleb(9))


@cache
def parser_of(kind: Any) -> Parser:
    """Return the function that reads values of a type from their form in JSON."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType) and len(parts) == 2 and NoneType in parts:
        inner = parser_of(next(part for part in parts if part is not NoneType))
        return lambda shown: None if shown is None else inner(shown)
    if origin in (list, tuple) and (origin is list or parts[1:] == (...,)):
        return _items_parser(origin, parser_of(parts[0]))
    if origin is dict:
        return _values_parser(parser_of(parts[1]))
    if kind is datetime:
        return _time
    from_dict: Parser | None = getattr(kind, "from_dict", None)
    if from_dict is not None:
        return from_dict
    # A newer server may know more words.
    return _plain_parser(str if origin is Literal else kind)


def _items_parser(sequence: Callable[[Iterable[Any]], Any], parse: Parser) -> Parser:
    def parse_items(shown: object) -> Any:
        if not isinstance(shown, list | tuple):
            raise InvalidRequest(f"expected a list, got {type(shown).__name__}")
        return sequence([parse(each) for each in cast(list[Any], shown)])

    return parse_items


def _values_parser(parse: Parser) -> Parser:
    def parse_values(shown: object) -> dict[str, Any]:
        if not isinstance(shown, Mapping):
            raise InvalidRequest(f"expected an object, got {type(shown).__name__}")
        return {name: parse(each) for name, each in cast(Mapping[str, Any], shown).items()}

    return parse_values


def _plain_parser(kind: Any) -> Parser:
    def parse_plain(shown: Any) -> Any:
        try:
            return msgspec.convert(shown, kind)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error)) from None

    return parse_plain


def _time(shown: object) -> datetime:
    try:
        read = datetime.fromisoformat(cast(str, shown))
    except (TypeError, ValueError):
        raise InvalidRequest(f"expected a time in ISO 8601, got {shown!r:.80}") from None
    if read.tzinfo is None:
        raise InvalidRequest(f"expected a time with a time zone, got {shown!r:.80}")
    return read.astimezone(UTC)


def _number(shown: object) -> float:
    if isinstance(shown, bool) or not isinstance(shown, int | float):
        raise InvalidRequest(f"expected a number, got {shown!r:.80}")
    return shown
