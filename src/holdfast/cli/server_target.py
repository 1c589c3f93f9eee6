"""Options that name a server instead of a store, and the client that a command gets then.

The client is imported when a command needs it: httpx is an extra, and takes a while to import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.parameters import parse_path

if TYPE_CHECKING:
    from holdfast.client import Client

__all__ = ["chosen_server", "open_client", "server_options"]

F = TypeVar("F", bound=Callable[..., Any])

_KEY_VARIABLE = "HOLDFAST_KEY"
_KEY_CHARS_MAX = 4096
# They must be the same in all processes of a store: a server has its own.
_ONLY_FOR_A_STORE = {
    "limits": "--limits",
    "search": "--search",
    "user_key": "--user-key-file",
    "webhook_allow": "--webhook-allow",
}


def _load_key_option(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> str | None:
    if given is None:
        return None
    if given != "-":
        raise click.UsageError(
            "--key takes only -, which reads the key from standard input: other users see the "
            "arguments of a process, and the shell remembers them. Pass --key-file FILE, or set "
            f"{_KEY_VARIABLE}"
        )
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise click.UsageError("--key -: standard input is closed")
    return _checked_key(sys.stdin.read(_KEY_CHARS_MAX + 1), "standard input")


def _load_key_file_option(
    context: click.Context, parameter: click.Parameter, file: Path | None
) -> str | None:
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as opened:
            return _checked_key(opened.read(_KEY_CHARS_MAX + 1), f"the file {str(file)!r}")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"the key cannot be read: {error}") from None


def _checked_key(text: str, place: str) -> str:
    key = text.strip()
    if not key or len(text) > _KEY_CHARS_MAX or len(key.split()) > 1:
        raise click.ClickException(f"{place} has no API key: it must hold one key and nothing else")
    return key


def server_options(function: F) -> F:
    """Give a command the options that name a server and the key for it."""
    for option in (
        click.option(
            "--key-file",
            type=parse_path,
            callback=_load_key_file_option,
            metavar="FILE",
            help=f"A file with the API key for the server.  [env var: {_KEY_VARIABLE} (the key)]",
        ),
        click.option(
            "--key",
            callback=_load_key_option,
            metavar="-",
            help="Read the API key for the server from standard input.",
        ),
        click.option(
            "--server",
            envvar="HOLDFAST_SERVER",
            show_envvar=True,
            is_eager=True,
            metavar="URL",
            help="The address of a server, instead of a store.",
        ),
    ):
        function = option(function)
    return function


def chosen_server(context: click.Context) -> str | None:
    """Return the address of the server that the command acts on; None if it is a store.

    What is on the command line counts before what is in the environment.

    Raises:
        click.UsageError: both a store and a server are named, or neither.
    """
    named = {
        name: context.get_parameter_source(name)
        for name in ("url", "server")
        if context.params.get(name)
    }
    typed = [name for name, source in named.items() if source is ParameterSource.COMMANDLINE]
    if len(typed) == 2:
        raise click.UsageError("pass --url for a store or --server for a server, not both")
    if not typed and len(named) == 2:
        raise click.UsageError(
            "both HOLDFAST_URL and HOLDFAST_SERVER are set: unset one of them, or pass --url or "
            "--server"
        )
    if not named:
        raise click.UsageError(
            "Missing option '--url' (env var: 'HOLDFAST_URL') or '--server' (env var: "
            "'HOLDFAST_SERVER')."
        )
    chosen = typed[0] if typed else next(iter(named))
    return context.params[chosen] if chosen == "server" else None


def open_client(context: click.Context, address: str, key: str | None) -> Client:
    """Return a client of a server, with the key that the options or the environment name.

    Raises:
        click.UsageError: an option is given that only a store has.
        click.ClickException: httpx is not installed.
        InvalidRequest: the address is not one of a server.
    """
    for name, option in _ONLY_FOR_A_STORE.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for a store: the server has its own")
    try:
        from holdfast.client import Client
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--server needs {error.name}: install the extra 'client', as in holdfast[client]"
        ) from None
    tenant = context.params["tenant"]
    is_default = context.get_parameter_source("tenant") is ParameterSource.DEFAULT
    return Client(
        address,
        key=key or os.environ.get(_KEY_VARIABLE) or None,
        tenant=None if is_default else tenant,
    )
