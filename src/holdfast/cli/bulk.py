"""What ``holdfast run cancel --all`` and ``retry --all`` share: options, a question, progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any

import click

from holdfast.cli.parameters import filter_options
from holdfast.cli.text import say, utc
from holdfast.display import printable
from holdfast.errors import HoldfastError
from holdfast.model.progress import BulkProgress

__all__ = ["bulk_options", "run_bulk"]

_FILTERS = ("status", "graph", "labels", "since", "until")
_ONLY_WITH_ALL = (*_FILTERS, "limit", "cursor", "everything", "dry_run", "yes")


def bulk_options(
    *statuses: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options by which it acts on all runs of a filter."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def checked(*, id: str | None, every: bool, **given: Any) -> None:
            _check_options(id, given, every=every)  # before the store is opened
            function(id=id, every=every, **given)

        for option in (
            click.option("--yes", is_flag=True, help="Do not ask first."),
            click.option("--dry-run", is_flag=True, help="Only count the runs."),
            click.option("--everything", is_flag=True, help="All runs of the tenant: no filter."),
            click.option("--cursor", help="Go on where another time ended."),
            click.option("--limit", type=click.IntRange(1), help="At most so many runs."),
            filter_options(*statuses),
            click.option("--all", "every", is_flag=True, help="Not one run, but all of a filter."),
        ):
            checked = option(checked)
        return checked

    return decorate


def _check_options(id: str | None, given: dict[str, Any], *, every: bool) -> None:
    if every and id is not None:
        raise click.UsageError("give the ID of one run, or --all and a filter, but not both")
    if every and not given["everything"] and not any(given[name] for name in _FILTERS):
        raise click.UsageError("--all needs a filter; --everything means all runs of the tenant")
    if not every and id is None:
        raise click.UsageError("give the ID of a run, or --all and a filter")
    if not every and any(given[name] for name in _ONLY_WITH_ALL):
        raise click.UsageError("a filter needs --all")
    if every and given.get("from_node") is not None:
        raise click.UsageError("--from-node is for one run")


async def run_bulk(
    verb: str,
    done: str,
    act: Callable[..., AsyncGenerator[BulkProgress, None]],
    given: dict[str, Any],
) -> None:
    """Act on all runs of a filter, and show a line for each page.

    Raises:
        Abort: whoever was asked said no.
        ClickException: some of them failed.
    """
    yes, dry_run = given.pop("yes"), given["dry_run"]
    if not yes and not dry_run:
        click.confirm(printable(f"{verb} all runs {_filter_text(given)}?"), abort=True, err=True)
    progress = BulkProgress(cursor=given["cursor"])
    try:
        async for progress in act(**given):
            click.echo(_progress_line(progress, done, dry_run=dry_run))
    except (HoldfastError, asyncio.CancelledError):
        _show_cursor(progress)
        raise
    _show_cursor(progress)
    for error in progress.errors:
        say(error, err=True)
    if progress.failed:
        raise click.ClickException(f"{progress.failed} of them failed")


def _progress_line(progress: BulkProgress, done: str, *, dry_run: bool) -> str:
    if dry_run:
        return f"{progress.seen} would be {done}"
    return (
        f"{progress.seen} seen, {progress.done} {done}, {progress.refused} refused, "
        f"{progress.failed} failed"
    )


def _show_cursor(progress: BulkProgress) -> None:
    if progress.cursor is not None:
        say(f"there may be more: --cursor '{progress.cursor}'", err=True)


def _filter_text(given: dict[str, Any]) -> str:
    """Return a filter in words."""
    parts = [f"{name} {given[name]}" for name in ("status", "graph") if given[name] is not None]
    parts += [f"label {name}={value}" for name, value in given["labels"].items()]
    parts += [f"{name} {utc(given[name])}" for name in ("since", "until") if given[name]]
    return f"with {', '.join(parts)}" if parts else "of the tenant"
