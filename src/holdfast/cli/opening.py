"""Hands commands the store that their options name, and what a Holdfast there has to know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous, show_errors
from holdfast.cli.parameters import parse_path, tenant_option, url_option
from holdfast.cli.targets import load_limits
from holdfast.errors import InvalidRequest
from holdfast.model.payload_limits import PayloadLimits
from holdfast.storage.open import open as open_store

__all__ = ["common_options", "with_holdfast"]

F = TypeVar("F", bound=Callable[..., Any])
_KEY_BYTES_MIN = 16
# A larger file is not a key, but a mistake.
_KEY_BYTES_MAX = 4096


def _load_limits_option(
    context: click.Context, parameter: click.Parameter, target: str | None
) -> PayloadLimits | None:
    """Import them before the store is opened, and outside of any event loop."""
    with show_errors():
        return None if target is None else load_limits(target)


def _load_user_key_option(
    context: click.Context, parameter: click.Parameter, file: Path | None
) -> bytes | None:
    if file is None:
        return None
    with show_errors():
        return _read_key(file)


def _read_key(file: Path) -> bytes:
    """Return all bytes of a file.

    Raises:
        click.ClickException: it cannot be read.
        InvalidRequest: they are too few for a key, or too many.
    """
    try:
        with file.open("rb") as opened:
            key = opened.read(_KEY_BYTES_MAX + 1)
    except OSError as error:
        raise click.ClickException(f"the user key cannot be read: {error}") from None
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        size = f"{len(key):,}" if len(key) <= _KEY_BYTES_MAX else "more"
        raise InvalidRequest(
            f"a user key must have from {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX:,} bytes, and the file "
            f"{str(file)!r} has {size}",
            field="user_key",
        )
    return key


def common_options(function: F) -> F:
    """Give a command the options that all processes of a store should set alike."""
    for option in (
        click.option(
            "--user-key-file",
            "user_key",
            envvar="HOLDFAST_USER_KEY_FILE",
            show_envvar=True,
            type=parse_path,
            callback=_load_user_key_option,
            metavar="FILE",
            help="The key under which users are hashed: all bytes of the file.  [default: the "
            "store's own]",
        ),
        click.option(
            "--limits",
            callback=_load_limits_option,
            metavar="TARGET",
            help="PayloadLimits: how large values may be (package.module:attribute).",
        ),
        url_option,
    ):
        function = option(function)
    return function


def with_holdfast(
    *, make: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command the options that name the store, and hand it the Holdfast there.

    ``make`` says whether an SQLite file is made where there is none: to ask for a run of a
    mistyped one should not leave a file behind.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @common_options
        @tenant_option
        @asynchronous
        @wraps(function)
        async def opened(
            *,
            url: str,
            tenant: str,
            limits: PayloadLimits | None,
            user_key: bytes | None,
            **given: Any,
        ) -> None:
            async with open_store(url, make=make) as store:
                holdfast = Holdfast(
                    url, tenant=tenant, store=store, limits=limits, user_key=user_key
                )
                await function(holdfast, **given)

        return opened

    return decorate
