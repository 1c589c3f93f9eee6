"""The fields of a state type, and which values each of them takes."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NotRequired, Required, TypedDict, Union, cast

import msgspec
from msgspec import inspect

from holdfast.graph.mismatch import Mismatch
from holdfast.graph.values import converted, durable, is_durable_scalar

__all__ = [
    "Field",
    "ValueType",
    "annotations_of",
    "fields_of",
    "nested_types",
    "normalized_typed_dict",
    "unknown_field",
    "unstorable_reasons",
    "value_type_of",
]

_NAME_CHARS_MAX = 80
_SCALARS = frozenset({bool, bytes, float, int, str, type(None)})


class ValueType(msgspec.Struct, frozen=True):
    """A type annotation, and what is known about the values that fit it."""

    annotation: Any
    scalars: frozenset[type]
    """Values of exactly these types are stored as they are."""
    scalar_only: bool
    """Whether only such scalars fit, so that no value is mutable."""
    ordered: bool
    """Whether values can contain sets. These are sorted before they are stored."""

    def durable_form(self, field: str, value: Any, *, objects: bool) -> Any:
        """Return the durable form of a value.

        Raises:
            Mismatch: the value does not fit the type, or has no durable form.
        """
        if type(value) in self.scalars and is_durable_scalar(value):
            return value
        try:
            kept = durable(converted(value, self.annotation, objects=objects), ordered=self.ordered)
            # The attributes of an object can be set to values that its class would reject.
            converted(kept, self.annotation, objects=False)
        except Mismatch as mismatch:
            raise mismatch.within(field) from None
        return kept


class Field(msgspec.Struct, frozen=True):
    """A field of a state type."""

    name: str
    """The name of the attribute, if the type has attributes."""
    key: str
    """The name in the durable form."""
    value_type: ValueType


def value_type_of(annotation: Any) -> ValueType:
    """Return the value type for an annotation."""
    if annotation is Any or annotation is object:
        return ValueType(Any, _SCALARS, scalar_only=False, ordered=False)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = typing.get_args(annotation)
    else:
        members = (annotation,)
    # An annotation can say None or type(None).
    plain = [type(None) if member is None else member for member in members]
    scalars = frozenset(kind for kind in plain if isinstance(kind, type) and kind in _SCALARS)
    sealed = len(scalars) == len(plain)
    sets = (inspect.SetType, inspect.FrozenSetType)
    ordered = not sealed and any(isinstance(part, sets) for part in nested_types(annotation))
    return ValueType(annotation, scalars, sealed, ordered)


def normalized_typed_dict(kind: Any) -> Any:
    """Return an equal TypedDict with Required and NotRequired where msgspec looks for them."""
    required = set(cast(Iterable[str], kind.__required_keys__))
    plain: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        qualifiers, plain[key] = _unqualified(hint)
        # With annotations as strings, Python itself does not see the qualifiers.
        if "Required" in qualifiers:
            required.add(key)
        elif "NotRequired" in qualifiers:
            required.discard(key)
    items = {
        key: Required[hint] if key in required else NotRequired[hint] for key, hint in plain.items()
    }
    return cast(Any, TypedDict)(kind.__name__, items)


def fields_of(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a TypedDict, a struct or a dataclass."""
    return tuple(
        Field(name, key, value_type_of(annotation))
        for name, key, annotation in annotations_of(kind)
    )


def annotations_of(kind: Any) -> list[tuple[str, str, Any]]:
    """Return name, key and type of each field of a TypedDict, a struct or a dataclass."""
    if issubclass(kind, msgspec.Struct):
        known = msgspec.structs.fields(kind)
        return [(field.name, field.encode_name, field.type) for field in known]
    hints = typing.get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = list(hints)
    return [(name, name, _unqualified(hints[name])[1]) for name in names]


def unstorable_reasons(annotation: Any) -> Iterator[str]:
    """Yield why values of a type cannot be stored and read back."""
    try:
        parts = list(nested_types(annotation))
    except Exception as error:  # resolving unknown names can raise anything
        yield str(error)
        return
    for part in parts:
        if not isinstance(part, inspect.CustomType):
            continue
        if part.cls is not object and not hasattr(part.cls, "model_validate"):
            yield (
                f"values of {part.cls.__name__} cannot be stored; "
                "use a TypedDict, a dataclass, a msgspec.Struct or a pydantic model"
            )


def nested_types(annotation: Any) -> Iterator[inspect.Type]:
    """Yield msgspec's description of a type and of all types nested in it."""
    seen: set[int] = set()
    root = inspect.type_info(annotation)
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if isinstance(part, tuple):
            left.extend(cast(tuple[Any, ...], part))
        elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, inspect.Type):
                yield part
            left.extend(getattr(part, name) for name in part.__struct_fields__)


def unknown_field(key: object, known: Iterable[str]) -> Mismatch:
    """Return the mismatch for a key that is not a field.

    The key is user data, so the message does not quote it. It suggests a similar field name.
    """
    if not isinstance(key, str):
        return Mismatch("", f"keys of a state must be strings, got {type(key).__name__}")
    names = list(known)
    like = difflib.get_close_matches(key[:_NAME_CHARS_MAX], names, n=1)
    hint = f"; did you mean {like[0]!r}?" if like else ""
    return Mismatch("", f"unknown field; the fields are: {', '.join(names) or 'none'}{hint}")


def _unqualified(hint: Any) -> tuple[frozenset[str], Any]:
    """Return the qualifiers of a TypedDict's key, and its type without them."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        inner, *notes = typing.get_args(hint)
        qualifiers, plain = _unqualified(inner)
        return qualifiers, Annotated[(plain, *notes)] if qualifiers else hint
    # Compared by name: typing_extensions defines its own.
    name = getattr(origin, "_name", None) or getattr(origin, "__name__", None)
    if name in ("Required", "NotRequired", "ReadOnly"):
        qualifiers, plain = _unqualified(typing.get_args(hint)[0])
        return qualifiers | {name}, plain
    return frozenset(), hint
