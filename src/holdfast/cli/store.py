"""``holdfast store``: make, describe and try out the store that holds all state."""

from __future__ import annotations

import json

import click

from holdfast.cli.failures import asynchronous
from holdfast.storage.layout import Key
from holdfast.storage.open import FORMS, definition
from holdfast.storage.open import open as open_store

__all__ = ["store"]

# \b keeps click from filling the lines.
_ADDRESSES = "\b\nA store's address looks so:\n" + FORMS


@click.group(epilog=_ADDRESSES)
def store() -> None:
    """Make, describe and try out the store that holds all state."""


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def create(url: str) -> None:
    """Make the table and the bucket at URL where they are missing."""
    async with open_store(url) as opened:
        await opened.create()
    click.echo(f"{url} is ready")


@store.command("definition", epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def show_definition(url: str) -> None:
    """Print a CloudFormation template of the table at URL, to be deployed by yourself."""
    click.echo(json.dumps(definition(url), indent=2))


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def check(url: str) -> None:
    """Read from the store at URL, to see that it is there and lets us in."""
    async with open_store(url, make=False) as opened:
        await opened.table.get(Key("holdfast-check", "holdfast-check"))
        if opened.has_blobs:
            await opened.blobs.list("holdfast-check/", limit=1)
    click.echo(f"{url} answers")
