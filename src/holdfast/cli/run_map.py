"""``holdfast run map``: how far the maps of a run are, their items, and retries of single items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from holdfast.cli.opening import Opened, OpenedRun, with_holdfast
from holdfast.cli.parameters import example, json_option
from holdfast.cli.text import columns, compact, pretty, say
from holdfast.model.map import MappedItem, MapProgress

__all__ = ["show_map"]


@click.command(
    "map",
    epilog=example(
        "holdfast run map doc-42",
        "holdfast run map doc-42 0.1 --failed",
        "holdfast run map doc-42 0.1 --retry 17",
    ),
)
@click.argument("id", metavar="RUN")
@click.argument("map", required=False)
@click.option("--items", "with_items", is_flag=True, help="List the items that have ended.")
@click.option("--failed", is_flag=True, help="List the items that failed, and why.")
@click.option("--after", type=click.IntRange(0), help="Only items after this index.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
@click.option("--retry", "retried", type=click.IntRange(0), help="Run this item again, alone.")
@json_option
@with_holdfast()
async def show_map(
    holdfast: Opened,
    *,
    id: str,
    map: str | None,
    with_items: bool,
    failed: bool,
    after: int | None,
    limit: int,
    retried: int | None,
    as_json: bool,
) -> None:
    """Show how far the maps of RUN are, or the MAP of that id, or its items.

    A MAP may be left out if the run has one map only.
    """
    handle = holdfast.run(id)
    lists = with_items or failed
    if lists and retried is not None:
        raise click.UsageError("--retry acts, and --items and --failed list: pass one of them")
    if after is not None and not lists:
        raise click.UsageError("--after is for lists: pass --items or --failed")
    acts = lists or retried is not None
    if acts and map is None:
        map = await _only_map(handle)
    if retried is not None and map is not None:
        run = await handle.map(map).retry(retried)
        facts = {"run": run, "map": map, "index": retried}
        click.echo(pretty(facts) if as_json else f"item {retried} runs again, as run {run}")
    elif acts and map is not None:
        chosen = handle.map(map)
        read = chosen.failed if failed else chosen.items
        start = -1 if after is None else after
        _show_items([entry async for entry in read(after=start, limit=limit)], limit, as_json)
    else:
        found = await handle.maps() if map is None else [await handle.map(map).progress()]
        _show_maps(found, as_json)


async def _only_map(handle: OpenedRun) -> str:
    found = [each.map for each in await handle.maps()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.ClickException(f"run {handle.id} has no maps")
    raise click.UsageError(f"run {handle.id} has several maps; name one: {', '.join(found)}")


def _show_maps(found: Iterable[MapProgress], as_json: bool) -> None:
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    rows = [
        (
            each.map,
            each.node,
            each.item,
            each.status,
            f"{each.succeeded:,} of {each.total:,}",
            f"{each.failed:,} failed ({each.tolerated:,} may)",
            f"{each.running:,} in running chunks",
        )
        for each in found
    ]
    for line in columns(rows):
        click.echo(line)
    if not rows:
        click.echo("no maps", err=True)


def _show_items(entries: list[MappedItem], limit: int, as_json: bool) -> None:
    if as_json:
        click.echo(pretty([entry.as_dict() for entry in entries]))
        return
    for line in columns([(str(entry.index), *_told(entry)) for entry in entries]):
        click.echo(line)
    if not entries:
        click.echo("no items", err=True)
    if len(entries) == limit:
        say(f"there may be more: --after {entries[-1].index}", err=True)


def _told(entry: MappedItem) -> tuple[str, ...]:
    if entry.failure is not None:
        return "failed", f"{entry.failure.type}: {entry.failure.message}"
    result: Any = entry.result
    return "ok", compact(result)
