"""The state of a run between its two forms: what is kept, and the type that its nodes see.

What is kept is a dict of durable values (values.py). It is converted when a node is entered, and
what a node returns is checked against the type, field by field, before anything is written.
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
        """The names of all fields; None where there may be any."""
        return self._shape.fields

    def initial(self, given: Any) -> DurableState:
        """Return the state that a run with this input starts with.

        Raises:
            InvalidInput: a field is missing, unknown, of a wrong type, or cannot be kept.
        """
        try:
            return self._shape.initial(given)
        except Mismatch as misfit:
            raise InvalidInput(
                f"the input does not fit: {misfit}", field=misfit.field or None
            ) from None
        except Exception as error:
            raise InvalidInput(f"the input does not fit: {_error_text(error)}") from error

    def typed(self, state: DurableState) -> Any:
        """Return the state as a node sees it; whatever the node does to it changes nothing kept.

        Raises:
            InvalidState: a field is missing or of a wrong type.
        """
        try:
            return self._shape.typed(state)
        except Mismatch as misfit:
            raise InvalidState(f"the state does not match its type: {misfit}") from None
        except Exception as error:
            raise InvalidState(
                f"the state does not match its type: {_error_text(error)}"
            ) from error

    def delta(self, returned: Any, before: DurableState) -> DurableState:
        """Return what differs after a node returned that: nothing, some fields, or a whole state.

        Raises:
            InvalidResult: a field is unknown, of a wrong type, or cannot be kept.
        """
        if returned is None:
            return {}
        try:
            return self._shape.delta(returned, before)
        except Mismatch as misfit:
            if inspect.iscoroutine(returned):
                returned.close()
            raise InvalidResult(f"the result does not fit the state: {misfit}") from None
        except Exception as error:
            raise InvalidResult(
                f"the result does not fit the state: {_error_text(error)}"
            ) from error


def state_faults(kind: Any) -> Iterator[str]:
    """Yield why states of that type could not be kept, one sentence each."""
    values = _values_of_dict(kind)
    if values is not None:
        yield from (f"the values of the state: {reason}" for reason in unstorable_reasons(values))
    elif is_pydantic_model(kind):
        if "by_name" not in inspect.signature(kind.model_validate).parameters:
            yield f"{kind.__name__} needs pydantic 2.11 or newer"
    elif not (_is_typed_dict(kind) or _has_attributes(kind)):
        yield f"a state is {_KINDS}, not {kind!r:.80}"
    elif issubclass(kind, msgspec.Struct) and kind.__struct_config__.array_like:
        yield f"a state's fields are kept by their names, and {kind.__name__} is array_like"
    else:
        try:
            fields = annotations_of(kind)
        except Exception as error:  # whatever comes of looking for names that are not there
            yield f"the types of {kind.__name__} cannot be resolved: {error}"
            return
        for name, _, annotation in fields:
            for reason in unstorable_reasons(annotation):
                yield f"the state's field {name!r}: {reason}"


def _shape_of(kind: Any) -> Shape:
    values = _values_of_dict(kind)
    if values is not None:
        return DictShape(values)
    if is_pydantic_model(kind):
        return PydanticShape(kind)
    return TypedDictShape(kind) if _is_typed_dict(kind) else ObjectShape(kind)


def _values_of_dict(kind: Any) -> Any:
    """Return the type of a plain dict's values; None where the type is no plain dict."""
    if kind is dict:
        return Any
    if typing.get_origin(kind) is dict:
        key, values = typing.get_args(kind)
        return values if key is str else None
    return None


def _is_typed_dict(kind: Any) -> bool:
    # Not typing.is_typeddict, which does not know those of typing_extensions.
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
