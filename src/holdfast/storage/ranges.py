"""Ranges of sort keys: the part of a partition that a query reads."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["ALL", "All", "At", "Between", "From", "Prefix", "Range", "UpTo"]


class All(msgspec.Struct, frozen=True, tag=True):
    """The whole partition."""


class At(msgspec.Struct, frozen=True, tag=True):
    """Exactly this sort key."""

    sk: str


class Prefix(msgspec.Struct, frozen=True, tag=True):
    """The sort keys that begin with this text."""

    sk: str


class From(msgspec.Struct, frozen=True, tag=True):
    """This sort key and those after it."""

    sk: str


class UpTo(msgspec.Struct, frozen=True, tag=True):
    """This sort key and those before it."""

    sk: str


class Between(msgspec.Struct, frozen=True, tag=True):
    """Both of these sort keys and those between them."""

    first: str
    last: str


Range: TypeAlias = All | At | Prefix | From | UpTo | Between
"""Which sort keys a query reads."""

ALL = All()
