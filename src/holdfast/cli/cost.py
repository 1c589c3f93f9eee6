"""``holdfast cost``: what runs cost, in groups."""

from __future__ import annotations

from typing import get_args

import click

from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example, filter_options, json_option
from holdfast.cli.text import columns, pretty, say
from holdfast.errors import InvalidQuery
from holdfast.fleet.costs import grouping, merged_groups
from holdfast.model.fleet import CostGroup
from holdfast.model.run import Status
from holdfast.records.run_filter import RunFilter

__all__ = ["cost"]


def _check_grouping(context: click.Context, parameter: click.Parameter, by: str) -> str:
    try:
        grouping(by)
    except InvalidQuery as error:
        raise click.BadParameter(str(error)) from None
    return by


@click.command(
    epilog=example("holdfast cost --since 2026-11-01 --by day", "holdfast cost --by label:team")
)
@filter_options(*get_args(Status))
@click.option(
    "--by",
    default="graph",
    show_default=True,
    callback=_check_grouping,
    metavar="GROUP",
    help="graph, day (UTC), status or label:NAME.",
)
@json_option
@with_holdfast()
async def cost(holdfast: Opened, run_filter: RunFilter, *, by: str, as_json: bool) -> None:
    """Add up what the calls of runs cost: tokens and dollars, by group.

    It reads the rows of all runs that match, the newest first.
    """
    groups: list[CostGroup] = []
    damaged: list[str] = []
    cursor: str | None = None
    while True:
        page = await holdfast.fleet.cost(run_filter, by=by, cursor=cursor)
        groups = merged_groups([*groups, *page.groups])
        damaged += page.damaged
        cursor = page.cursor
        if cursor is None:
            break
    total = CostGroup(
        key="total",
        runs=sum(group.runs for group in groups),
        tokens=sum(group.tokens for group in groups),
        cost_usd=round(sum(group.cost_usd for group in groups), 9),
    )
    if as_json:
        shown = {"by": by, "groups": [group.as_dict() for group in groups]}
        click.echo(pretty({**shown, "total": total.as_dict(), "damaged": damaged}))
        return
    heading = by.removeprefix("label:").upper()
    rows = [[heading, "RUNS", "TOKENS", "USD"]]
    rows += [
        [group.key or "-", f"{group.runs:,}", f"{group.tokens:,}", f"{group.cost_usd:.6f}"]
        for group in [*groups, total]
    ]
    for line in columns(rows):
        click.echo(line)
    if damaged:
        say(f"{len(damaged)} runs cannot be read: {', '.join(damaged[:10])}", err=True)
