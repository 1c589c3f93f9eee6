"""``holdfast run ambiguous``, ``resolve`` and ``budget``: ambiguous calls, and spending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from holdfast.cli.facts import budget_needs, cut_to_line, money_facts, node_time_text, usd_text
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import budget_options, example, json_option, parse_json
from holdfast.cli.text import columns, compact, pretty, say
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.moments import utc_text
from holdfast.model.run import AmbiguousCall, Run
from holdfast.model.spending import Spending

__all__ = ["ambiguous", "budget", "resolve"]

_MISSING = object()
# The columns that a narrow terminal loses first; keys and ids stay whole.
_CALL_CUT = (7, 0, 2, 3, 1)
_WAYS = "pass exactly one of --result, --error and --void"


@click.command(epilog=example("holdfast run ambiguous"))
@json_option
@with_holdfast()
async def ambiguous(holdfast: Opened, *, as_json: bool) -> None:
    """List the at-most-once calls that may have been made, the oldest first.

    KEY is the idempotency key with which the call was made: ask the service whether it knows it.
    ARGUMENTS are empty if they are long; 'holdfast run history RUN' shows them with the intent.
    Then record what happened with 'holdfast run resolve'.
    """
    calls = [call async for call in holdfast.ambiguous()]
    if as_json:
        click.echo(pretty([call.as_dict() for call in calls]))
        return
    for line in columns(_call_rows(calls), cut=_CALL_CUT):
        click.echo(line)
    if not calls:
        click.echo("no calls", err=True)


def _call_rows(calls: Sequence[AmbiguousCall]) -> list[tuple[str, ...]]:
    rows = [("SINCE", "GRAPH", "NODE", "TOOL", "KEY", "RUN", "CALL", "ARGUMENTS")] if calls else []
    for call in calls:
        shown = "" if call.arguments is None else cut_to_line(compact(call.arguments))
        row = (
            utc_text(call.since),
            call.graph,
            call.node,
            call.name,
            call.key,
            call.run,
            call.call,
        )
        rows.append((*row, shown))
    return rows


def _result(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """Return the result, or a marker where the option is not given: a result may be null."""
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
    help="The call was carried out and returned this (- reads standard input).",
)
@click.option(
    "--error",
    metavar="TEXT",
    help="The call failed; the node gets this error.",
)
@click.option(
    "--void",
    is_flag=True,
    help="The call was not carried out, and never will be with this key: the run repeats it.",
)
@json_option
@with_holdfast()
async def resolve(
    holdfast: Opened,
    *,
    run: str,
    call: str,
    result: Any,
    error: str | None,
    void: bool,
    as_json: bool,
) -> None:
    """Record the outcome of an ambiguous CALL of the RUN; then the run continues."""
    if (result is not _MISSING) + (error is not None) + void != 1:
        raise click.UsageError(_WAYS)
    told = {} if result is _MISSING else {"result": result}
    await holdfast.run(run).resolve(call, error=error, void=void, **told)
    if as_json:
        click.echo(pretty({"run": run, "call": call, "resolved": True}))
    else:
        say(f"resolved call {call} of run {run}")


@click.command(
    epilog=example("holdfast run budget doc-42", "holdfast run budget doc-42 --usd 5 --wall 2h")
)
@click.argument("id")
@budget_options
@json_option
@with_holdfast()
async def budget(
    holdfast: Opened,
    *,
    id: str,
    usd: float | None,
    tokens: int | None,
    node_time: str | None,
    wall: str | None,
    estimate: bool | None,
    as_json: bool,
) -> None:
    """Show the budget of the run ID and what it has spent; with a limit, change the budget.

    Options that are not given stay as they are. A run that waits for a larger budget continues.
    """
    handle = holdfast.run(id)
    row = await handle.get()
    named = {"usd": usd, "tokens": tokens, "node_time": node_time, "wall": wall}
    if (*named.values(), estimate) != (None,) * 5:
        await handle.set_budget(_changed(row, named, estimate))
        row = await handle.get()
    together = await handle.spending()
    if as_json:
        click.echo(pretty(_spending(row, together)))
        return
    facts = [*money_facts(row), ("used", node_time_text(row))]
    if row.budget is None and row.budget_of is None:
        facts = [("budget", "none"), *facts]
    if (together.usd, together.tokens) != (row.cost_usd, row.tokens):
        told = (
            f"{usd_text(together.usd)}, {together.tokens:,} tokens: with the runs that it started"
        )
        facts.append(("together", told))
    for line in columns([*facts, *(("lacks", f"it {needs}") for needs in budget_needs(row))]):
        click.echo(line)


def _changed(row: Run, named: Mapping[str, Any], estimate: bool | None) -> BudgetLimits:
    """Return a run's budget with the given limits changed."""
    changed = BudgetLimits() if row.budget is None else row.budget
    if any(limit is not None for limit in named.values()):
        given = msgspec.structs.asdict(Budget(**named).limits)
        del given["estimate"]
        limits = {name: limit for name, limit in given.items() if limit is not None}
        changed = msgspec.structs.replace(changed, **limits)
    return changed if estimate is None else msgspec.structs.replace(changed, estimate=estimate)


def _spending(row: Run, together: Spending) -> dict[str, Any]:
    return {
        "id": row.id,
        "budget": None if row.budget is None else row.budget.as_dict(),
        "budget_of": row.budget_of,
        "cost_usd": row.cost_usd,
        "tokens": row.tokens,
        "spent_seconds": row.spent_seconds,
        "together": {"cost_usd": together.usd, "tokens": together.tokens},
        "lacks": budget_needs(row),
    }
