"""``holdfast run list``, ``show``, ``history``, ``until`` and others: what runs do and hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeVar, get_args

import click

from holdfast.cli.facts import (
    facts_of,
    result_facts,
    run_lines,
    session_queue_lines,
    show_entries,
    wait_lines,
)
from holdfast.cli.live_screen import is_drawable
from holdfast.cli.opening import Opened, OpenedRun, with_holdfast
from holdfast.cli.parameters import (
    DURATION,
    RequiredChoice,
    example,
    filter_options,
    json_option,
)
from holdfast.cli.run_picture import RunPicture
from holdfast.cli.text import columns, compact, pretty, say
from holdfast.cli.watching import draw_run, read_chart
from holdfast.clock import SystemClock
from holdfast.display import printable
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.errors import RunNotFound
from holdfast.model.moments import utc_text
from holdfast.model.run import PAUSE_REASONS, HistoryEntry, HistoryPage, Status, TextPiece
from holdfast.model.standing import overdue_text
from holdfast.records.run_filter import RunFilter

__all__ = ["READING"]

T = TypeVar("T", HistoryEntry, TextPiece)


@click.command("list", epilog=example("holdfast run list --status failed --since 2026-11-01"))
@filter_options(*get_args(Status))
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Continue where another list ended.")
@json_option
@with_holdfast()
async def list_runs(
    holdfast: Opened, *, run_filter: RunFilter, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List runs, the newest first.

    A run with a row that cannot be read is listed last, as damaged; it may not match the filter.
    """
    page = await holdfast.list(run_filter, limit=limit, cursor=cursor)
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in run_lines(page.runs, page.damaged):
        click.echo(line)
    if not page.runs and not page.damaged:
        click.echo("no runs", err=True)
    if page.cursor is not None:
        say(f"there may be more: --cursor '{page.cursor}'", err=True)


@click.command(epilog=example("holdfast run show doc-42", "holdfast run show doc-42 --state"))
@click.argument("id")
@click.option("--state", "with_state", is_flag=True, help="Show the state of the run, too.")
@click.option("--at", metavar="CURSOR", help="With --state: after this entry of the history.")
@click.option("--branch", default="", help="With --state: as this branch sees it.")
@click.option("--input", "with_input", is_flag=True, help="Show the input of the run, too.")
@json_option
@with_holdfast()
async def show(
    holdfast: Opened,
    *,
    id: str,
    with_state: bool,
    at: str | None,
    branch: str,
    with_input: bool,
    as_json: bool,
) -> None:
    """Show the status of the run ID, why it is paused, what it has used, and its result.

    --state shows what the run holds after its last finished node, whatever its status.
    """
    if (at is not None or branch) and not with_state:
        raise click.UsageError("--at and --branch need --state")
    handle = holdfast.run(id)
    row = await handle.get()
    values: dict[str, Any] = {}
    if with_input:
        values["input"] = await handle.input()
    if with_state:
        values["state"] = await handle.state(at=at, branch=branch)
    elif row.status == "finished":
        values["result"] = await _read_result(handle)
    if as_json:
        click.echo(pretty({**row.as_dict(), **values}))
        return
    facts = [*facts_of(row), *result_facts(values)]
    unclaimed = overdue_text(row, now_ms=SystemClock().now_ms())
    if unclaimed is not None:
        facts.append(("attention", unclaimed))
    for line in columns(facts):
        click.echo(line)
    for name, value in values.items():
        if name != "result":
            click.echo(f"\n{name}:\n{pretty(value)}")


