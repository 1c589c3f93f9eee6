"""``holdfast run ambiguous``, ``resolve`` and ``budget``: what runs do to the world, and spend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.facts import budget_needs, dollars, money_facts
from holdfast.cli.opening import with_holdfast
from holdfast.cli.parameters import budget_options, example, json_option, parse_json
from holdfast.cli.text import columns, pretty, say, utc
from holdfast.model.budget import Budget
from holdfast.model.run import AmbiguousCall, Run
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, Spending

__all__ = ["ambiguous", "budget", "resolve"]

_MISSING = object()
_WAYS = "say what became of it in one way: --result, --error or --void"


@click.command(epilog=example("holdfast run ambiguous"))
@json_option
@with_holdfast()
async def ambiguous(holdfast: Holdfast, *, as_json: bool) -> None:
    """List the calls that may have been made, the oldest first; 'resolve' says what became of one.

    KEY is the idempotency key with which the call was made: ask the service for it.
    """
    calls = [call async for call in holdfast.ambiguous()]
    if as_json:
        click.echo(pretty(calls))
        return
    for line in columns(_call_rows(calls)):
        click.echo(line)
    if not calls:
        click.echo("no calls", err=True)


def _call_rows(calls: Sequence[AmbiguousCall]) -> list[tuple[str, ...]]:
    rows = [("SINCE", "GRAPH", "NODE", "TOOL", "KEY", "RUN", "CALL")] if calls else []
    for call in calls:
        row = (utc(call.since), call.graph, call.node, call.name, call.key, call.run, call.call)
        rows.append(row)
    return rows


def _result(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """Tell a result that is null from one that was not given."""
    return _MISSING if given is None else parse_json(given)


@click.command(
    epilog=example(
        """holdfast run resolve doc-42 5f0c1e7a9b3d2468 --result '{"receipt": 7}'""",
        "holdfast run resolve doc-42 5f0c1e7a9b3d2468 --void",
    )
)
@click.argument("run")
@click.argument("call")
@click.option(
    "--result",
    callback=_result,
    metavar="JSON",
    help="It was carried out, and returned this (- reads it from standard input).",
)
@click.option("--error", metavar="TEXT", help="It failed for good: the node is told so.")
@click.option(
    "--void", is_flag=True, help="Nothing happened, nor will under its key: it is made again."
)
@with_holdfast()
async def resolve(
    holdfast: Holdfast, *, run: str, call: str, result: Any, error: str | None, void: bool
) -> None:
    """Say what became of a CALL of the RUN that may have been made; the run goes on then."""
    if (result is not _MISSING) + (error is not None) + void != 1:
        raise click.UsageError(_WAYS)
    told = {} if result is _MISSING else {"result": result}
    await holdfast.resolve(run, call, error=error, void=void, **told)
    say(f"run {run} knows what became of call {call}")


@click.command(
    epilog=example("holdfast run budget doc-42", "holdfast run budget doc-42 --usd 5 --wall 2h")
)
@click.argument("id")
@budget_options
@json_option
@with_holdfast()
async def budget(
    holdfast: Holdfast,
    *,
    id: str,
    usd: float | None,
    tokens: int | None,
    wall: timedelta | None,
    as_json: bool,
) -> None:
    """Show what the run ID may spend in all, and has spent; with a limit, give it that one.

    Limits that are not named stay as they are. If the run waits for a larger budget, it goes on.
    """
    row = await holdfast.get(id)
    if (usd, tokens, wall) != (None, None, None):
        await holdfast.set_budget(id, _changed(row, usd, tokens, wall))
        row = await holdfast.get(id)
    together = await holdfast.spending(id)
    if as_json:
        click.echo(pretty(_spending(row, together)))
        return
    facts = [*money_facts(row), ("used", f"{row.spent_seconds:g} seconds inside nodes")]
    if row.budget is None and row.budget_of is None:
        facts = [("budget", "none"), *facts]
    if (together.usd, together.tokens) != (row.cost_usd, row.tokens):
        told = f"{dollars(together.usd)}, {together.tokens:,} tokens: with the runs that it started"
        facts.append(("together", told))
    for line in columns([*facts, *(("lacks", f"it {needs}") for needs in budget_needs(row))]):
        click.echo(line)


def _changed(row: Run, usd: float | None, tokens: int | None, wall: timedelta | None) -> Budget:
    """Return a run's budget with other limits in the place of those that are named."""
    before = row.budget
    if before is not None:
        if usd is None and before.nanodollars is not None:
            usd = before.nanodollars / NANODOLLARS_PER_DOLLAR
        tokens = before.tokens if tokens is None else tokens
        if wall is None and before.wall_ms is not None:
            wall = timedelta(milliseconds=before.wall_ms)
    return Budget(usd=usd, tokens=tokens, wall=wall)


def _spending(row: Run, together: Spending) -> dict[str, Any]:
    return {
        "id": row.id,
        "budget": row.budget,
        "budget_of": row.budget_of,
        "cost_usd": row.cost_usd,
        "tokens": row.tokens,
        "spent_seconds": row.spent_seconds,
        "together": {"cost_usd": together.usd, "tokens": together.tokens},
        "lacks": budget_needs(row),
    }
