"""Finds the class of an error by its code, as a client of a server needs it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from holdfast.errors.root import HoldfastError

__all__ = ["error_class"]


def error_class(code: str) -> type[HoldfastError] | None:
    """Return the class of the errors with this code; None if this release has none."""
    return _classes().get(code)


@cache
def _classes() -> dict[str, type[HoldfastError]]:
    # A subclass without a code of its own has that of its base, which comes first.
    found: dict[str, type[HoldfastError]] = {}
    for kind in _below(HoldfastError):
        found.setdefault(kind.code, kind)
    return found


def _below(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("holdfast.errors"):
            yield each
            yield from _below(each)
