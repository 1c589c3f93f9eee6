"""``holdfast store``: make, describe and try out the store that holds all state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous, show_errors
from holdfast.cli.parameters import example, parse_path
from holdfast.cli.text import pretty, say
from holdfast.model.durations import days
from holdfast.records.keys import SETTINGS
from holdfast.records.settings import SHARDS, settings_of
from holdfast.storage import CopyReport, backup_store, restore_store
from holdfast.storage.layout import Key
from holdfast.storage.open import FORMS, cloudformation_template
from holdfast.storage.open import open as open_store

__all__ = ["store"]

# \b keeps click from filling the lines.
_ADDRESSES = "\b\nA store's address looks so:\n" + FORMS
_BACKUP_EXAMPLE = example("holdfast store backup sqlite:///runs.db copy.db") + "\n\n"
_RESTORE_EXAMPLE = example("holdfast store restore copy.db sqlite:///runs.db") + "\n\n"
_SHARDS_EXAMPLE = example("holdfast store shards sqlite:///runs.db --grow 16") + "\n\n"


def _missing_blobs_option(help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--missing-blobs", is_flag=True, help=help)


@click.group(epilog=_ADDRESSES)
def store() -> None:
    """Make, describe and try out the store that holds all state."""


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def create(url: str) -> None:
    """Make the bucket and the table at URL where they are missing. Cut short it can be repeated."""
    async with open_store(url) as opened:
        await opened.create()
    say(f"{url} is ready")


@store.command("definition", epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def show_definition(url: str) -> None:
    """Print a CloudFormation template of the table at URL, to be deployed by yourself."""
    click.echo(pretty(cloudformation_template(url)))


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@asynchronous
async def check(url: str) -> None:
    """Read from the store at URL, to see that it is there and lets us in."""
    async with open_store(url, make=False) as opened:
        await opened.table.get(Key("holdfast-check", "holdfast-check"))
        if opened.has_blobs:
            await opened.blobs.list("holdfast-check/", limit=1)
    say(f"{url} answers")


@store.command(epilog=_BACKUP_EXAMPLE + _ADDRESSES)
@click.argument("url")
@click.argument("file", type=parse_path)
@_missing_blobs_option("Make the copy although blobs that runs need are missing in the store.")
def backup(url: str, file: Path, *, missing_blobs: bool) -> None:
    """Copy the SQLite store at URL to FILE and FILE.blobs, while everything runs.

    The copy is checked, and is a store by itself. Nothing is overwritten. Where blobs that runs
    need are missing, no copy is made.
    """
    with show_errors():
        copied = backup_store(url, file, missing_blobs=missing_blobs)
    say(f"{file} is a copy of {url}: {_copy_text(copied, 'store')}")


@store.command(epilog=_RESTORE_EXAMPLE + _ADDRESSES)
@click.argument("file", type=parse_path)
@click.argument("url")
@_missing_blobs_option("Restore the backup although blobs that runs need are missing in it.")
def restore(file: Path, url: str, *, missing_blobs: bool) -> None:
    """Put a copy of the backup FILE in the place of the SQLite store at URL.

    Stop all workers and clients first. The store that stood there is moved aside, with its log and
    its blobs. Cut short it can be repeated. A backup that lacks blobs which runs need is refused.
    """
    with show_errors():
        copied = restore_store(file, url, missing_blobs=missing_blobs)
    say(f"{url} is a copy of {file}: {_copy_text(copied, 'backup')}")
    if copied.aside is not None:
        say(f"what stood there is {copied.aside}, its blobs {copied.aside_blobs}", err=True)


def _copy_text(copied: CopyReport, source: str) -> str:
    told = f"{copied.items} items, {copied.blobs} blobs"
    if copied.missing:
        told += f", {copied.missing} of them missing in the {source} itself"
    if copied.damaged:
        told += f", {copied.damaged} damaged items"
    return told


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@click.option(
    "--older-than-days",
    type=click.FloatRange(1),
    default=2,
    show_default=True,
    help="Leave alone what was begun since.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing, only count.")
@asynchronous
async def sweep(url: str, older_than_days: float, dry_run: bool) -> None:
    """Delete the blobs at URL that no run names: those that crashes left behind.

    Cut short it can be repeated. Run it now and then; there is no hurry.
    """
    done = "to be deleted" if dry_run else "deleted"
    async with open_store(url, make=False) as opened:
        holdfast = Holdfast(url, store=opened)
        async for progress in holdfast.sweep_blobs(
            older_than=days(older_than_days), dry_run=dry_run
        ):
            click.echo(
                f"{progress.blobs} blobs seen, {progress.deleted} {done} ({progress.freed} runs), "
                f"{progress.kept} runs kept, {progress.young} too young, "
                f"{progress.foreign} foreign blobs, "
                f"{progress.leftovers} leftovers removed"
            )


@store.command(epilog=_SHARDS_EXAMPLE + _ADDRESSES)
@click.argument("url")
@click.option("--grow", type=click.IntRange(1), metavar="N", help="Raise the count to N.")
@asynchronous
async def shards(url: str, grow: int | None) -> None:
    """Print into how many shards the due index of each graph at URL is cut, or raise that count.

    It can be raised while everything runs, and never becomes less.
    """
    async with open_store(url, make=False) as opened:
        if grow is not None:
            await Holdfast(url, store=opened).grow_shards(grow)
        item = await opened.table.get(SETTINGS)
        # Where nobody has settled it yet, it is what it will be.
        click.echo(str(SHARDS if item is None else settings_of(item).shards))