@click.command(epilog=example("holdfast run waits doc-42"))
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Continue where another list ended.")
@json_option
@with_holdfast()
async def waits(
    holdfast: Opened, *, id: str, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List everything that the run ID waits for, the longest wait first."""
    page = await holdfast.run(id).waits(limit=limit, cursor=cursor)
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in wait_lines(id, page.waits):
        click.echo(line)
    if not page.waits:
        click.echo("no waits", err=True)
    if page.cursor is not None:
        say(f"there are more: --cursor {page.cursor}", err=True)


@click.command(epilog=example("holdfast run history doc-42 --json"))
@click.argument("id")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many entries.")
@click.option("--cursor", help="Continue after this entry.")
@click.option("--full", is_flag=True, help="Do not cut long lines, such as those with arguments.")
@json_option
@with_holdfast()
async def history(
    holdfast: Opened, *, id: str, limit: int | None, cursor: str | None, full: bool, as_json: bool
) -> None:
    """Show the history of the run ID, the oldest entry first.

    Calls are shown with their arguments, as far as these were recorded.
    """
    before, found = "[", 0
    async for page in _read_pages(holdfast.run(id), limit, cursor):
        cursor, found = page.cursor, found + len(page.entries)
        if not as_json:
            show_entries(page.entries, full=full)
        for entry in page.entries if as_json else ():
            click.echo(f"{before}\n{pretty(entry.as_dict())}", nl=False)
            before = ","
    if as_json:
        click.echo("[]" if before == "[" else "\n]")
    elif not found:
        click.echo("no entries", err=True)
    if cursor is not None:
        say(f"there may be more: --cursor {cursor}", err=True)


async def _read_result(handle: OpenedRun) -> Any:
    """Return the result of a finished run; None if it is no longer stored."""
    with suppress(RunNotFound):
        return await handle.result()
    return None


async def _read_pages(
    handle: OpenedRun, limit: int | None, cursor: str | None
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


@click.command(epilog=example("holdfast run watch doc-42", "holdfast run watch doc-42 --ephemeral"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Continue after this entry.")
@click.option(
    "--ephemeral",
    is_flag=True,
    help="Show what is not recorded, too: starts of nodes, pauses, progress.",
)
@click.option("--plain", is_flag=True, help="Print a line for each entry; draw nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each entry.")
@with_holdfast()
async def watch(
    holdfast: Opened, *, id: str, after: str | None, ephemeral: bool, plain: bool, as_json: bool
) -> None:
    """Show what the run ID does until it has ended.

    On a terminal it draws the graph and fills it in. Otherwise, and with one of the options, it
    prints the history and then each new entry. When interrupted, it prints the cursor to continue
    from.
    """
    if is_drawable() and not (plain or as_json or ephemeral or after):
        row = await holdfast.run(id).get()
        picture = RunPicture(id, await read_chart(holdfast, row), f"{row.graph} v{row.version}")
        events = holdfast.run(id).events(ephemeral=True)
        await draw_run(picture, _until_interrupted(events, None))
        return
    events = holdfast.run(id).events(after=after, ephemeral=ephemeral)
    async for entry in _until_interrupted(events, after):
        if as_json:
            click.echo(compact(entry.as_dict()))
        else:
            show_entries([entry])


@click.command(epilog=example("holdfast run until doc-42 waiting --timeout 30s"))
@click.argument("id")
@click.argument("statuses", nargs=-1, required=True, type=RequiredChoice(get_args(Status)))
@click.option(
    "--paused-for",
    type=click.Choice(PAUSE_REASONS),
    metavar="REASON",
    help="With waiting: why the run is paused (signal, timer, budget and so on).",
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    help="Wait at most this long (90s, 1h30m, 3d); then the exit code is 1.",
)
@json_option
@with_holdfast()
async def until(
    holdfast: Opened,
    *,
    id: str,
    statuses: tuple[Status, ...],
    paused_for: str | None,
    timeout: str | None,  # noqa: ASYNC109
    as_json: bool,
) -> None:
    """Wait until the run ID has one of the STATUSES, and print which.

    If the run ends in another way, the error says how, and the exit code is 1.
    """
    try:
        row = await holdfast.run(id).until(*statuses, reason=paused_for, timeout=timeout)
    except TimeoutError as late:
        raise click.ClickException(str(late)) from None
    if as_json:
        click.echo(pretty(row.as_dict()))
    else:
        say(row.status)


@click.command(epilog=example("holdfast run tokens doc-42"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Continue after this piece.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each piece.")
@with_holdfast()
async def tokens(holdfast: Opened, *, id: str, after: str | None, as_json: bool) -> None:
    """Show the text that models stream to the run ID, until the run has ended.

    When interrupted, it prints the cursor to continue from.
    """
    speaking: str | None = None
    silent = True
    async for piece in _until_interrupted(holdfast.run(id).tokens(after=after), after):
        silent = False
        if as_json:
            click.echo(compact(piece.as_dict()))
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
            after = each.cursor or after
    except asyncio.CancelledError:
        if after is not None:
            say(f"continue with: --after {after}", err=True)
        raise


@click.command(epilog=example("holdfast run queue chat-7 --user ann@example.com"))
@click.argument("session")
@click.option("--user", help="The user that the session belongs to.")
@json_option
@with_holdfast()
async def queue(holdfast: Opened, *, session: str, user: str | None, as_json: bool) -> None:
    """Show the queue of a SESSION: its runs that have not ended, in their order."""
    entries = await holdfast.session_queue(session, user=user)
    if as_json:
        click.echo(pretty([entry.as_dict() for entry in entries]))
        return
    for line in session_queue_lines(entries):
        click.echo(line)
    if not entries:
        of_user = "of that user" if user is not None else "without a user (--user names one)"
        click.echo(f"no open runs in the session {of_user}", err=True)


@click.command(epilog=example("holdfast run children doc-42"))
@click.argument("id")
@json_option
@with_holdfast()
async def children(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """List the runs that the run ID started, the oldest first."""
    entries = await holdfast.run(id).children()
    if as_json:
        click.echo(pretty([entry.as_dict() for entry in entries]))
        return
    for line in run_lines(entries):
        click.echo(line)
    if not entries:
        click.echo("no runs", err=True)


@click.command(epilog=example("holdfast run signals doc-42"))
@click.argument("id")
@json_option
@with_holdfast()
async def signals(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """List the signals that the run ID has set aside, because they do not fit what it waits for."""
    found = await holdfast.run(id).set_aside()
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    rows = [
        (utc_text(each.at), each.name, each.id, each.reason, compact(each.payload))
        for each in found
    ]
    for line in columns(rows):
        click.echo(line)
    if not found:
        click.echo("no signals are set aside", err=True)


READING: tuple[click.Command, ...] = (
    list_runs,
    show,
    waits,
    signals,
    history,
    watch,
    until,
    tokens,
    queue,
    children,
)
"""The commands of ``holdfast run`` that only read."""
