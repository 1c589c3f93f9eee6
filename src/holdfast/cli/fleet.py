"""``holdfast fleet``: workers, graphs, and runs that make no progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import DURATION, example, json_option
from holdfast.cli.text import columns, pretty, say
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.fleet.fleet import ALL_TENANTS
from holdfast.model.fleet import GraphEntry, StalledPage, WorkerEntry
from holdfast.model.moments import utc_text

__all__ = ["fleet"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def fleet() -> None:
    """Show workers and graphs, and the runs that make no progress."""


@fleet.command(epilog=example("holdfast fleet workers"))
@json_option
@with_holdfast()
async def workers(holdfast: Opened, *, as_json: bool) -> None:
    """List live workers, and dead ones with runs that are not all taken over yet."""
    found = await holdfast.fleet.workers()
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    headings = ("ID", "STATE", "SINCE", "RUNS", "LAG", "RELEASE", "PROCESS", "POOLS", "GRAPHS")
    # The columns that may be cut, the least important first.
    _show_table([headings, *map(_worker_row, found)], cut=(2, 5, 6, 7, 8), nothing="no workers")


def _worker_row(worker: WorkerEntry) -> Sequence[str]:
    running = "-" if worker.running is None else str(worker.running)
    return (
        worker.id,
        "alive" if worker.alive else "dead",
        utc_text(worker.since_at),
        running if worker.concurrency is None else f"{running}/{worker.concurrency}",
        "-" if worker.lag_seconds is None else f"{worker.lag_seconds:.1f}s",
        worker.release or "-",
        f"{worker.host}:{worker.pid}" if worker.pid is not None else worker.host or "-",
        _pools_text(worker.pools),
        ", ".join(sorted(worker.graphs)) + ("" if worker.complete else ", …"),
    )


@fleet.command(epilog=example("holdfast fleet graphs"))
@json_option
@with_holdfast()
async def graphs(holdfast: Opened, *, as_json: bool) -> None:
    """List every graph and version that any worker or server has published."""
    found = await holdfast.fleet.graphs()
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    headings = ("GRAPH", "VERSION", "POOLS", "PUBLISHED", "SIGNALS")
    _show_table([headings, *map(_graph_row, found)], cut=(3, 4, 2), nothing="no graphs")


def _graph_row(graph: GraphEntry) -> Sequence[str]:
    return (
        graph.name,
        str(graph.version),
        _pools_text(graph.pools),
        "-" if graph.published_at is None else utc_text(graph.published_at),
        "any" if graph.signals is None else ", ".join(graph.signals) or "-",
    )


def _pools_text(pools: Sequence[str | None]) -> str:
    return ", ".join(pool or "(none)" for pool in pools) or "-"


def _page_options(function: F) -> F:
    for option in (
        click.option("--cursor", help="Continue where another list ended."),
        click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True),
        click.option(
            "--all-tenants", is_flag=True, help="All tenants, instead of the one of --tenant."
        ),
    ):
        function = option(function)
    return function


@fleet.command(epilog=example("holdfast fleet stuck --all-tenants"))
@_page_options
@json_option
@with_holdfast()
async def stuck(
    holdfast: Opened, *, all_tenants: bool, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List runs that a live worker should have claimed by now, and why it has not.

    Also runs that wait for a review, if no reviewer could be notified of it.

    They are runs of --tenant, or of all tenants with --all-tenants.
    """
    tenant = ALL_TENANTS if all_tenants else None
    page = await holdfast.fleet.stuck(tenant=tenant, limit=limit, cursor=cursor)
    _show_stalled(page, nothing=_nothing("stuck", all_tenants), as_json=as_json)


@fleet.command(epilog=example("holdfast fleet unserved --grace 5m"))
@click.option(
    "--grace",
    type=DURATION,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How long a run may be due.",
)
@_page_options
@json_option
@with_holdfast()
async def unserved(
    holdfast: Opened,
    *,
    grace: str,
    all_tenants: bool,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List runs that no live worker serves, and which worker they need.

    They are runs of --tenant, or of all tenants with --all-tenants.
    """
    tenant = ALL_TENANTS if all_tenants else None
    page = await holdfast.fleet.unserved(tenant=tenant, grace=grace, limit=limit, cursor=cursor)
    _show_stalled(page, nothing=_nothing("unserved", all_tenants), as_json=as_json)


def _nothing(kind: str, all_tenants: bool) -> str:
    if all_tenants:
        return f"no {kind} runs"
    return f"no {kind} runs of this tenant; --all-tenants looks at all of them"


def _show_stalled(page: StalledPage, *, nothing: str, as_json: bool) -> None:
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    rows = [("RUN", "TENANT", "GRAPH", "REASON", "SINCE", "DETAIL")]
    rows += [
        (
            run.id,
            run.tenant,
            f"{run.graph} v{run.version}",
            run.reason,
            utc_text(run.since_at),
            run.detail,
        )
        for run in page.runs
    ]
    _show_table(rows, cut=(5, 4, 1, 2), nothing=nothing)
    for advice in dict.fromkeys(run.advice for run in page.runs):
        say(f"fix: {advice}", err=True)
    if page.cursor is not None:
        say(f"there may be more: --cursor '{page.cursor}'", err=True)


def _show_table(rows: Sequence[Sequence[str]], *, cut: Sequence[int], nothing: str) -> None:
    if len(rows) == 1:
        click.echo(nothing, err=True)
        return
    for line in columns(rows, cut=cut):
        click.echo(line)
