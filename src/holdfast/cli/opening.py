"""Hands commands the store that their options name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous
from holdfast.cli.parameters import tenant_option, url_option
from holdfast.storage.open import open as open_store

__all__ = ["on_store"]


def on_store(
    *, make: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command the options that name the store, and hand it the Holdfast there.

    ``make`` says whether an SQLite file is made where there is none: to ask for a run of a
    mistyped one should not leave a file behind.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @url_option
        @tenant_option
        @asynchronous
        @wraps(function)
        async def opened(*, url: str, tenant: str, **given: Any) -> None:
            async with open_store(url, make=make) as store:
                await function(Holdfast(url, tenant=tenant, store=store), **given)

        return opened

    return decorate
