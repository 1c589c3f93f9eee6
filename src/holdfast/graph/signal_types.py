"""The types of signals' payloads, and the schemas by which other processes check payloads."""

from __future__ import annotations

import functools
import hashlib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidGraph, InvalidName, InvalidRequest
from holdfast.graph.fields import normalized_typed_dict
from holdfast.graph.mismatch import Mismatch, pydantic_mismatch
from holdfast.graph.pydantic_shape import is_pydantic_model
from holdfast.graph.schema_check import schema_mismatch
from holdfast.graph.schemas import schema_of
from holdfast.graph.values import converted
from holdfast.model.names import validated_name
from holdfast.model.signals import SignalName

__all__ = ["SignalType", "declared_signals", "signal_type_of", "stored_signal_type"]

SCHEMA_BYTES_MAX = 8 * 1024
"""A larger schema is not stored: other processes send such signals unchecked."""
_SIGNALS_MAX = 200
_TYPES_CACHED_MAX = 1_000
_encoder = msgspec.json.Encoder(order="deterministic")


class SignalType(msgspec.Struct, frozen=True):
    """The type of a signal's payload, or only its schema in a process that lacks the type."""

    digest: str
    """Identifies the schema; empty if the schema is too large to be stored."""
    schema: Mapping[str, Any]
    type: Any = msgspec.UNSET

    def converted(self, payload: Any) -> Any:
        """Return a payload that a wait took, converted to the type.

        Fields that the type does not have are ignored: it may have had them when the payload was
        taken.

        Raises:
            Mismatch: the payload does not fit.
        """
        mismatch = schema_mismatch(payload, self.schema, allow_unknown=True)
        if mismatch is not None:
            raise mismatch
        return self._convert(payload)

    def misfit(self, payload: Any) -> str | None:
        """Return why no wait takes a payload; None if it fits.

        Fields that the type does not have do not fit; a pydantic model decides this for itself.
        """
        mismatch = schema_mismatch(payload, self.schema)
        try:
            if mismatch is None:
                self._convert(payload)
        except Mismatch as found:
            mismatch = found
        return None if mismatch is None else str(mismatch)

    def _convert(self, payload: Any) -> Any:
        if self.type is msgspec.UNSET:
            return payload
        if is_pydantic_model(self.type):
            try:
                # As JSON and strict: "2026-01-01" is a date then, and "true" is not a bool.
                return self.type.model_validate_json(msgspec.json.encode(payload), strict=True)
            except (TypeError, ValueError, RecursionError) as error:
                raise pydantic_mismatch(error, self.type) from None
        kind = normalized_typed_dict(self.type) if typing.is_typeddict(self.type) else self.type
        return converted(payload, kind, objects=False)


def signal_type_of(kind: Any) -> SignalType:
    """Return the type of a signal's payload.

    Raises:
        InvalidRequest: a payload cannot have this type.
    """
    try:
        return _cached_type_of(kind)
    except TypeError:  # it has no hash
        return _type_of(kind)


def _type_of(kind: Any) -> SignalType:
    schema = schema_of(kind, open_models=True)
    encoded = _encoder.encode(schema)
    digest = ""
    if len(encoded) <= SCHEMA_BYTES_MAX:
        digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return SignalType(digest, schema, kind)


_cached_type_of = functools.lru_cache(maxsize=_TYPES_CACHED_MAX, typed=True)(_type_of)


def stored_signal_type(digest: str, schema: Mapping[str, Any]) -> SignalType:
    """Return the type whose schema another process stored."""
    return SignalType(digest, schema)


def declared_signals(signals: Any) -> dict[str, Any]:
    """Return the types of the signals that a graph declares, by name.

    Raises:
        InvalidGraph: they are not a list of signals with different names and valid types.
    """
    if isinstance(signals, str | SignalName | Mapping) or not isinstance(signals, Iterable):
        raise InvalidGraph(
            f'signals must be a list such as [signal("approved", bool)], got {signals!r:.80}'
        )
    declared: dict[str, Any] = {}
    for each in cast(Iterable[Any], signals):
        if not isinstance(each, SignalName):
            raise InvalidGraph(
                f'signals must contain signal("name") or signal("name", type), got {each!r:.80}'
            )
        try:
            name = validated_name(each.name, "a signal's name")
            if each.type is not msgspec.UNSET:
                signal_type_of(each.type)
        except (InvalidName, InvalidRequest) as error:
            raise InvalidGraph(f"signals: {error}") from None
        if name in declared:
            raise InvalidGraph(f"signals must have different names, got {name!r} twice")
        declared[name] = each.type
    if len(declared) > _SIGNALS_MAX:
        raise InvalidGraph(
            f"signals must contain at most {_SIGNALS_MAX} signals, got {len(declared)}"
        )
    return declared
