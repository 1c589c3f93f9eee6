"""The commands, and how their errors are shown: one line on standard error, and exit code 2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import click

from holdfast.errors import HoldfastError
from holdfast.storage.layout import Key
from holdfast.storage.open import FORMS, definition
from holdfast.storage.open import open as open_store

__all__ = ["main"]

EXIT_REFUSED = 2
Arguments = ParamSpec("Arguments")

# \b keeps click from filling the lines.
_ADDRESSES = "\b\nA store's address looks so:\n" + FORMS


class _Refused(click.ClickException):
    exit_code = EXIT_REFUSED


def _command(
    function: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run a coroutine as a command; show its errors without a traceback."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            asyncio.run(function(*args, **kwargs))
        except HoldfastError as error:
            raise _Refused(f"{error} [{error.code}]") from error

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Agent workflows that can stop at any moment and go on at the exact node."""


@main.group(epilog=_ADDRESSES)
def store() -> None:
    """Make, describe and try out the store that holds all state."""


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@_command
async def create(url: str) -> None:
    """Make the table and the bucket at URL where they are missing."""
    async with open_store(url) as opened:
        await opened.create()
    click.echo(f"{url} is ready")


@store.command("definition", epilog=_ADDRESSES)
@click.argument("url")
@_command
async def show_definition(url: str) -> None:
    """Print a CloudFormation template of the table at URL, to be deployed by yourself."""
    click.echo(json.dumps(definition(url), indent=2))


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@_command
async def check(url: str) -> None:
    """Read from the store at URL, to see that it is there and lets us in."""
    async with open_store(url, make=False) as opened:
        await opened.table.get(Key("holdfast-check", "holdfast-check"))
        if opened.has_blobs:
            await opened.blobs.list("holdfast-check/", limit=1)
    click.echo(f"{url} answers")
