"""``holdfast store``: create, describe, check, back up and sweep a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous, show_errors
from holdfast.cli.parameters import (
    DURATION,
    example,
    json_lines_option,
    json_option,
    parse_path,
)
from holdfast.cli.progress_line import ProgressLine
from holdfast.cli.text import pretty, say
from holdfast.records.keys import SETTINGS
from holdfast.records.settings import SHARDS, settings_of
from holdfast.storage import CopyReport, backup_store, restore_store
from holdfast.storage.layout import Key
from holdfast.storage.open import FORMS, cloudformation_template, terraform_definition
from holdfast.storage.open import open as open_store

__all__ = ["store"]

# \b keeps click from filling the lines.
_ADDRESSES = "\b\nAddresses of stores:\n" + FORMS
_DEFINITIONS = {"cloudformation": cloudformation_template, "terraform": terraform_definition}
_BACKUP_EXAMPLE = example("holdfast store backup sqlite:///runs.db copy.db") + "\n\n"
_RESTORE_EXAMPLE = example("holdfast store restore copy.db sqlite:///runs.db") + "\n\n"
_SHARDS_EXAMPLE = example("holdfast store shards sqlite:///runs.db --grow 16") + "\n\n"


def _missing_blobs_option(help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--missing-blobs", is_flag=True, help=help)


@click.group(epilog=_ADDRESSES)
def store() -> None:
    """Create, describe, check, back up and sweep a store."""


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@json_option
@asynchronous
async def create(url: str, as_json: bool) -> None:
    """Create the bucket and the table at URL, unless they exist. It can be repeated."""
    async with open_store(url) as opened:
        await opened.create()
    _report(f"{url} is ready", {"url": url, "ready": True}, as_json=as_json)


@store.command("definition", epilog=_ADDRESSES)
@click.argument("url")
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(_DEFINITIONS)),
    default="cloudformation",
    show_default=True,
    help="Which tool deploys it; both read JSON.",
)
@asynchronous
async def show_definition(url: str, form: str) -> None:
    """Print the definition of the table at URL, to deploy it yourself."""
    click.echo(pretty(_DEFINITIONS[form](url)))


@store.command(epilog=_ADDRESSES)
@click.argument("url")
@json_option
@asynchronous
async def check(url: str, as_json: bool) -> None:
    """Check that the store at URL exists and can be read."""
    async with open_store(url, make=False) as opened:
        await opened.table.get(Key("holdfast-check", "holdfast-check"))
        if opened.has_blobs:
            await opened.blobs.list("holdfast-check/", limit=1)
    _report(f"{url} answers", {"url": url, "answers": True}, as_json=as_json)


@store.command(epilog=_BACKUP_EXAMPLE + _ADDRESSES)
@click.argument("url")
@click.argument("file", type=parse_path)
@_missing_blobs_option("Make the copy even if the store lacks blobs that runs need.")
@json_option
def backup(url: str, file: Path, *, missing_blobs: bool, as_json: bool) -> None:
    """Copy the SQLite store at URL to FILE and FILE.blobs. Workers may run meanwhile.

    The command checks the copy, which is a complete store. It overwrites nothing. It makes no copy
    if the store lacks blobs that runs need.
    """
    with show_errors():
        copied = backup_store(url, file, missing_blobs=missing_blobs)
    told = f"{file} is a copy of {url}: {_copy_text(copied, 'store')}"
    _report(told, msgspec.structs.asdict(copied), as_json=as_json)


@store.command(epilog=_RESTORE_EXAMPLE + _ADDRESSES)
@click.argument("file", type=parse_path)
@click.argument("url")
@_missing_blobs_option("Restore the backup even if it lacks blobs that runs need.")
@json_option
def restore(file: Path, url: str, *, missing_blobs: bool, as_json: bool) -> None:
    """Replace the SQLite store at URL with a copy of the backup FILE.

    Stop all workers and clients first. The command moves the old store aside, with its log and its
    blobs. It can be repeated after an interruption. It refuses a backup that lacks blobs that runs
    need.
    """
    with show_errors():
        copied = restore_store(file, url, missing_blobs=missing_blobs)
    told = f"{url} is a copy of {file}: {_copy_text(copied, 'backup')}"
    _report(told, msgspec.structs.asdict(copied), as_json=as_json)
    if copied.aside is not None:
        say(f"the old store is {copied.aside}, its blobs are {copied.aside_blobs}", err=True)


def _report(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a command did, for people or for programs."""
    if as_json:
        click.echo(pretty(facts))
    else:
        say(text)


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
    "--older-than",
    type=DURATION,
    default="2d",
    show_default=True,
    help="Keep all blobs of runs that are younger.",
)
@click.option("--dry-run", is_flag=True, help="Only count the blobs; delete nothing.")
@json_lines_option
@asynchronous
async def sweep(url: str, older_than: str, dry_run: bool, as_json: bool) -> None:
    """Delete the orphaned blobs at URL: crashes left them behind, and no run uses them.

    It can be repeated after an interruption. Run it now and then; it is never urgent.
    """
    done = "to be deleted" if dry_run else "deleted"
    async with open_store(url, make=False) as opened:
        holdfast = Holdfast(url, store=opened)
        with ProgressLine(as_json=as_json) as line:
            async for progress in holdfast.sweep_blobs(older_than=older_than, dry_run=dry_run):
                text = (
                    f"{progress.blobs} blobs seen, {progress.deleted} {done} "
                    f"({progress.freed} runs), {progress.kept} runs kept, "
                    f"{progress.young} too young, {progress.foreign} foreign blobs, "
                    f"{progress.leftovers} leftovers removed"
                )
                line.show(text, progress.as_dict())


@store.command(epilog=_SHARDS_EXAMPLE + _ADDRESSES)
@click.argument("url")
@click.option("--grow", type=click.IntRange(1), metavar="N", help="Raise the number to N.")
@json_option
@asynchronous
async def shards(url: str, grow: int | None, as_json: bool) -> None:
    """Print the number of shards of the due index of each graph at URL, or raise it.

    It can be raised while workers run. It cannot be lowered.
    """
    async with open_store(url, make=False) as opened:
        if grow is not None:
            await Holdfast(url, store=opened).grow_shards(grow)
        item = await opened.table.get(SETTINGS)
        # A store without settings gets the default at its first use.
        number = SHARDS if item is None else settings_of(item).shards
        _report(str(number), {"shards": number}, as_json=as_json)
