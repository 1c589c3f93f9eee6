"""Damaged items: a bug, another program or a bad disk may have written them.

Each function that decodes an item raises `JournalDamaged` if it is not what its key says.
`DECODE_ERRORS` are the errors that its attributes can cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import JournalDamaged

__all__ = ["DECODE_ERRORS", "attribute_part", "damaged_item_error", "typed_attribute"]

DECODE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def damaged_item_error(item: Mapping[str, Any], what: str, error: Exception) -> JournalDamaged:
    """Return the error for an item that cannot be decoded."""
    key = f"{item.get('PK')!s:.200} {item.get('SK')!s:.200}"
    return JournalDamaged(f"{what} at {key} cannot be read: {error!r:.200}")


def attribute_part(item: Mapping[str, Any], name: str, key: str) -> Any:
    """Return a value of an attribute that is a map; None if there is none."""
    value = item.get(name)
    return cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None


def typed_attribute(item: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an attribute, which must have exactly this type.

    Raises:
        KeyError, TypeError: the attribute is missing, or has another type.
    """
    value = item[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r:.80}")
    return value
