"""``holdfast run``: start runs, watch them, and act on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, get_args

import click

from holdfast.app import Holdfast
from holdfast.cli.bulk import bulk_options, run_bulk
from holdfast.cli.effects import ambiguous, budget, resolve
from holdfast.cli.facts import (
    entry_of,
    facts_of,
    row_of,
    run_lines,
    session_queue_lines,
    show_entries,
)
from holdfast.cli.failures import show_errors
from holdfast.cli.opening import with_holdfast
from holdfast.cli.parameters import (
    budget_options,
    example,
    filter_options,
    json_option,
    labels_option,
    parse_duration,
    parse_json,
    parse_time,
)
from holdfast.cli.targets import FORMS, load_graph
from holdfast.cli.text import columns, compact, pretty, say, utc
from holdfast.display import printable
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.graph import Graph
from holdfast.handle import RunHandle
from holdfast.model.budget import Budget
from holdfast.model.durations import days, hours
from holdfast.model.run import HistoryEntry, HistoryPage, OnBusy, Status, TextPiece
from holdfast.records.run_filter import RunFilter

__all__ = ["run"]

T = TypeVar("T", HistoryEntry, TextPiece)


@click.group()
def run() -> None:
    """Start runs, watch them, and act on them."""


for _command in (ambiguous, budget, resolve):
    run.add_command(_command)


# --- looking --------------------------------------------------------------------------------------


@run.command("list", epilog=example("holdfast run list --status failed --since 2026-11-01"))
@filter_options(*get_args(Status))
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Continue where another list ended.")
@json_option
@with_holdfast()
async def list_runs(
    holdfast: Holdfast, *, run_filter: RunFilter, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List runs, the newest first.

    A run with a row that cannot be read is listed last, as damaged; it may not match the filter.
    """
    page = await holdfast.list(run_filter, limit=limit, cursor=cursor)
    if as_json:
        click.echo(pretty(page))
        return
    for line in run_lines(page.runs, page.damaged):
        click.echo(line)
    if not page.runs and not page.damaged:
        click.echo("no runs", err=True)
    if page.cursor is not None:
        say(f"there may be more: --cursor '{page.cursor}'", err=True)


@run.command(epilog=example("holdfast run show doc-42"))
@click.argument("id")
@json_option
@with_holdfast()
async def show(holdfast: Holdfast, *, id: str, as_json: bool) -> None:
    """Show the status of the run ID, why it is paused, and what it has used."""
    row = await holdfast.run(id).get()
    if as_json:
        click.echo(pretty(row_of(row)))
        return
    for line in columns(list(facts_of(row))):
        click.echo(line)


@run.command(epilog=example("holdfast run history doc-42 --json"))
@click.argument("id")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many entries.")
@click.option("--cursor", help="Continue after this entry.")
@json_option
@with_holdfast()
async def history(
    holdfast: Holdfast, *, id: str, limit: int | None, cursor: str | None, as_json: bool
) -> None:
    """Show the history of the run ID, the oldest entry first."""
    before, found = "[", 0
    async for page in _read_pages(holdfast.run(id), limit, cursor):
        cursor, found = page.cursor, found + len(page.entries)
        if not as_json:
            show_entries(page.entries)
        for entry in page.entries if as_json else ():
            click.echo(f"{before}\n{pretty(entry_of(entry))}", nl=False)
            before = ","
    if as_json:
        click.echo("[]" if before == "[" else "\n]")
    elif not found:
        click.echo("no entries", err=True)
    if cursor is not None:
        say(f"there may be more: --cursor {cursor}", err=True)


async def _read_pages(
    handle: RunHandle, limit: int | None, cursor: str | None
) -> AsyncIterator[HistoryPage]:
    """Yield pages of a run's history, with at most ``limit`` entries in all."""
    left = limit
    while left is None or left > 0:
        page_limit = LIMIT_MAX if left is None else min(left, LIMIT_MAX)
        page = await handle.history(limit=page_limit, cursor=cursor)
        yield page
        cursor = page.cursor
        left = None if left is None else left - len(page.entries)
        if cursor is None:
            return


