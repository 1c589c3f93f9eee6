"""Converts states of each kind of type to their durable form and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from holdfast.graph.fields import (
    Field,
    ValueType,
    fields_of,
    normalized_typed_dict,
    unknown_field,
    value_type_of,
)
from holdfast.graph.mismatch import Mismatch, no_fields
from holdfast.graph.values import converted, deep_copied, durable, is_durable_scalar, same_bytes

__all__ = ["DictShape", "DurableState", "ObjectShape", "Shape", "TypedDictShape"]

DurableState: TypeAlias = dict[str, Any]
"""A state as it is stored."""


class Shape(Protocol):
    """Converts between a type and its durable form. Every method may raise `Mismatch`."""

    @property
    def fields(self) -> frozenset[str] | None:
        """The possible keys; None if any key is possible."""
        ...

    def initial(self, given: Any) -> DurableState:
        """Return the state with which a run starts."""
        ...

    def typed(self, state: DurableState) -> Any:
        """Return the state as an object of its type. It shares no mutable value."""
        ...

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        """Return the fields that a node changed by returning a value."""
        ...


class TypedDictShape:
    """The shape of a TypedDict."""

    def __init__(self, kind: Any) -> None:
        self._type = normalized_typed_dict(kind)
        self._fields = {field.key: field for field in fields_of(kind)}
        self._scalar_only = all(field.value_type.scalar_only for field in self._fields.values())

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self._fields)

    def initial(self, given: Any) -> DurableState:
        state = _changed_fields(given, self._fields, before={}, objects=False)
        self.typed(state)
        return state

    def typed(self, state: DurableState) -> Any:
        return converted(
            state if self._scalar_only else deep_copied(state), self._type, objects=False
        )

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        return _changed_fields(returned, self._fields, before=before, objects=True)


class ObjectShape:
    """The shape of a struct or a dataclass."""

    def __init__(self, kind: Any) -> None:
        self._type = kind
        self._fields = fields_of(kind)
        # A field can have one name in Python and another one in JSON and in the durable form.
        self._named: dict[str, Field] = {field.name: field for field in self._fields}
        self._named |= {field.key: field for field in self._fields}
        self._scalar_only = all(field.value_type.scalar_only for field in self._fields)
        self._has_post_init = hasattr(kind, "__post_init__")

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field.key for field in self._fields)

    def initial(self, given: Any) -> DurableState:
        if not isinstance(given, self._type):
            fields = self._changed_fields(given, before={}, objects=False)
            given = self.typed(fields)
        state = self._durable_contents(given, {})
        self.typed(state)
        return state

    def typed(self, state: DurableState) -> Any:
        return converted(
            state if self._scalar_only else deep_copied(state), self._type, objects=False
        )

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        if isinstance(returned, self._type):
            changed = self._durable_contents(returned, before)
        else:
            changed = self._changed_fields(returned, before=before, objects=True)
        if self._has_post_init and changed:
            # Fields that are valid one by one may be invalid together.
            self.typed({**before, **changed})
        return changed

    def _changed_fields(self, given: Any, *, before: DurableState, objects: bool) -> DurableState:
        return _changed_fields(given, self._named, before=before, objects=objects, kind=self._type)

    def _durable_contents(self, given: Any, before: DurableState) -> DurableState:
        changed: DurableState = {}
        for field in self._fields:
            value = getattr(given, field.name, msgspec.UNSET)
            if value is msgspec.UNSET:
                if field.key in before:
                    raise Mismatch(
                        field.key, "a field that was set must not become UNSET; use None"
                    )
                continue
            kept = field.value_type.durable_form(field.key, value, objects=True)
            if field.key not in before or not same_bytes(kept, before[field.key]):
                changed[field.key] = kept
        return changed


class DictShape:
    """The shape of a plain dict: any keys, values of one type or of any type."""

    def __init__(self, values: Any) -> None:
        self._value_type: ValueType = value_type_of(values)
        self._type = dict[str, values]

    @property
    def fields(self) -> None:
        return None

    def initial(self, given: Any) -> DurableState:
        return self._changed_values(_mapping(given), {}, objects=False)

    def typed(self, state: DurableState) -> Any:
        return converted(deep_copied(state), self._type, objects=False)

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        return self._changed_values(_mapping(returned), before, objects=True)

    def _changed_values(
        self, given: Mapping[Any, Any], before: DurableState, *, objects: bool
    ) -> DurableState:
        changed: DurableState = {}
        for key, value in given.items():
            if not isinstance(key, str):
                raise Mismatch("", f"keys of a state must be strings, got {type(key).__name__}")
            name = key if is_durable_scalar(key) else durable(key)
            kept = self._value_type.durable_form(name, value, objects=objects)
            if name not in before or not same_bytes(kept, before[name]):
                changed[name] = kept
        return changed


def _changed_fields(
    given: Any,
    fields: Mapping[str, Field],
    *,
    before: DurableState,
    objects: bool,
    kind: type | None = None,
) -> DurableState:
    """Return the durable form of the fields that differ from ``before``."""
    changed: DurableState = {}
    for name, value in _mapping(given, kind).items():
        field = fields.get(name)
        if field is None:
            raise unknown_field(name, fields)
        key = field.key
        kept = field.value_type.durable_form(key, value, objects=objects)
        if key not in before or not same_bytes(kept, before[key]):
            changed[key] = kept
    return changed


def _mapping(given: Any, kind: type | None = None) -> Mapping[Any, Any]:
    if type(given) is dict or isinstance(given, Mapping):
        return cast(Mapping[Any, Any], given)
    raise no_fields(given, kind)
