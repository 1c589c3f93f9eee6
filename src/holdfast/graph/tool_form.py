"""The parameters of a tool as a form, in which people see and edit the arguments of a call."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ArgumentsTooLarge, InvalidArguments, InvalidRequest
from holdfast.graph.lost_types import check_kept_type
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.schemas import ConvertArguments, arguments_schema
from holdfast.graph.values import durable

__all__ = ["ARGUMENTS_BYTES_MAX", "FilledForm", "ToolForm"]

ARGUMENTS_BYTES_MAX = 128 * 1024
"""How large the arguments in a form may be: a review holds them in one item, twice."""
_INJECTED = ("ctx", "idempotency_key")
_json_encoder = msgspec.json.Encoder(order="deterministic")


class FilledForm(NamedTuple):
    """The arguments of a call."""

    stored: dict[str, Any]
    """As JSON values, by name: what is stored and shown."""
    arguments: dict[str, Any]
    """As the function gets them."""


class ToolForm:
    """The parameters of a tool. They are read when a call first needs them."""

    def __init__(
        self, function: Callable[..., Any], *, name: str, signature: inspect.Signature | None
    ) -> None:
        """Check the kinds of the parameters.

        Raises:
            InvalidRequest: arguments cannot be passed by name.
        """
        if signature is None:
            raise InvalidRequest(
                f"approval needs a function with a signature, which {name!r} has not",
                field="approval",
            )
        for each in signature.parameters.values():
            if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                raise InvalidRequest(
                    f"tool {name!r} with approval has the parameter {each}: a reviewer approves "
                    "arguments by name",
                    field="approval",
                )
        self.name = name
        self._function = function
        self._signature = signature
        parameters = signature.parameters.values()
        self.names = tuple(each.name for each in parameters if each.name not in _INJECTED)
        self.defaults: dict[str, Any] = {
            each.name: each.default
            for each in parameters
            if each.name in self.names and each.default is not each.empty
        }
        self._fitting: dict[str, Any] = {}
        self._tried: set[str] = set()

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters.

        Raises:
            InvalidRequest: JSON cannot express one of them.
        """
        return self._read[0]

    @functools.cached_property
    def digest(self) -> str:
        """The hash of the schema."""
        return hashlib.blake2b(_json_encoder.encode(self.schema), digest_size=8).hexdigest()

    @functools.cached_property
    def _read(self) -> tuple[dict[str, Any], ConvertArguments]:
        return arguments_schema(self._function)

    def converted(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored arguments as the function gets them.

        Raises:
            InvalidArguments: they do not fit the parameters.
        """
        if not isinstance(stored, Mapping):
            raise InvalidArguments(f"the arguments of {self.name} are no object", tool=self.name)
        arguments = self._read[1](stored)
        if missing := [n for n in self.names if n not in arguments and n not in self.defaults]:
            raise InvalidArguments(
                f"the arguments of {self.name} do not fit: {missing[0]} is missing", tool=self.name
            )
        return arguments

    def filled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FilledForm:
        """Return the arguments of a call by name, with the defaults that JSON can express.

        Raises:
            ArgumentsTooLarge: they have more bytes than a review may hold.
            InvalidRequest: they do not fit the parameters, or JSON cannot express them.
        """
        passed = self._named(args, kwargs)
        plain = self._plain(passed)
        stored = msgspec.json.decode(msgspec.json.encode(plain))
        try:
            arguments = self.converted(stored)
        except InvalidArguments as error:
            raise InvalidRequest(f"{error}", field=error.field) from None
        for name, value in passed.items():
            self._check_kept(name, value, stored[name], arguments[name])
        if durable(arguments) != plain:  # such as a NaN
            raise InvalidRequest(
                f"JSON cannot express the arguments of {self.name!r}, so that a reviewer could "
                "not see what is passed",
                field="arguments",
            )
        for name in self._fitting_defaults(stored):
            if name not in stored:
                stored[name] = self._fitting[name]
                arguments[name] = self.defaults[name]
        order = [name for name in self.names if name in stored]
        return FilledForm({n: stored[n] for n in order}, {n: arguments[n] for n in order})

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        injected = [name for name in _INJECTED if name in self._signature.parameters]
        try:
            bound = self._signature.bind(*args, **{**dict.fromkeys(injected), **kwargs})
        except TypeError as error:
            raise InvalidRequest(
                f"{self.name!r} does not accept these arguments: {error}"
            ) from None
        return {name: bound.arguments[name] for name in self.names if name in bound.arguments}

    def _plain(self, passed: dict[str, Any]) -> dict[str, Any]:
        try:
            return durable(passed, bytes_max=ARGUMENTS_BYTES_MAX)
        except TooLarge as error:
            raise ArgumentsTooLarge(
                f"the arguments of a call of {self.name!r}, which needs an approval, have "
                f"{error.size:,} bytes; the limit is {ARGUMENTS_BYTES_MAX:,}: keep large documents "
                "in a bucket, and pass their address",
                size=error.size,
                limit=error.limit,
            ) from None
        except Mismatch as error:
            raise InvalidRequest(
                f"a reviewer cannot be shown the arguments of {self.name!r}: {error}",
                field=error.field or "arguments",
            ) from None

    def _check_kept(self, name: str, passed: Any, stored: Any, argument: Any) -> None:
        """Check that an argument does not lose its type in the review."""
        if type(argument) is not type(stored) or argument != stored:
            return  # its annotation restores it
        try:
            check_kept_type(passed, remedy=f"annotate {name}: {{type}}")
            if not isinstance(passed, type(stored) | tuple) and passed != stored:
                kind = type(passed).__name__
                raise Mismatch(name, f"a {kind} needs an annotation: {name}: {kind}")
        except Mismatch as error:
            raise InvalidRequest(
                f"argument {name!r} of {self.name!r} would come back from the review with "
                f"another type: {error}",
                field=name,
            ) from None

    def _fitting_defaults(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that JSON can express, as JSON values."""
        for name, default in self.defaults.items():
            if name in self._tried or name in stored:
                continue
            self._tried.add(name)
            try:
                plain = durable(default, bytes_max=ARGUMENTS_BYTES_MAX)
                value = msgspec.json.decode(msgspec.json.encode(plain))
                if self.converted({**stored, name: value})[name] == default:
                    self._fitting[name] = value
            except (Mismatch, InvalidArguments):
                continue  # Python applies it
        return self._fitting
