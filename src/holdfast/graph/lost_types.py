"""Finds results that would come back in another type, because no annotation says which one.

Type checkers infer the class of an unannotated result, and a re-run gets the stored form of it. So
such a result is refused. Dates, decimals, UUIDs, enums and tuples are not: they come back as text,
values and lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from holdfast.graph.mismatch import Mismatch

__all__ = ["check_kept_type", "has_fields"]

_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
_FIELD_MARKS = (
    "__dataclass_fields__",
    "__struct_fields__",
    "__pydantic_fields__",
    "__attrs_attrs__",
)


def check_kept_type(value: object, *, remedy: str) -> None:
    """Check that a value, and what it directly contains, is of types that are stored as they are.

    ``remedy`` says what to write, with ``{type}`` in place of the type.

    Raises:
        Mismatch: the value would come back as a dict or a list.
    """
    own: type = type(value)
    if own in _PLAIN:
        return
    if form := _stored_form(own):
        name = own.__name__
        raise Mismatch(
            "",
            f"{_with_article(name)}, which would come back as a {form}, because no annotation "
            f"names its type: {remedy.format(type=name)}",
        )
    for kind in set(map(type, _elements(value))) - _PLAIN:
        if form := _stored_form(kind):
            holder, name = own.__name__, kind.__name__
            shown = f"{holder}[str, {name}]" if isinstance(value, Mapping) else f"{holder}[{name}]"
            raise Mismatch(
                "",
                f"a {holder} with {_with_article(name)}, which would come back as a {form}, "
                f"because no annotation names its type: {remedy.format(type=shown)}",
            )


def has_fields(kind: Any) -> bool:
    """Return whether a class has declared fields: a dataclass, a struct or a model."""
    return any(hasattr(kind, mark) for mark in _FIELD_MARKS)


def _stored_form(kind: type) -> str | None:
    """Return as what values of a type come back, if their type would be lost."""
    if has_fields(kind):
        return "dict"
    is_named_tuple = hasattr(kind, "_fields") and issubclass(kind, tuple)
    return "list" if is_named_tuple or issubclass(kind, set | frozenset) else None


def _elements(value: object) -> Collection[Any]:
    if isinstance(value, dict):
        return cast(dict[Any, Any], value).values()
    return cast(Collection[Any], value) if isinstance(value, list | tuple) else ()


def _with_article(name: str) -> str:
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"
