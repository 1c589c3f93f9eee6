"""Data of a review as a page shows it: a tree of short parts, cut where it is too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from holdfast.display import printable

__all__ = ["ShownPart", "shown_parts", "visible"]

_TEXT_CHARS_MAX = 20_000
_PARTS_MAX = 2_000
_DEPTH_MAX = 12
_LONG_CHARS = 120


class ShownPart(msgspec.Struct, kw_only=True):
    """One value: a text, or parts with names or in a row."""

    kind: Literal["text", "long", "number", "none", "fields", "items", "empty"]
    text: str = ""
    name: str = ""
    parts: list[ShownPart] = []
    cut: str = ""
    """What is left out; empty if nothing is."""


def shown_parts(value: Any) -> ShownPart:
    """Return a value as a page shows it."""
    return _Shower().part(value, 0)


def visible(text: object) -> str:
    """Return text with every character that a page would hide, or that would reorder others."""
    lines = str(text).replace("\r\n", "\n").expandtabs(4).split("\n")
    return "\n".join(printable(line) for line in lines)


class _Shower:
    """Cuts one value: the parts of all its lists together are limited."""

    def __init__(self) -> None:
        self._left = _PARTS_MAX

    def part(self, value: Any, depth: int, name: str = "") -> ShownPart:
        self._left -= 1
        if isinstance(value, str):
            return _text(value, name)
        if value is None:
            return ShownPart(kind="none", text="none", name=name)
        if isinstance(value, bool):
            return ShownPart(kind="text", text="yes" if value else "no", name=name)
        if isinstance(value, int | float):
            return ShownPart(kind="number", text=repr(value), name=name)
        if isinstance(value, Mapping):
            return self._fields(cast(Mapping[Any, Any], value), depth, name)
        if isinstance(value, list | tuple):
            return self._items(cast(list[Any], value), depth, name)
        return _text(str(value), name)

    def _fields(self, fields: Mapping[Any, Any], depth: int, name: str) -> ShownPart:
        made = ShownPart(kind="fields" if fields else "empty", text="empty", name=name, parts=[])
        for key, value in fields.items():
            if self._is_full(made, depth, len(fields), "fields"):
                break
            made.parts.append(self.part(value, depth + 1, str(key)[:_LONG_CHARS]))
        return made

    def _items(self, items: list[Any], depth: int, name: str) -> ShownPart:
        made = ShownPart(kind="items" if items else "empty", text="empty", name=name, parts=[])
        for item in items:
            if self._is_full(made, depth, len(items), "items"):
                break
            made.parts.append(self.part(item, depth + 1))
        return made

    def _is_full(self, made: ShownPart, depth: int, size: int, what: str) -> bool:
        if self._left > 0 and depth < _DEPTH_MAX:
            return False
        made.cut = f"{size - len(made.parts):,} more {what} are not shown here"
        return True


def _text(text: str, name: str) -> ShownPart:
    kept = text[:_TEXT_CHARS_MAX]
    left = len(text) - len(kept)
    is_long = len(text) > _LONG_CHARS or "\n" in text
    return ShownPart(
        kind="empty" if not text else "long" if is_long else "text",
        text=kept or "empty",
        name=name,
        cut=f"{left:,} more characters are not shown here" if left else "",
    )
