"""The kinds of type that a state can have: keys, attributes, or anything under any key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from holdfast.graph.slots import Field, Slot, cleared, fields_of, slot_of, unknown_field
from holdfast.graph.values import Misfit, converted, durable, plainly_durable, same, separate

__all__ = ["Anything", "Attributes", "Durable", "Keys", "Shape"]

Durable: TypeAlias = dict[str, Any]
"""A state as it is kept."""


class Shape(Protocol):
    """What stands between a type and its durable form; every method raises `Misfit`."""

    @property
    def fields(self) -> frozenset[str] | None:
        """The keys that there can be; None where there may be any."""
        ...

    def initial(self, given: Any) -> Durable:
        """Return the state that a run starts with."""
        ...

    def entered(self, state: Durable) -> Any:
        """Return the state as its type has it, sharing nothing that can be changed."""
        ...

    def delta(self, returned: Any, before: Durable) -> Durable:
        """Return what is different after a node returned that."""
        ...


class Keys:
    """The shape of a TypedDict."""

    def __init__(self, kind: Any) -> None:
        self._type = cleared(kind)
        self._fields = {field.key: field for field in fields_of(kind)}
        self._sealed = all(field.slot.sealed for field in self._fields.values())

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self._fields)

    def initial(self, given: Any) -> Durable:
        state = _changed(given, self._fields, before={}, objects=False)
        self.entered(state)
        return state

    def entered(self, state: Durable) -> Any:
        return converted(state if self._sealed else separate(state), self._type, objects=False)

    def delta(self, returned: Any, before: Durable) -> Durable:
        return _changed(returned, self._fields, before=before, objects=True)


class Attributes:
    """The shape of a struct or a dataclass."""

    def __init__(self, kind: Any) -> None:
        self._type = kind
        self._fields = fields_of(kind)
        # In Python a field goes by its name; JSON, and what is kept, may have another for it.
        self._named: dict[str, Field] = {field.name: field for field in self._fields}
        self._named |= {field.key: field for field in self._fields}
        self._sealed = all(field.slot.sealed for field in self._fields)
        self._judges = hasattr(kind, "__post_init__")

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field.key for field in self._fields)

    def initial(self, given: Any) -> Durable:
        if not isinstance(given, self._type):
            given = self.entered(_changed(given, self._named, before={}, objects=False))
        state = self._contents(given, {})
        self.entered(state)
        return state

    def entered(self, state: Durable) -> Any:
        return converted(state if self._sealed else separate(state), self._type, objects=False)

    def delta(self, returned: Any, before: Durable) -> Durable:
        if isinstance(returned, self._type):
            changed = self._contents(returned, before)
        else:
            changed = _changed(returned, self._named, before=before, objects=True)
        if self._judges and changed:
            # Fields that fit one by one may not fit together.
            self.entered({**before, **changed})
        return changed

    def _contents(self, given: Any, before: Durable) -> Durable:
        changed: Durable = {}
        for field in self._fields:
            value = getattr(given, field.name, msgspec.UNSET)
            if value is msgspec.UNSET:
                if field.key in before:
                    raise Misfit(field.key, "what was set cannot be unset; use None")
                continue
            kept = field.slot.kept(field.key, value, objects=True)
            if field.key not in before or not same(kept, before[field.key]):
                changed[field.key] = kept
        return changed


class Anything:
    """The shape of a plain dict: any key, and values of one type or of any."""

    def __init__(self, values: Any) -> None:
        self._slot: Slot = slot_of(values)
        self._type = dict[str, values]

    @property
    def fields(self) -> None:
        return None

    def initial(self, given: Any) -> Durable:
        return self._kept(_mapping(given), {}, objects=False)

    def entered(self, state: Durable) -> Any:
        return converted(separate(state), self._type, objects=False)

    def delta(self, returned: Any, before: Durable) -> Durable:
        return self._kept(_mapping(returned), before, objects=True)

    def _kept(self, given: Mapping[Any, Any], before: Durable, *, objects: bool) -> Durable:
        changed: Durable = {}
        for key, value in given.items():
            if not isinstance(key, str):
                raise Misfit("", f"the keys of a state are text, not {type(key).__name__}")
            name = key if plainly_durable(key) else durable(key)
            kept = self._slot.kept(name, value, objects=objects)
            if name not in before or not same(kept, before[name]):
                changed[name] = kept
        return changed


def _changed(given: Any, fields: Mapping[str, Field], *, before: Durable, objects: bool) -> Durable:
    """Return the durable form of what is given, without what stands already."""
    changed: Durable = {}
    for name, value in _mapping(given).items():
        field = fields.get(name)
        if field is None:
            raise unknown_field(name, fields)
        key = field.key
        kept = field.slot.kept(key, value, objects=objects)
        if key not in before or not same(kept, before[key]):
            changed[key] = kept
    return changed


def _mapping(given: Any) -> Mapping[Any, Any]:
    if type(given) is dict or isinstance(given, Mapping):
        return cast(Mapping[Any, Any], given)
    raise Misfit("", f"expected a dict of fields, got {type(given).__name__}")
