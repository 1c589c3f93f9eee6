"""Opens the store or the server that a command's options name, with their settings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous, show_errors
from holdfast.cli.parameters import check_store_url, parse_path, tenant_option_of, url_option
from holdfast.cli.server_target import chosen_server, open_client, server_options
from holdfast.cli.targets import load_limits
from holdfast.errors import InvalidRequest
from holdfast.model.payload_limits import PayloadLimits
from holdfast.storage.open import open as open_store

if TYPE_CHECKING:
    from holdfast.client import Client, RemoteRun
    from holdfast.handle import RunHandle

__all__ = ["Opened", "OpenedRun", "common_options", "with_holdfast"]

Opened: TypeAlias = "Holdfast | Client"
"""What a command acts on: a store, or a server. Both have the same verbs."""
OpenedRun: TypeAlias = "RunHandle[Any] | RemoteRun[Any]"
"""A run of a store or of a server."""

F = TypeVar("F", bound=Callable[..., Any])
_KEY_BYTES_MIN = 16
# A larger file is not a key, but a mistake.
_KEY_BYTES_MAX = 4096


def _load_limits_option(
    context: click.Context, parameter: click.Parameter, target: str | None
) -> PayloadLimits | None:
    """Import the limits before the store is opened, and outside of any event loop."""
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
        click.ClickException: the file cannot be read.
        InvalidRequest: it has too few bytes for a key, or too many.
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
    """Give a command the options that must be the same in all processes of a store."""
    return url_option(_settings_options(function))


def _store_options(function: F) -> F:
    """Give a command the options of a store that it may use instead of a server."""
    option = click.option(
        "--url",
        envvar="HOLDFAST_URL",
        show_envvar=True,
        is_eager=True,
        metavar="URL",
        help="The store's address; see 'holdfast store --help'.",
    )
    return option(_settings_options(function))


def _settings_options(function: F) -> F:
    for option in (
        click.option(
            "--user-key-file",
            "user_key",
            envvar="HOLDFAST_USER_KEY_FILE",
            show_envvar=True,
            type=parse_path,
            callback=_load_user_key_option,
            metavar="FILE",
            help="A file with the key that hashes users.  [default: the key in the store]",
        ),
        click.option(
            "--limits",
            callback=_load_limits_option,
            metavar="TARGET",
            help="The PayloadLimits, which bound the sizes of values (package.module:attribute).",
        ),
    ):
        function = option(function)
    return function


def with_holdfast(
    *, make: bool = False, tenant_of: str = "the runs belong"
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command the options that name a store or a server, and pass it what they name.

    The command gets a Holdfast on the store, or a client of the server, which has the same verbs.
    With ``make`` a missing SQLite file is created. Commands that only read do not set it: a
    mistyped path should not leave a file behind. ``tenant_of`` is what the help of ``--tenant``
    says about the tenant.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @_store_options
        @server_options
        @tenant_option_of(tenant_of)
        @wraps(function)
        def opened(
            *,
            tenant: str,
            limits: PayloadLimits | None,
            user_key: bytes | None,
            url: str | None,
            server: str | None,
            key: str | None,
            key_file: str | None,
            **given: Any,
        ) -> None:
            context = click.get_current_context()
            address = chosen_server(context)
            if address is not None:
                given.pop("search", None)
                with show_errors():
                    client = open_client(context, address, key or key_file)
                asynchronous(_run_on_server)(client, function, given)
                return
            store_url = check_store_url(context, _parameter(context, "url"), url or "")
            asynchronous(_run_on_store)(
                store_url,
                function,
                given,
                make=make,
                settings={
                    **{"tenant": tenant, "limits": limits, "user_key": user_key},
                    **({"search": given.pop("search")} if "search" in given else {}),
                },
            )

        return opened

    return decorate


async def _run_on_store(
    url: str,
    function: Callable[..., Coroutine[Any, Any, None]],
    given: dict[str, Any],
    *,
    make: bool,
    settings: dict[str, Any],
) -> None:
    async with open_store(url, make=make) as store:
        holdfast = Holdfast(url, store=store, **settings)
        try:
            await function(holdfast, **given)
        finally:
            if holdfast.documents.search is not None:
                await holdfast.documents.search.close()


async def _run_on_server(
    client: Client, function: Callable[..., Coroutine[Any, Any, None]], given: dict[str, Any]
) -> None:
    async with client:
        await function(client, **given)


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(each for each in context.command.params if each.name == name)
