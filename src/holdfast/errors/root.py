"""The root of the tree: what every error has, and what several carry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from holdfast.redaction import excerpt

__all__ = ["HoldfastError", "ItemValues"]

ItemValues: TypeAlias = Mapping[str, Any]
"""An item of a table, as plain Python values (storage/item.py says which)."""

# An error may quote text from outside. No error of ours needs as much.
_MESSAGE_LETTERS_MAX = 20_000


class HoldfastError(Exception):
    """Holdfast could not do what was asked."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        # Here, since an error may quote any address, and any other error that does.
        text = message or inspect.getdoc(type(self)) or self.code
        super().__init__(excerpt(str(text), _MESSAGE_LETTERS_MAX))
