"""Options, confirmation and progress of ``holdfast run cancel --all`` and ``retry --all``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Any

import click

from holdfast.cli.parameters import filter_options, json_lines_option
from holdfast.cli.progress_line import ProgressLine
from holdfast.cli.text import say, utc_of_ms
from holdfast.display import printable
from holdfast.errors import HoldfastError
from holdfast.model.progress import BulkProgress
from holdfast.records.run_filter import RunFilter

__all__ = ["bulk_options", "run_bulk"]

_ONLY_WITH_ALL = ("limit", "cursor", "everything", "dry_run", "yes")


def bulk_options(
    *statuses: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that let it act on all runs of a filter."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def checked(*, id: str | None, every: bool, **given: Any) -> None:
            _check_options(id, given, every=every)  # before the store is opened
            function(id=id, every=every, **given)

        command: Callable[..., None] = wraps(function)(checked)
        for option in (
            json_lines_option,
            click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option("--dry-run", is_flag=True, help="Only count the runs."),
            click.option(
                "--everything",
                is_flag=True,
                help="Act on all runs of the tenant, without a filter.",
            ),
            click.option("--cursor", help="Continue where an earlier command ended."),
            click.option("--limit", type=click.IntRange(1), help="Act on at most this many runs."),
            filter_options(*statuses),
            click.option(
                "--all", "every", is_flag=True, help="Act on all runs that match the filter."
            ),
        ):
            command = option(command)
        return command

    return decorate


def _check_options(id: str | None, given: dict[str, Any], *, every: bool) -> None:
    if every and id is not None:
        raise click.UsageError("give the ID of one run, or --all and a filter, but not both")
    if every and not given["everything"] and given["run_filter"].is_empty:
        raise click.UsageError(
            "--all needs a filter. Pass --everything to act on all runs of the tenant."
        )
    if not every and id is None:
        raise click.UsageError("give the ID of a run, or --all and a filter")
    if not every and (
        not given["run_filter"].is_empty or any(given[name] for name in _ONLY_WITH_ALL)
    ):
        raise click.UsageError("a filter needs --all")
    if every and given.get("from_node") is not None:
        raise click.UsageError("--from-node is for one run")


async def run_bulk(
    verb: str,
    done: str,
    act: Callable[..., AsyncGenerator[BulkProgress, None]],
    given: dict[str, Any],
) -> None:
    """Act on all runs of a filter, and print a line for each page.

    Raises:
        click.Abort: the user did not confirm.
        click.ClickException: some runs failed.
    """
    yes, dry_run, as_json = given.pop("yes"), given["dry_run"], given.pop("as_json")
    if not yes and not dry_run:
        click.confirm(
            printable(f"{verb} all runs {_filter_text(given['run_filter'])}?"), abort=True, err=True
        )
    progress = BulkProgress(cursor=given["cursor"])
    try:
        with ProgressLine(as_json=as_json) as line:
            async for progress in act(**given):
                line.show(_progress_line(progress, done, dry_run=dry_run), progress.as_dict())
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


def _filter_text(run_filter: RunFilter) -> str:
    """Return a filter in words."""
    statuses = " or ".join(sorted(run_filter.statuses or ()))
    parts = [f"status {statuses}"] if statuses else []
    labels = run_filter.labels or {}
    conditions: list[tuple[str, object, str]] = [
        ("paused for", run_filter.reason, f"{run_filter.reason}"),
        ("graph", run_filter.graph, f"{run_filter.graph}"),
        *(("label", value, f"{name}={value}") for name, value in labels.items()),
        ("since", run_filter.since, utc_of_ms(run_filter.since_ms)),
        ("until", run_filter.until, utc_of_ms(run_filter.until_ms)),
        ("node", run_filter.node, f"{run_filter.node}"),
        ("updated since", run_filter.updated_since, utc_of_ms(run_filter.updated_since_ms)),
        ("updated until", run_filter.updated_until, utc_of_ms(run_filter.updated_until_ms)),
        ("a cost of at least", run_filter.cost_usd_min, f"${run_filter.cost_usd_min or 0:g}"),
        ("a cost of at most", run_filter.cost_usd_max, f"${run_filter.cost_usd_max or 0:g}"),
    ]
    parts += [f"{words} {text}" for words, given, text in conditions if given is not None]
    return f"with {', '.join(parts)}" if parts else "of the tenant"
