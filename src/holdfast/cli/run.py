"""``holdfast run``: start runs, watch them, and act on them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Any, get_args

import click

from holdfast.cli.bulk import bulk_options, run_bulk
from holdfast.cli.effects import ambiguous, budget, resolve
from holdfast.cli.failures import show_errors
from holdfast.cli.opening import Opened, OpenedRun, with_holdfast
from holdfast.cli.parameters import (
    DURATION,
    budget_options,
    example,
    json_option,
    labels_option,
    parse_json,
    parse_time,
)
from holdfast.cli.run_map import show_map
from holdfast.cli.run_reading import READING
from holdfast.cli.server_target import chosen_server
from holdfast.cli.targets import FORMS, load_graph
from holdfast.cli.text import pretty, say
from holdfast.clock import SystemClock
from holdfast.model.budget import Budget
from holdfast.model.moments import utc_text
from holdfast.model.program import Program
from holdfast.model.run import OnBusy
from holdfast.model.standing import standing

__all__ = ["run"]

# After this long, a caller who waits for a result is told what the run waits for.
_SILENT_SECONDS = 5.0


@click.group()
def run() -> None:
    """Start runs, watch them, and act on them."""


for _command in (*READING, show_map, ambiguous, budget, resolve):
    run.add_command(_command)


def _load_graph_argument(
    context: click.Context, parameter: click.Parameter, target: str
) -> Program | str:
    """Import the graph before the store is opened, and outside of any event loop.

    A server knows the graph by its name.
    """
    if chosen_server(context) is not None:
        return target
    with show_errors():
        return load_graph(target)


@run.command(
    epilog=example(
        """holdfast run start shop.flows:warranty '{"uri": "scan.pdf"}' --id doc-42 --wait"""
    )
    + f"\n\n\b\nTargets look like this:\n{FORMS}"
)
@click.argument("graph", metavar="TARGET", callback=_load_graph_argument)
@click.argument("input", type=parse_json, required=False)
@click.option(
    "--id", help="Idempotency key: a second start with the same id and input starts nothing."
)
@labels_option
@click.option("--pool", help="Only workers of this pool take the run; stored as the label 'pool'.")
@click.option("--user", help="The user that the run is for; only a hash is stored.")
@click.option("--session", help="Queue behind the user's earlier runs of this session.")
@click.option(
    "--on-busy",
    type=click.Choice(get_args(OnBusy)),
    help="What the start does while another run of the session is open.  [default: queue]",
)
@click.option(
    "--start-at", type=parse_time, metavar="TIME", help="Do not run before this time (UTC)."
)
@click.option(
    "--expires",
    type=DURATION,
    help="The run expires this long after its start.  [default: as the graph says, or 7d]",
)
@budget_options
@click.option("--wait", is_flag=True, help="Wait for the result; a worker must serve the graph.")
@click.option(
    "--timeout",
    type=DURATION,
    help="Wait at most this long (with or without --wait); then the exit code is 1.",
)
@json_option
@with_holdfast(make=True)
async def start(
    holdfast: Opened,
    *,
    graph: Any,
    input: Any,
    id: str | None,
    labels: dict[str, str],
    pool: str | None,
    user: str | None,
    session: str | None,
    on_busy: OnBusy | None,
    start_at: datetime | None,
    expires: str | None,
    usd: float | None,
    tokens: int | None,
    node_time: str | None,
    wall: str | None,
    estimate: bool | None,
    wait: bool,
    timeout: str | None,  # noqa: ASYNC109
    as_json: bool,
) -> None:
    """Start a run of the graph TARGET with an INPUT as JSON (- reads it from standard input).

    With --server, TARGET is the name of a graph of the server.

    Prints the run's id, and with --wait the result.
    """
    wait = wait or timeout is not None
    limits: dict[str, Any] = {"usd": usd, "tokens": tokens, "node_time": node_time, "wall": wall}
    limited = (*limits.values(), estimate) != (None,) * 5
    handle = await holdfast.start(
        graph,
        input,
        id=id,
        labels=labels,
        pool=pool,
        user=user,
        session=session,
        on_busy=on_busy,
        start_at=start_at,
        expires=expires,
        budget=Budget(**limits, estimate=bool(estimate)) if limited else None,
    )
    if wait or not as_json:
        say(handle.id, err=wait)
    # A handle without the graph returns the state in its stored form, which is JSON's.
    result = await _wait_for_result(holdfast.run(handle.id), timeout) if wait else None
    if as_json:
        click.echo(pretty({"id": handle.id, **({"result": result} if wait else {})}))
    elif wait:
        click.echo(pretty(result))


async def _wait_for_result(handle: OpenedRun, limit: str | None) -> Any:
    """Return the result of a run; if it takes long, say once what the run waits for.

    Raises:
        click.ClickException: the run did not end in that time.
    """
    ending = asyncio.ensure_future(handle.result(timeout=limit))
    try:
        await asyncio.wait({ending}, timeout=_SILENT_SECONDS)
        if not ending.done():
            row = await handle.get()
            if row.status in ("ready", "waiting"):
                told = standing(row, now_ms=SystemClock().now_ms())
                say(f"run {handle.id} has not ended: {told}", err=True)
        return await ending
    except TimeoutError as late:
        raise click.ClickException(str(late)) from None
    finally:
        ending.cancel()


@run.command(epilog=example("""holdfast run signal doc-42 decision '{"approved": true}'"""))
@click.argument("id")
@click.argument("name")
@click.argument("payload", type=parse_json, required=False)
@click.option("--signal-id", help="Idempotency key: the run takes signals of the same id once.")
@json_option
@with_holdfast()
async def signal(
    holdfast: Opened, *, id: str, name: str, payload: Any, signal_id: str | None, as_json: bool
) -> None:
    """Send the run ID the signal NAME, with a PAYLOAD as JSON (- reads it from standard input).

    Without a PAYLOAD the run gets null.
    """
    receipt = await holdfast.run(id).signal(name, payload, signal_id=signal_id)
    if as_json:
        click.echo(pretty(receipt.as_dict()))
        return
    if receipt.repeated:
        say(f"run {id} had signal {name} with this id already")
        if receipt.waits_again:
            say("the run took it before, and waits again: pass another --signal-id", err=True)
        return
    say(f"sent signal {name} to run {id}")
    if not receipt.answers_wait:
        waits = ", ".join(receipt.waits_for)
        hint = f"; it waits for: {waits}" if waits else ""
        say(f"it is stored until the run waits for it{hint}", err=True)


@run.command(
    epilog=example(
        "holdfast run cancel doc-42 --reason 'ordered twice'",
        "holdfast run cancel --all --graph warranty --status waiting",
    )
)
@click.argument("id", required=False)
@click.option("--reason", default="", help="Why; shown in the run's history.")
@bulk_options("ready", "running", "waiting", "closing")
@with_holdfast()
async def cancel(
    holdfast: Opened, *, id: str | None, every: bool, reason: str, **given: Any
) -> None:
    """End the run ID, or with --all every run that matches a filter.

    A node that runs in another process ends at its next write. A run that ends before
    the command reaches it counts as refused. The exit code is 1 if a run could not be cancelled.
    """
    if every:
        await run_bulk("Cancel", "cancelled", partial(holdfast.cancel_all, reason=reason), given)
    elif id is not None:
        await holdfast.run(id).cancel(reason)
        _report(f"run {id} is cancelled", {"id": id, "cancelled": True}, **given)


@run.command(epilog=example("holdfast run extend doc-42 3d"))
@click.argument("id")
@click.argument("expires", type=DURATION, metavar="DURATION")
@json_option
@with_holdfast()
async def extend(holdfast: Opened, *, id: str, expires: str, as_json: bool) -> None:
    """Let the run ID expire DURATION from now (90s, 1h30m, 3d). An expiry only moves later."""
    handle = holdfast.run(id)
    await handle.extend(expires)
    expiry = utc_text((await handle.get()).expires_at)
    facts = {"id": id, "expires_at": expiry}
    _report(f"run {id} expires at {expiry}", facts, as_json=as_json)


@run.command(
    epilog=example(
        "holdfast run retry doc-42 --from-node classify",
        "holdfast run retry --all --graph warranty --since 2026-11-01",
    )
)
@click.argument("id", required=False)
@click.option(
    "--from-node",
    metavar="NODE",
    help="Continue at this node, not where the run stopped.",
)
@click.option(
    "--keep-answers",
    is_flag=True,
    help="Waits keep the signals that answered them; otherwise they ask again.",
)
@bulk_options("failed", "quarantined")
@with_holdfast()
async def retry(
    holdfast: Opened,
    *,
    id: str | None,
    every: bool,
    from_node: str | None,
    keep_answers: bool,
    **given: Any,
) -> None:
    """Retry the failed or quarantined run ID, or with --all every such run of a filter.

    A run that continues before the command reaches it counts as refused. The exit code is 1
    if a run could not be retried.
    """
    if every:
        retry_all = partial(holdfast.retry_all, keep_answers=keep_answers)
        await run_bulk("Retry", "retried", retry_all, given)
    elif id is not None:
        await holdfast.run(id).retry(from_node=from_node, keep_answers=keep_answers)
        _report(f"run {id} is retried", {"id": id, "retried": True}, **given)
        if not keep_answers:
            say("waits that were answered ask again: --keep-answers keeps the answers", err=True)


def _report(text: str, facts: dict[str, Any], *, as_json: bool, **given: Any) -> None:
    """Print what a command did, for people or for programs."""
    if as_json:
        click.echo(pretty(facts))
    else:
        say(text)
