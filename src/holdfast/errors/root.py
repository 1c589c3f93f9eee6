"""`HoldfastError`: the base class of all errors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from holdfast.redaction import excerpt

__all__ = ["HoldfastError", "ItemValues"]

ItemValues: TypeAlias = Mapping[str, Any]
"""An item of a table, as plain Python values (see `storage/item.py`)."""

# An error may quote a caller's text. No message needs more.
_MESSAGE_LETTERS_MAX = 20_000


class HoldfastError(Exception):
    """Holdfast could not perform the request."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        # Every message may quote an address with credentials, so all are redacted here.
        text = message or inspect.getdoc(type(self)) or self.code
        super().__init__(excerpt(str(text), _MESSAGE_LETTERS_MAX))
