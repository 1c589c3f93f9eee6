"""States that are pydantic models. Holdfast recognises them without importing pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.graph.fields import unknown_field
from holdfast.graph.mismatch import Mismatch, no_fields, pydantic_mismatch
from holdfast.graph.values import deep_copied, durable, same_bytes

__all__ = ["PydanticShape", "is_pydantic_model"]


def is_pydantic_model(kind: Any) -> bool:
    """Return whether a type is a pydantic model."""
    return (
        isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_fields")
    )


class PydanticShape:
    """The shape of a pydantic model. It needs pydantic 2.11, which can validate by name."""

    def __init__(self, kind: Any) -> None:
        self._type = kind
        self._names = frozenset(cast(Mapping[str, Any], kind.model_fields))
        self._aliases = _aliases(kind)
        self._open = kind.model_config.get("extra") == "allow"

    @property
    def fields(self) -> frozenset[str] | None:
        return None if self._open else self._names

    def initial(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, self._type):
            given = self._validated(self._keyed_by_name(given), strict=None)
        return self._durable_contents(given)

    def typed(self, state: dict[str, Any]) -> Any:
        return self._validated(deep_copied(state), strict=False)

    def delta(self, returned: Any, before: dict[str, Any]) -> dict[str, Any]:
        if isinstance(returned, self._type):
            values = _values(returned)
        else:
            # Validated together with the other fields: a model may have rules for several fields.
            values = {**_values(self.typed(before)), **self._keyed_by_name(returned)}
        # Also validated if it is a model: its attributes can be set to anything.
        contents = self._durable_contents(self._validated(values, strict=True))
        return {
            key: kept
            for key, kept in contents.items()
            if key not in before or not same_bytes(kept, before[key])
        }

    def _keyed_by_name(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise no_fields(given, self._type)
        named: dict[str, Any] = {}
        for key, value in cast(Mapping[Any, Any], given).items():
            name = self._aliases.get(key, key) if isinstance(key, str) else None
            if name is None or (name not in self._names and not self._open):
                raise unknown_field(key, sorted(self._names))
            named[name] = value
        return named

    def _validated(self, values: dict[str, Any], *, strict: bool | None) -> Any:
        try:
            return self._type.model_validate(values, strict=strict, by_name=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise pydantic_mismatch(error, self._type) from None

    def _durable_contents(self, model: Any) -> dict[str, Any]:
        """Return all fields of a model in their durable form."""
        how = {"round_trip": True, "by_alias": False, "warnings": False}
        state: dict[str, Any] = {}
        doubtful: list[str] = []
        for key, value in model.model_dump(**how).items():
            try:
                state[key] = durable(value)
            except Mismatch as mismatch:
                # Pydantic's own types, such as URLs, become plain values only in JSON mode.
                try:
                    state[key] = durable(model.model_dump(**how, mode="json", include={key})[key])
                except (Mismatch, ValueError, TypeError):
                    raise mismatch.within(key) from None
                doubtful.append(key)
        again = self.typed(state)
        for key in doubtful:
            # The JSON of a secret is asterisks.
            if getattr(again, key) != getattr(model, key):
                raise Mismatch(key, "its JSON form does not read back as the same value")
        return state


def _values(model: Any) -> dict[str, Any]:
    extra = cast(dict[str, Any] | None, model.model_extra)
    names = cast(Mapping[str, Any], model.__class__.model_fields)
    return {**{name: getattr(model, name) for name in names}, **(extra or {})}


def _aliases(kind: Any) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for name, field in cast(Mapping[str, Any], kind.model_fields).items():
        for alias in (field.alias, field.validation_alias):
            if isinstance(alias, str):
                aliases[alias] = name
    return aliases
