"""The root of the tree: what every error has, and what several carry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from holdfast.addresses import without_credentials

__all__ = ["HoldfastError", "Item"]

Item: TypeAlias = Mapping[str, Any]
"""An item of a table, as plain Python values (storage/item.py says which)."""


class HoldfastError(Exception):
    """Holdfast could not do what was asked."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        # Here, since an error may quote any address, and any other error that does.
        told = message or inspect.getdoc(type(self)) or self.code
        super().__init__(without_credentials(told))
