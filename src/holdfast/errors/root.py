"""`HoldfastError`: the base class of all errors."""

from __future__ import annotations

import inspect
from typing import ClassVar

from holdfast.redaction import excerpt

__all__ = ["HoldfastError"]

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
