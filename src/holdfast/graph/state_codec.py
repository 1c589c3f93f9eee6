"""Converts the state of a run between its stored form and the type that nodes see.

The stored form is a dict of durable values (values.py). It is converted when a node starts. What a
node returns is checked against the type, field by field, before anything is written.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidInput, InvalidResult, InvalidState
from holdfast.graph.fields import annotations_of, unstorable_reasons
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.pydantic_shape import PydanticShape, is_pydantic_model
from holdfast.graph.shapes import DictShape, DurableState, ObjectShape, Shape, TypedDictShape

__all__ = ["StateCodec", "state_faults"]

_KINDS = "a TypedDict, a dataclass, a msgspec.Struct, a pydantic model or dict"


class StateCodec:
    """Converts and checks the states of one type."""

    def __init__(self, kind: Any) -> None:
        self._shape: Shape = _shape_of(kind)

    @property
    def fields(self) -> frozenset[str] | None:
        """The names of all fields; None if any name is possible."""
        return self._shape.fields

    def initial(self, given: Any) -> DurableState:
        """Return the state with which a run with this input starts.

        Raises:
            InvalidInput: a field is missing, unknown, of a wrong type, or cannot be stored.
        """
        try:
            return self._shape.initial(given)
        except Mismatch as mismatch:
            raise InvalidInput(
                f"the input does not fit: {mismatch}", field=mismatch.field or None
            ) from None
        except Exception as error:
            raise InvalidInput(f"the input does not fit: {_error_text(error)}") from error

    def typed(self, state: DurableState) -> Any:
        """Return the state as a node sees it. Changes to it do not change the stored state.

        Raises:
            InvalidState: a field is missing or of a wrong type.
        """
        try:
            return self._shape.typed(state)
        except Mismatch as mismatch:
            raise InvalidState(f"the state does not match its type: {mismatch}") from None
        except Exception as error:
            raise InvalidState(
                f"the state does not match its type: {_error_text(error)}"
            ) from error

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        """Return the fields that a node changed by returning None, some fields or a whole state.

        Raises:
            InvalidResult: a field is unknown, of a wrong type, or cannot be stored.
        """
        if returned is None:
            return {}
        try:
            return self._shape.delta(returned, before)
        except Mismatch as mismatch:
            if inspect.iscoroutine(returned):
                returned.close()
            raise InvalidResult(f"the result does not fit the state: {mismatch}") from None
        except Exception as error:
            raise InvalidResult(
                f"the result does not fit the state: {_error_text(error)}"
            ) from error


def state_faults(kind: Any) -> Iterator[str]:
    """Yield why states of a type cannot be stored, one sentence each."""
    values = _values_of_dict(kind)
    if values is not None:
        yield from (f"the values of the state: {reason}" for reason in unstorable_reasons(values))
    elif is_pydantic_model(kind):
        if "by_name" not in inspect.signature(kind.model_validate).parameters:
            yield f"{kind.__name__} needs pydantic 2.11 or newer"
    elif not (_is_typed_dict(kind) or _has_attributes(kind)):
        yield f"the type of the state must be {_KINDS}, got {kind!r:.80}"
    elif issubclass(kind, msgspec.Struct) and kind.__struct_config__.array_like:
        yield f"the type of the state must not be array_like, got {kind.__name__}"
    else:
        try:
            fields = annotations_of(kind)
        except Exception as error:  # resolving unknown names can raise anything
            yield f"the types of {kind.__name__} cannot be resolved: {error}"
            return
        for name, _, annotation in fields:
            for reason in unstorable_reasons(annotation):
                yield f"field {name!r} of the state: {reason}"


def _shape_of(kind: Any) -> Shape:
    values = _values_of_dict(kind)
    if values is not None:
        return DictShape(values)
    if is_pydantic_model(kind):
        return PydanticShape(kind)
    return TypedDictShape(kind) if _is_typed_dict(kind) else ObjectShape(kind)


def _values_of_dict(kind: Any) -> Any:
    """Return the type of the values of a plain dict; None for any other type."""
    if kind is dict:
        return Any
    if typing.get_origin(kind) is dict:
        key, values = typing.get_args(kind)
        return values if key is str else None
    return None


def _is_typed_dict(kind: Any) -> bool:
    # typing.is_typeddict does not recognise those of typing_extensions.
    return (
        isinstance(kind, type)
        and issubclass(kind, dict)
        and hasattr(cast(Any, kind), "__required_keys__")
    )


def _has_attributes(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(cast(Any, kind))
    )


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
