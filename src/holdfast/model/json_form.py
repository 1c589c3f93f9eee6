"""The form in JSON of what callers read: rows, lists, histories.

A class that inherits from `JsonForm` gets `JsonForm.as_dict` and its inverse `JsonForm.from_dict`,
and works as a response of FastAPI and as a field of a pydantic model. All use the same fields,
`json_fields`:

- a time is ISO 8601 text in UTC with milliseconds, under a name that ends in ``_at``;
- money is in dollars, as ``usd``, which the class offers beside ``nanodollars``;
- a duration is in seconds, under a name that ends in ``_seconds``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, reduce
from operator import attrgetter
from types import GenericAlias, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from holdfast.model.json_parsing import (
    parse_ms,
    parse_nanodollars,
    parse_seconds,
    parsed,
    parser_of,
)
from holdfast.model.moments import utc_text

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

__all__ = [
    "JsonField",
    "JsonForm",
    "json_fields",
    "json_schema",
    "with_readable_times",
    "with_times_in_ms",
]

_TIME_NAMES = {
    "deadline_ms": "until_at",
    "expires_ms": "expires_at",
    "retry_at_ms": "retry_at",
    "since_ms": "since_at",
    "stale_ms": "stale_at",
}
_NAMES_OF_TIMES = {shown: name for name, shown in _TIME_NAMES.items()}
# Without the zone, its schema would not say that it is a time.
_ZONED: Any = Annotated[datetime, msgspec.Meta(tz=True)]
_SCALARS = (str, int, float, bool)


class JsonForm(msgspec.Struct, frozen=True):
    """Something that callers read, and that has a form in JSON."""

    _hidden_in_json: ClassVar[frozenset[str]] = frozenset()
    """Fields that only the engine needs."""
    _added_to_json: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    """What is not a field: the type, and which attribute has the value."""

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types, ready for ``json.dumps``.

        Times are ISO 8601 text in UTC, money is in dollars, durations are in seconds. Bytes are
        base64 text, and a number that JSON does not have is None.
        """
        return {field.name: field.read(self) for field in json_fields(type(self))}

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> Self:
        """Return the value of which `as_dict` returned this, perhaps in a newer release.

        It equals the original, except for what JSON does not carry: bytes and sets among values of
        a user, fractions of a millisecond, and sums above eight million dollars.

        Raises:
            InvalidRequest: this is not the form of such a value; the error names the field.
        """
        return parsed(cls, shown, json_fields(cls))

    if not TYPE_CHECKING:  # both checkers refuse another `__dict__`

        @property
        def __dict__(self) -> dict[str, Any]:
            # FastAPI asks for it where a function without a return type returns such a value.
            return self.as_dict()

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema  # only pydantic calls this: Holdfast does not need it

        return core_schema.is_instance_schema(
            cls,
            ref=f"{cls.__module__}.{cls.__qualname__}",
            serialization=core_schema.plain_serializer_function_ser_schema(_as_dict),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return json_schema(cls)


class JsonField(NamedTuple):
    """A field of the form in JSON."""

    name: str
    type: Any
    """The type of its value; ``datetime`` for text in ISO 8601."""
    read: Callable[[Any], Any]
    attribute: str | None = None
    """The field of the class; None if the value follows from other fields."""
    parse: Callable[[Any], Any] | None = None
    """Returns the value of that field."""


@cache
def json_fields(kind: type[JsonForm]) -> tuple[JsonField, ...]:
    """Return the fields that the form in JSON of a class has."""
    # Users of the classes do not need to see these two.
    hidden = kind._hidden_in_json  # pyright: ignore[reportPrivateUsage]
    added = kind._added_to_json  # pyright: ignore[reportPrivateUsage]
    fields = [
        _field_of(field.name, field.type)
        for field in msgspec.structs.fields(kind)
        if field.name not in hidden
    ]
    fields += [
        JsonField(name, shown_type, _reader(attribute, shown_type))
        for name, (shown_type, attribute) in added.items()
    ]
    return tuple(fields)


def json_schema(kind: type[JsonForm]) -> dict[str, Any]:
    """Return the JSON schema of what `JsonForm.as_dict` returns, without references."""
    (schema,), components = msgspec.json.schema_components([_schema_type(kind)])
    found: dict[str, Any] = _without_references(schema, components)
    return found


def with_readable_times(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name in plain types, with times in ISO 8601."""
    return {
        _TIME_NAMES.get(name, name): (_time_text if name in _TIME_NAMES else _plain)(value)
        for name, value in values.items()
    }


def with_times_in_ms(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of which `with_readable_times` returned these.

    Raises:
        InvalidRequest: a time is not one.
    """
    return {
        _NAMES_OF_TIMES.get(name, name): parse_ms(value) if name in _NAMES_OF_TIMES else value
        for name, value in values.items()
    }


def _field_of(name: str, kind: Any) -> JsonField:
    """Return how a field is shown. What the engine stores in whole units gets a public unit."""
    optional = NoneType in get_args(kind)
    if name in _TIME_NAMES:
        shown_type = datetime | None if optional else datetime
        return JsonField(_TIME_NAMES[name], shown_type, _time_reader(name), name, parse_ms)
    if name == "nanodollars":
        shown_type = float | None if optional else float
        return JsonField("usd", shown_type, attrgetter("usd"), name, parse_nanodollars)
    if name.endswith("_ms"):
        seconds = f"{name.removesuffix('_ms')}_seconds"
        shown_type = float | None if optional else float
        return JsonField(seconds, shown_type, _seconds_reader(name), name, parse_seconds)
    return JsonField(name, kind, _reader(name, kind), name, parser_of(kind))


def _reader(attribute: str, kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads an attribute of this type in plain types."""
    read = attrgetter(attribute)
    return read if kind in _SCALARS else lambda value: _plain(read(value))


def _seconds_reader(attribute: str) -> Callable[[Any], float | None]:
    read = attrgetter(attribute)

    def seconds(value: Any) -> float | None:
        ms = read(value)
        return None if ms is None else ms / 1000

    return seconds


def _time_reader(attribute: str) -> Callable[[Any], str | None]:
    read = attrgetter(attribute)
    return lambda value: _time_text(read(value))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if value is None:
        return None
    if isinstance(value, JsonForm):
        return value.as_dict()
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], JsonForm):
        return [item.as_dict() for item in cast(Sequence[JsonForm], value)]
    # There and back: a value of a user may hold bytes, sets or numbers that JSON does not have.
    return msgspec.json.decode(msgspec.json.encode(value))


def _time_text(ms: int | None) -> str | None:
    if ms is None:
        return None
    # Not of ms / 1000: far in the future, a float is a millisecond off.
    seconds, rest_ms = divmod(ms, 1000)
    return utc_text(datetime.fromtimestamp(seconds, UTC).replace(microsecond=1000 * rest_ms))


def _as_dict(value: JsonForm) -> dict[str, Any]:
    return value.as_dict()


# --- schemas --------------------------------------------------------------------------------------


@cache
def _schema_type(kind: type[JsonForm]) -> type[msgspec.Struct]:
    """Return a type that is encoded as the form in JSON of a class, to get its schema."""
    fields = [(field.name, _json_type(field.type)) for field in json_fields(kind)]
    return msgspec.defstruct(kind.__name__, fields, namespace={"__doc__": kind.__doc__})


def _json_type(kind: Any) -> Any:
    if _is_json_form(kind):
        return _schema_type(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return reduce(_either, map(_json_type, parts))
    if origin in (list, tuple):
        return GenericAlias(list, (_json_type(parts[0]),))
    return _ZONED if kind is datetime else kind


def _is_json_form(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, JsonForm)


def _either(one: Any, other: Any) -> Any:
    return one | other


def _without_references(schema: Any, components: Mapping[str, Any]) -> Any:
    known: Any = schema
    if isinstance(schema, list):
        return [_without_references(part, components) for part in known]
    if not isinstance(schema, dict):
        return known
    if "$ref" in schema:
        return _without_references(components[known["$ref"].rpartition("/")[2]], components)
    return {name: _without_references(part, components) for name, part in known.items()}
