"""``holdfast run``: start runs, look after them, and put right what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, TypeVar, get_args

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.bulk import bulk_options, shown
from holdfast.cli.failures import asynchronous, showing_errors
from holdfast.cli.parameters import (
    example,
    filter_options,
    json_value,
    labels_option,
    moment,
    span,
    tenant_option,
    url_option,
)
from holdfast.cli.targets import FORMS, load_graph
from holdfast.cli.text import columns, compact, pretty, printable, utc, utc_of_ms
from holdfast.engine.arguments import LIMIT_MAX
from holdfast.graph import Graph
from holdfast.model.child import CHILD, is_childs_signal
from holdfast.model.durations import days, hours
from holdfast.model.event import Failure
from holdfast.model.run import (
    HistoryEntry,
    HistoryPage,
    LaneEntry,
    OnBusy,
    Run,
    RunEntry,
    Status,
    TextPiece,
)
from holdfast.model.wait import Wait
from holdfast.storage.open import open as open_store

__all__ = ["run"]

T = TypeVar("T", HistoryEntry, TextPiece)

_DETAILS_MAX = 160
_TIMES = {
    "expires_ms": "expires_at",
    "retry_at_ms": "retry_at",
    "since_ms": "since_at",
    "stale_ms": "stale_at",
    "until_ms": "until_at",
}
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _on_store(
    *, make: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command the options that name the store, and hand it the Holdfast there.

    ``make`` says whether an SQLite file is made where there is none: to ask for a run of a
    mistyped one should not leave a file behind.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @url_option
        @tenant_option
        @asynchronous
        @wraps(function)
        async def opened(*, url: str, tenant: str, **given: Any) -> None:
            async with open_store(url, make=make) as store:
                await function(Holdfast(url, tenant=tenant, store=store), **given)

        return opened

    return decorate


@click.group()
def run() -> None:
    """Start runs, look after them, and put right what went wrong."""


# --- looking --------------------------------------------------------------------------------------


@run.command("list", epilog=example("holdfast run list --status failed --since 2026-11-01"))
@filter_options(*get_args(Status))
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Go on where another list ended.")
@_json_option
@_on_store()
async def list_runs(holdfast: Holdfast, *, as_json: bool, **asked: Any) -> None:
    """List runs, the newest first."""
    page = await holdfast.list(**asked)
    if as_json:
        click.echo(pretty(page))
        return
    for line in _lines(page.runs):
        click.echo(line)
    if not page.runs:
        click.echo("no runs", err=True)
    if page.cursor is not None:
        click.echo(f"there may be more: --cursor '{page.cursor}'", err=True)


@run.command(epilog=example("holdfast run show doc-42"))
@click.argument("id")
@_json_option
@_on_store()
async def show(holdfast: Holdfast, *, id: str, as_json: bool) -> None:
    """Show where the run ID stands, why it is paused, and what it has used."""
    row = await holdfast.get(id)
    if as_json:
        click.echo(pretty(_row(row)))
        return
    for line in columns(list(_facts(row))):
        click.echo(line)


@run.command(epilog=example("holdfast run history doc-42 --json"))
@click.argument("id")
@click.option("--limit", type=click.IntRange(1), help="At most so many entries.")
@click.option("--cursor", help="Go on after this entry.")
@_json_option
@_on_store()
async def history(
    holdfast: Holdfast, *, id: str, limit: int | None, cursor: str | None, as_json: bool
) -> None:
    """Show what happened to the run ID, the oldest first."""
    before = "["
    async for page in _pages(holdfast, id, limit, cursor):
        cursor = page.cursor
        if not as_json:
            _show(page.entries)
        for entry in page.entries if as_json else ():
            click.echo(f"{before}\n{pretty(_told(entry))}", nl=False)
            before = ","
    if as_json:
        click.echo("[]" if before == "[" else "\n]")
    if cursor is not None:
        click.echo(f"there may be more: --cursor {cursor}", err=True)


async def _pages(
    holdfast: Holdfast, id: str, limit: int | None, cursor: str | None
) -> AsyncIterator[HistoryPage]:
    """Yield pages until there are so many entries, or no more."""
    left = limit
    while left is None or left > 0:
        most = LIMIT_MAX if left is None else min(left, LIMIT_MAX)
        page = await holdfast.history(id, limit=most, cursor=cursor)
        yield page
        cursor = page.cursor
        left = None if left is None else left - len(page.entries)
        if cursor is None:
            return


@run.command(epilog=example("holdfast run watch doc-42"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Go on after this entry.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each entry.")
@_on_store()
async def watch(holdfast: Holdfast, *, id: str, after: str | None, as_json: bool) -> None:
    """Show what happened to the run ID, then what happens, until it has ended.

    Interrupted it says from where to go on.
    """
    async for entry in _until_interrupted(holdfast.events(id, after=after), after):
        if as_json:
            click.echo(compact(_told(entry)))
        else:
            _show([entry])


@run.command(epilog=example("holdfast run tokens doc-42"))
@click.argument("id")
@click.option("--after", metavar="CURSOR", help="Go on after this piece.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each piece.")
@_on_store()
async def tokens(holdfast: Holdfast, *, id: str, after: str | None, as_json: bool) -> None:
    """Show the answers that the run ID streams, as their text comes, until the run has ended.

    Interrupted it says from where to go on.
    """
    speaking: str | None = None
    async for piece in _until_interrupted(holdfast.tokens(id, after=after), after):
        if as_json:
            click.echo(compact(piece))
            continue
        if speaking is not None and (piece.call != speaking or piece.restarted):
            click.echo()
        if piece.restarted:
            click.echo(f"{piece.name} begins anew", err=True)
        shown = "\n".join(map(printable, piece.text.split("\n")))
        click.echo(shown, nl=piece.last)
        speaking = None if piece.last else piece.call


async def _until_interrupted(source: AsyncIterator[T], after: str | None) -> AsyncIterator[T]:
    """Yield what comes; interrupted, say from where to go on."""
    try:
        async for each in source:
            yield each
            after = each.cursor
    except asyncio.CancelledError:
        if after is not None:
            click.echo(f"go on with: --after {after}", err=True)
        raise


@run.command(epilog=example("holdfast run lane chat-7 --user ann@example.com"))
@click.argument("session")
@click.option("--user", help="Whose session it is.")
@_json_option
@_on_store()
async def lane(holdfast: Holdfast, *, session: str, user: str | None, as_json: bool) -> None:
    """Show the runs of a SESSION that have not ended, in the order in which they go on."""
    entries = await holdfast.lane(session, user=user)
    if as_json:
        click.echo(pretty(entries))
        return
    for line in _lane(entries):
        click.echo(line)
    if not entries:
        click.echo("no runs", err=True)


@run.command(epilog=example("holdfast run children doc-42"))
@click.argument("id")
@_json_option
@_on_store()
async def children(holdfast: Holdfast, *, id: str, as_json: bool) -> None:
    """List the runs that the run ID started, the oldest first."""
    entries = await holdfast.children(id)
    if as_json:
        click.echo(pretty(entries))
        return
    for line in _lines(entries):
        click.echo(line)
    if not entries:
        click.echo("no runs", err=True)


# --- acting ---------------------------------------------------------------------------------------


def _graph(context: click.Context, parameter: click.Parameter, target: str) -> Graph:
    """Import it before the store is opened, and outside of any event loop."""
    with showing_errors():
        return load_graph(target)


@run.command(
    epilog=example(
        """holdfast run start shop.flows:warranty '{"uri": "scan.pdf"}' --id doc-42 --wait"""
    )
    + f"\n\n\b\nA target looks so:\n{FORMS}"
)
@click.argument("graph", metavar="TARGET", callback=_graph)
@click.argument("input", type=json_value, required=False)
@click.option("--id", help="The same id and input give the same run, however often it is started.")
@labels_option
@click.option("--pool", help="Only workers of this pool take it; it is the label of that name.")
@click.option("--user", help="For whom it runs; only a hash is kept.")
@click.option("--session", help="Go on after the user's other runs of the same session.")
@click.option(
    "--on-busy",
    type=click.Choice(get_args(OnBusy)),
    help="What to do while another run of the session goes on.  [default: queue]",
)
@click.option("--start-at", type=moment, metavar="TIME", help="Not before then (UTC).")
@click.option(
    "--expires-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=days(7) / hours(1),
    show_default=True,
    help="When it ends unfinished, counted from the start.",
)
@click.option("--wait", is_flag=True, help="Wait for the result that some worker comes to.")
@_on_store(make=True)
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
    wait: bool,
) -> None:
    """Start a run of the graph TARGET with an INPUT as JSON (- reads it from standard input).

    It prints the run's id, and with --wait the result.
    """
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
    )
    click.echo(handle.id, err=wait)
    if wait:
        # Asked for without its graph, the state comes as it is kept: as JSON has it.
        click.echo(pretty(await holdfast.run(handle.id).result()))


@run.command(epilog=example("""holdfast run signal doc-42 decision '{"approved": true}'"""))
@click.argument("id")
@click.argument("name")
@click.argument("payload", type=json_value, required=False)
@click.option("--signal-id", help="Sent again with the same one, it counts once.")
@_on_store()
async def signal(
    holdfast: Holdfast, *, id: str, name: str, payload: Any, signal_id: str | None
) -> None:
    """Send the run ID the signal NAME, with a PAYLOAD as JSON (- reads it from standard input)."""
    await holdfast.signal(id, name, payload, signal_id=signal_id)
    click.echo(f"run {id} has got the signal {name}")


@run.command(
    epilog=example(
        "holdfast run cancel doc-42 --reason 'ordered twice'",
        "holdfast run cancel --all --graph warranty --status waiting",
    )
)
@click.argument("id", required=False)
@click.option("--reason", default="", help="Stands in the run's history.")
@bulk_options("running", "waiting", "closing")
@_on_store()
async def cancel(
    holdfast: Holdfast, *, id: str | None, every: bool, reason: str, **given: Any
) -> None:
    """End the run ID, or all runs of a filter; a node under way ends at its next write.

    Of all runs those are refused that have ended by the time that their turn comes. The exit code
    is 1 if any failed.
    """
    if every:
        await shown("Cancel", "cancelled", partial(holdfast.cancel_all, reason=reason), given)
    elif id is not None:
        await holdfast.cancel(id, reason=reason)
        click.echo(f"run {id} is cancelled")


@run.command(epilog=example("holdfast run extend doc-42 3d"))
@click.argument("id")
@click.argument("expires", type=span, metavar="SPAN")
@_on_store()
async def extend(holdfast: Holdfast, *, id: str, expires: timedelta) -> None:
    """Let the run ID expire SPAN from now (90s, 30m, 12h, 3d), and not before."""
    await holdfast.extend(id, expires=expires)
    click.echo(f"run {id} expires at {utc((await holdfast.get(id)).expires_at)}")


@run.command(
    epilog=example(
        "holdfast run retry doc-42 --from-node classify",
        "holdfast run retry --all --graph warranty --since 2026-11-01",
    )
)
@click.argument("id", required=False)
@click.option("--from-node", metavar="NODE", help="Go on there, and not where it stopped.")
@bulk_options("failed", "quarantined")
@_on_store()
async def retry(
    holdfast: Holdfast, *, id: str | None, every: bool, from_node: str | None, **given: Any
) -> None:
    """Let the run ID go on that failed or is quarantined, or all such runs of a filter.

    Of all runs those are refused that go on already. The exit code is 1 if any failed.
    """
    if every:
        await shown("Retry", "retried", holdfast.retry_all, given)
    elif id is not None:
        await holdfast.retry(id, from_node=from_node)
        click.echo(f"run {id} goes on")


# --- what is shown --------------------------------------------------------------------------------


def _lines(runs: Sequence[RunEntry]) -> Iterable[str]:
    if not runs:
        return ()
    rows = [("STARTED", "STATUS", "GRAPH", "ID", "LABELS")]
    for entry in runs:
        labels = " ".join(f"{name}={value}" for name, value in entry.labels.items())
        graph = f"{entry.graph} v{entry.version}"
        rows.append((utc(entry.created_at), entry.status, graph, entry.id, labels))
    return columns(rows)


def _lane(entries: list[LaneEntry]) -> Iterable[str]:
    if not entries:
        return ()
    rows = [("NUMBER", "STARTED", "STATUS", "PAUSED FOR", "ID")]
    for entry in entries:
        started, reason = utc(entry.created_at), entry.reason or ""
        rows.append((str(entry.number), started, entry.status, reason, entry.id))
    return columns(rows)


def _row(row: Run) -> dict[str, Any]:
    """Return a run's row with every time in ISO's form and every field by its name."""
    shown = _named(msgspec.structs.asdict(row))
    return {**shown, "waits": [_named(msgspec.structs.asdict(wait)) for wait in row.waits]}


def _facts(row: Run) -> Iterator[tuple[str, str]]:
    yield "id", row.id
    yield "tenant", row.tenant
    yield "graph", f"{row.graph} v{row.version}"
    yield "status", row.status
    yield "node", row.node
    if row.reason is not None:
        yield "paused for", row.reason
    for wait in row.waits:
        yield "waits for", _awaited(wait)
    if row.due_at is not None:
        yield "due", utc(row.due_at)
    if row.owner is not None:
        yield "held by", f"worker {row.owner}"
    for name, value in row.labels.items():
        yield "label", f"{name}={value}"
    if row.user is not None:
        yield "user", row.user
    if row.session is not None:
        yield "session", row.session
    if row.parent is not None:
        yield "child of", f"run {row.parent}"
    if row.into is not None:
        yield "went into", f"run {row.into}"
    yield "used", f"{row.nodes_run} nodes, {row.spent_seconds:g} seconds inside them"
    yield "retries left", str(row.retries_left)
    if row.resume_failures:
        yield "failed resumes", str(row.resume_failures)
    yield "journal", f"{row.journal_records} records, {row.journal_bytes} bytes"
    yield "started", utc(row.created_at)
    yield "changed", utc(row.updated_at)
    yield "expires", utc(row.expires_at)
    if row.failure is not None:
        yield "failure", f"{row.failure.type}: {row.failure.message}"


def _awaited(wait: Wait) -> str:
    told = "a time" if wait.signal is None else f"the signal {wait.signal}"
    if wait.signal is not None and is_childs_signal(wait.signal):
        told = f"the end of run {wait.signal.removeprefix(CHILD)}"
    told += f", since {utc_of_ms(wait.since_ms)}"
    if wait.until_ms is not None:
        told += f", until {utc_of_ms(wait.until_ms)}"
    if wait.stale_ms is not None:
        told += f", stale at {utc_of_ms(wait.stale_ms)}"
    return told


def _show(entries: Sequence[HistoryEntry]) -> None:
    lines = columns([_event(entry) for entry in entries])
    for line, entry in zip(lines, entries, strict=True):
        click.echo(line)
        for place in _told(entry)["details"].get("failure", {}).get("trace", "").splitlines():
            click.echo(f"    {printable(place)}")


def _event(entry: HistoryEntry) -> tuple[str, str, str, str]:
    details = _told(entry)["details"]
    if "failure" in details:
        details["failure"] = "{type}: {message}".format(**details["failure"])
    told = " ".join(
        f"{name}={value if isinstance(value, str) else compact(value)}"
        for name, value in details.items()
        if value not in (None, "")
    )
    if len(told) > _DETAILS_MAX:
        told = told[: _DETAILS_MAX - 1] + "…"
    return utc(entry.at), entry.kind, entry.node or "", told


def _told(entry: HistoryEntry) -> dict[str, Any]:
    return {**msgspec.structs.asdict(entry), "details": _named(entry.details)}


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Return fields with the times among them in ISO's form, and the parts of a failure named."""
    shown: dict[str, Any] = {}
    for name, value in values.items():
        if name in _TIMES:
            shown[_TIMES[name]] = None if value is None else utc_of_ms(value)
        elif isinstance(value, Failure):
            shown[name] = msgspec.structs.asdict(value)
        else:
            shown[name] = value
    return shown
