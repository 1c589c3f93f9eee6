"""Items that are not what their key says: a bug, another program or a bad disk wrote them.

Each function that reads an item raises `JournalDamaged` there, whatever the item holds. `DAMAGE`
are the errors that its attributes can cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import JournalDamaged

__all__ = ["DECODE_ERRORS", "attribute_part", "damaged_item_error", "typed_attribute"]

DECODE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def damaged_item_error(item: Mapping[str, Any], what: str, error: Exception) -> JournalDamaged:
    """Return the error that says which item cannot be read, and why."""
    key = f"{item.get('PK')!s:.200} {item.get('SK')!s:.200}"
    return JournalDamaged(f"{what} at {key} cannot be read: {error!r:.200}")


def attribute_part(item: Mapping[str, Any], name: str, key: str) -> Any:
    """Return a part of an attribute that may be a map; None where there is none."""
    value = item.get(name)
    return cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None


def typed_attribute(item: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an attribute that must be of exactly this type.

    Raises:
        KeyError, TypeError: it is missing, or of another type.
    """
    value = item[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r:.80}")
    return value
