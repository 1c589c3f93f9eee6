"""Converts one value, the input or the result of a workflow, to its durable form and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from holdfast.errors import HoldfastError, InvalidInput, InvalidResult, InvalidState
from holdfast.graph.fields import unstorable_reasons, value_type_of
from holdfast.graph.mismatch import Mismatch, no_fields
from holdfast.graph.state_codec import StateCodec, state_faults
from holdfast.graph.values import converted, deep_copied

__all__ = ["ValueCodec", "value_faults"]

T = TypeVar("T")


class ValueCodec:
    """Converts and checks the values of one type.

    A type with fields is handled as the type of a state is: a value may also be a dict of its
    fields, and a field that the type does not have is an error.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._fields = None if _has_no_fields(kind) else StateCodec(kind)
        self._value_type = value_type_of(kind if self._fields is None else Any)

    def stored_input(self, given: Any) -> Any:
        """Return the durable form of an input.

        Raises:
            InvalidInput: the input does not fit the type, or cannot be stored.
        """
        if self._fields is not None:
            return self._fields.initial(given)
        return _reported(
            lambda: self._value_type.durable_form("", given, objects=False),
            InvalidInput,
            "the input does not fit",
        )

    def stored_result(self, returned: Any) -> Any:
        """Return the durable form of what a function returned.

        Raises:
            InvalidResult: the value does not fit the type, or cannot be stored.
        """
        if inspect.iscoroutine(returned):
            returned.close()
            raise InvalidResult("the result is a coroutine: await it before you return it")
        if self._fields is None:
            return _reported(
                lambda: self._value_type.durable_form("", returned, objects=True),
                InvalidResult,
                "the result does not fit its type",
            )
        try:
            return self._fields.initial(returned)
        except InvalidInput as misfit:
            reason = str(misfit).removeprefix("the input does not fit: ")
            raise InvalidResult(f"the result does not fit its type: {reason}") from None

    def typed(self, stored: Any, what: str) -> Any:
        """Return a stored value in the type. Changes to it do not change the stored value.

        Raises:
            InvalidState: the value does not fit the type; ``what`` names the value.
        """
        if self._fields is None:
            return _reported(
                lambda: converted(deep_copied(stored), self._value_type.annotation, objects=False),
                InvalidState,
                f"the {what} does not match its type",
            )
        if not isinstance(stored, dict):
            raise InvalidState(f"the {what} does not match its type: {no_fields(stored)}")
        try:
            return self._fields.typed(cast(dict[str, Any], stored))
        except InvalidState as misfit:
            reason = str(misfit).removeprefix("the state does not match its type: ")
            raise InvalidState(f"the {what} does not match its type: {reason}") from None

    def changed_parts(self, value: Any, stored: Any) -> list[str]:
        """Return the fields of an input that were changed in place; ``[""]`` for its whole.

        Raises:
            InvalidState: the stored value does not fit the type.
            InvalidInput, InvalidResult: the changed value cannot be stored.
        """
        if self._fields is not None:
            changed = self._fields.delta(value, stored)
            # A type may store a value in another way than it was stored before.
            noise = self._fields.delta(self._fields.typed(stored), stored) if changed else {}
            return [name for name in changed if name not in noise or noise[name] != changed[name]]
        kept = self.stored_input(value)
        return [] if kept in (stored, self.stored_input(self.typed(stored, "input"))) else [""]


def value_faults(kind: Any, what: str) -> Iterator[str]:
    """Yield why values of a type cannot be stored, one sentence each."""
    if kind is not Any:
        yield from (f"the {what}: {reason}" for reason in unstorable_reasons(kind))


def _has_no_fields(kind: Any) -> bool:
    return kind is Any or any(state_faults(kind))


def _reported(convert: Callable[[], T], error: type[HoldfastError], beginning: str) -> T:
    try:
        return convert()
    except Mismatch as mismatch:
        raise error(f"{beginning}: {mismatch}") from None
    except Exception as raised:
        raise error(f"{beginning}: {type(raised).__name__}: {raised}") from raised
