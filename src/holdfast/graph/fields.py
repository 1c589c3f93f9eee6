"""A slot takes the values of one type: a field of the state, or any key of an open dict."""

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
    """What one type takes."""

    annotation: Any
    scalars: frozenset[type]
    """Values of exactly these types fit as they are."""
    scalar_only: bool
    """Whether nothing but such scalars fits, so that there is nothing in it to be changed."""
    ordered: bool
    """Whether there may be sets in it, which have no order of their own."""

    def durable_form(self, field: str, value: Any, *, objects: bool) -> Any:
        """Return the durable form of a value that fits.

        Raises:
            Misfit: it does not fit, or cannot be kept.
        """
        if type(value) in self.scalars and is_durable_scalar(value):
            return value
        try:
            kept = durable(converted(value, self.annotation, objects=objects), ordered=self.ordered)
            # An object can hold what its class would not let in.
            converted(kept, self.annotation, objects=False)
        except Mismatch as misfit:
            raise misfit.within(field) from None
        return kept


class Field(msgspec.Struct, frozen=True):
    """A field of a state type."""

    name: str
    """The attribute, where the type has attributes."""
    key: str
    """What it is called in the durable form."""
    value_type: ValueType


def value_type_of(annotation: Any) -> ValueType:
    """Return what takes values of that type."""
    if annotation is Any or annotation is object:
        return ValueType(Any, _SCALARS, scalar_only=False, ordered=False)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = typing.get_args(annotation)
    else:
        members = (annotation,)
    # None is written as such, or as its type.
    plain = [type(None) if member is None else member for member in members]
    scalars = frozenset(kind for kind in plain if isinstance(kind, type) and kind in _SCALARS)
    sealed = len(scalars) == len(plain)
    sets = (inspect.SetType, inspect.FrozenSetType)
    ordered = not sealed and any(isinstance(part, sets) for part in nested_types(annotation))
    return ValueType(annotation, scalars, sealed, ordered)


def normalized_typed_dict(kind: Any) -> Any:
    """Return a TypedDict as msgspec understands it, with the qualifiers where it looks for them."""
    required = set(cast(Iterable[str], kind.__required_keys__))
    plain: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        qualifiers, plain[key] = _unqualified(hint)
        # Where annotations are text, Python itself did not see the qualifiers.
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
    """Yield why values of that type could not be kept and come back."""
    try:
        parts = list(nested_types(annotation))
    except Exception as error:  # whatever comes of looking for names that are not there
        yield str(error)
        return
    for part in parts:
        if not isinstance(part, inspect.CustomType):
            continue
        if part.cls is not object and not hasattr(part.cls, "model_validate"):
            yield (
                f"there is no durable form for {part.cls.__name__}; "
                "use a TypedDict, a dataclass, a msgspec.Struct or a pydantic model"
            )


def nested_types(annotation: Any) -> Iterator[inspect.Type]:
    """Yield a type as msgspec sees it, and all that it is made of."""
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
    """Return why there is no place for what has this key.

    The key came with the value, and is not quoted; a known name that is like it is.
    """
    if not isinstance(key, str):
        return Mismatch("", f"the keys of a state are text, not {type(key).__name__}")
    names = list(known)
    like = difflib.get_close_matches(key[:_NAME_CHARS_MAX], names, n=1)
    hint = f"; perhaps {like[0]!r} is meant" if like else ""
    return Mismatch("", f"a field does not exist; there are: {', '.join(names) or 'none'}{hint}")


def _unqualified(hint: Any) -> tuple[frozenset[str], Any]:
    """Return the qualifiers of a TypedDict's key, and its type without them."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        inner, *notes = typing.get_args(hint)
        qualifiers, plain = _unqualified(inner)
        return qualifiers, Annotated[(plain, *notes)] if qualifiers else hint
    # By name, since typing_extensions has its own until Python has them.
    name = getattr(origin, "_name", None) or getattr(origin, "__name__", None)
    if name in ("Required", "NotRequired", "ReadOnly"):
        qualifiers, plain = _unqualified(typing.get_args(hint)[0])
        return qualifiers | {name}, plain
    return frozenset(), hint