@run.command(epilog=example("holdfast run watch doc-42"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Continue after this entry.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each entry.")
@with_holdfast()
async def watch(holdfast: Holdfast, *, id: str, after: str | None, as_json: bool) -> None:
    """Show the history of the run ID, then each new entry, until the run has ended.

    When interrupted, it prints the cursor to continue from.
    """
    async for entry in _until_interrupted(holdfast.run(id).events(after=after), after):
        if as_json:
            click.echo(compact(entry_of(entry)))
        else:
            show_entries([entry])


@run.command(epilog=example("holdfast run tokens doc-42"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Continue after this piece.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each piece.")
@with_holdfast()
async def tokens(holdfast: Holdfast, *, id: str, after: str | None, as_json: bool) -> None:
    """Show the text that models stream to the run ID, until the run has ended.

    When interrupted, it prints the cursor to continue from.
    """
    speaking: str | None = None
    silent = True
    async for piece in _until_interrupted(holdfast.run(id).tokens(after=after), after):
        silent = False
        if as_json:
            click.echo(compact(piece))
            continue
        if speaking is not None and (piece.call != speaking or piece.restarted):
            click.echo()
        if piece.restarted:
            say(f"{piece.name} starts again", err=True)
        shown = "\n".join(map(printable, piece.text.split("\n")))
        click.echo(shown, nl=piece.last)
        speaking = None if piece.last else piece.call
    if silent:
        click.echo("no text", err=True)


async def _until_interrupted(source: AsyncIterator[T], after: str | None) -> AsyncIterator[T]:
    """Yield from the source; when interrupted, print the cursor to continue from."""
    try:
        async for each in source:
            yield each
            after = each.cursor
    except asyncio.CancelledError:
        if after is not None:
            say(f"continue with: --after {after}", err=True)
        raise


@run.command(epilog=example("holdfast run queue chat-7 --user ann@example.com"))
@click.argument("session")
@click.option("--user", help="The user that the session belongs to.")
@json_option
@with_holdfast()
async def queue(holdfast: Holdfast, *, session: str, user: str | None, as_json: bool) -> None:
    """Show the queue of a SESSION: its runs that have not ended, in their order."""
    entries = await holdfast.session_queue(session, user=user)
    if as_json:
        click.echo(pretty(entries))
        return
    for line in session_queue_lines(entries):
        click.echo(line)
    if not entries:
        click.echo("no runs", err=True)


@run.command(epilog=example("holdfast run children doc-42"))
@click.argument("id")
@json_option
@with_holdfast()
async def children(holdfast: Holdfast, *, id: str, as_json: bool) -> None:
    """List the runs that the run ID started, the oldest first."""
    entries = await holdfast.run(id).children()
    if as_json:
        click.echo(pretty(entries))
        return
    for line in run_lines(entries):
        click.echo(line)
    if not entries:
        click.echo("no runs", err=True)


# --- acting ---------------------------------------------------------------------------------------


def _load_graph_argument(context: click.Context, parameter: click.Parameter, target: str) -> Graph:
    """Import the graph before the store is opened, and outside of any event loop."""
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
    "--expires-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=days(7) / hours(1),
    show_default=True,
    help="The run expires this long after its start.",
)
@budget_options
@click.option("--wait", is_flag=True, help="Wait for the result; a worker must serve the graph.")
@with_holdfast(make=True)
async def start(
    holdfast: Holdfast,
    *,
    graph: Graph,
    input: Any,
    id: str | None,
    labels: dict[str, str],
    pool: str | None,
    user: str | None,
    session: str | None,
    on_busy: OnBusy | None,
    start_at: datetime | None,
    expires_hours: float,
    usd: float | None,
    tokens: int | None,
    wall: timedelta | None,
    wait: bool,
) -> None:
    """Start a run of the graph TARGET with an INPUT as JSON (- reads it from standard input).

    Prints the run's id, and with --wait the result.
    """
    limited = (usd, tokens, wall) != (None, None, None)
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
        expires=hours(expires_hours),
        budget=Budget(usd=usd, tokens=tokens, wall=wall) if limited else None,
    )
    say(handle.id, err=wait)
    if wait:
        # A handle without the graph returns the state in its stored form, which is JSON's.
        click.echo(pretty(await holdfast.run(handle.id).result()))


@run.command(epilog=example("""holdfast run signal doc-42 decision '{"approved": true}'"""))
@click.argument("id")
@click.argument("name")
@click.argument("payload", type=parse_json, required=False)
@click.option("--signal-id", help="Idempotency key: the run takes signals of the same id once.")
@with_holdfast()
async def signal(
    holdfast: Holdfast, *, id: str, name: str, payload: Any, signal_id: str | None
) -> None:
    """Send the run ID the signal NAME, with a PAYLOAD as JSON (- reads it from standard input).

    Without a PAYLOAD the run gets null.
    """
    receipt = await holdfast.run(id).signal(name, payload, signal_id=signal_id)
    if receipt.repeated:
        say(f"run {id} had signal {name} with this id already")
        return
    say(f"sent signal {name} to run {id}")
    if not receipt.answers_wait:
        waits = ", ".join(receipt.waits_for)
        hint = f"; it waits for: {waits}" if waits else ""
        say(f"it is stored until the run waits for it{hint}", err=True)


@run.command(epilog=example("holdfast run signals doc-42"))
@click.argument("id")
@json_option
@with_holdfast()
async def signals(holdfast: Holdfast, *, id: str, as_json: bool) -> None:
    """List the signals that the run ID has set aside, because they do not fit what it waits for."""
    found = await holdfast.run(id).set_aside()
    if as_json:
        click.echo(pretty(found))
        return
    rows = [
        (utc(each.at), each.name, each.id, each.reason, compact(each.payload)) for each in found
    ]
    for line in columns(rows):
        click.echo(line)
    if not found:
        click.echo("no signals are set aside", err=True)


@run.command(
    epilog=example(
        "holdfast run cancel doc-42 --reason 'ordered twice'",
        "holdfast run cancel --all --graph warranty --status waiting",
    )
)
@click.argument("id", required=False)
@click.option("--reason", default="", help="Why; shown in the run's history.")
@bulk_options("running", "waiting", "closing")
@with_holdfast()
async def cancel(
    holdfast: Holdfast, *, id: str | None, every: bool, reason: str, **given: Any
) -> None:
    """End the run ID, or with --all every run that matches a filter.

    A node that runs in another process ends at its next write. A run that ends before
    the command reaches it counts as refused. The exit code is 1 if a run could not be cancelled.
    """
    if every:
        await run_bulk("Cancel", "cancelled", partial(holdfast.cancel_all, reason=reason), given)
    elif id is not None:
        await holdfast.run(id).cancel(reason)
        say(f"run {id} is cancelled")


@run.command(epilog=example("holdfast run extend doc-42 3d"))
@click.argument("id")
@click.argument("expires", type=parse_duration, metavar="SPAN")
@with_holdfast()
async def extend(holdfast: Holdfast, *, id: str, expires: timedelta) -> None:
    """Let the run ID expire SPAN from now (90s, 30m, 12h, 3d). An expiry only moves later."""
    handle = holdfast.run(id)
    await handle.extend(expires)
    say(f"run {id} expires at {utc((await handle.get()).expires_at)}")


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
    holdfast: Holdfast,
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
        say(f"run {id} is retried")
