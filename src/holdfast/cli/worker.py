"""``holdfast worker``: runs a worker as its own process, until a signal asks it to stop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from holdfast.cli.failures import show_errors
from holdfast.cli.lifetime import exit_soon, handle_signals, open_when_usable
from holdfast.cli.logs import announce, configure_logging
from holdfast.cli.metrics_page import metrics_option, serve_metrics
from holdfast.cli.opening import common_options
from holdfast.cli.parameters import example
from holdfast.cli.targets import FORMS, load_graphs
from holdfast.cli.webhook import allow_option
from holdfast.cli.webhook_delivery import deliver_webhooks
from holdfast.cli.worker_options import WorkerSettings, log_options, worker_options
from holdfast.engine.worker.worker import Worker
from holdfast.errors import StoreError
from holdfast.model.durations import duration_text
from holdfast.model.program import Program

__all__ = ["worker"]

# The counts of a worker in the order in which it shows them: what it did, then what went wrong.
_COUNTS = (
    "claimed",
    "finished",
    "failed",
    "cancelled",
    "expired",
    "quarantined",
    "taken over",
    "lost",
    "cut off",
)
_EPILOG = (
    f"\b\nTargets look like this:\n{FORMS}\n\n"
    + example(
        "export HOLDFAST_URL=sqlite:///runs.db",
        "holdfast worker shop.flows --concurrency 20",
        "holdfast worker shop.flows --models shop.models:MODELS --quotas shop.models:QUOTAS",
    )
    + "\n\nOn SIGTERM or SIGINT (Ctrl-C) the worker claims no more runs, lets nodes continue for "
    "at most --drain, releases all runs and exits with code 0. A second one kills it."
)


@click.command(epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@common_options
@worker_options
@metrics_option
@allow_option
@log_options
def worker(
    targets: Sequence[str],
    url: str,
    settings: WorkerSettings,
    metrics: tuple[str, int] | None,
    log_level: str | None,
    log_format: str,
    webhook_allow: Sequence[str],
) -> None:
    """Run the graphs of the TARGETs, for all tenants, until a signal asks it to stop."""
    with show_errors():
        graphs = load_graphs(targets)
        configure_logging(log_level, log_format)
        asyncio.run(_run_worker(url, graphs, settings, metrics, webhook_allow))


async def _run_worker(
    url: str,
    graphs: Sequence[Program],
    settings: WorkerSettings,
    metrics: tuple[str, int] | None,
    webhook_allow: Sequence[str],
) -> None:
    stop_requested = asyncio.Event()
    with handle_signals(stop_requested.set, who="worker"):
        opened = await open_when_usable(
            url, settings.holdfast, stop_requested=stop_requested, who="worker"
        )
        if opened is None:
            return
        async with (
            opened as holdfast,
            deliver_webhooks(holdfast, webhook_allow),
            holdfast.reviews.notify(),
        ):
            working = holdfast.worker(graphs, options=settings.options)
            if not await _start_worker(working, stop_requested):
                return
            names = ", ".join(sorted({graph.name for graph in graphs}))
            if working.id:
                announce("worker", f"worker {working.id} runs {names} on {url}")
            else:  # the worker has logged why
                announce("worker", f"worker waits until it can use {url}")
            async with serve_metrics(holdfast, working, metrics):
                broken = await _wait_for_stop(working, stop_requested)
            await _stop_worker(working, drain_seconds=settings.options.drain_seconds)
            exit_soon(0 if broken is None else 1)
            sys.stdout.flush()
            await holdfast.close()
            if broken is not None:
                raise broken


async def _start_worker(working: Worker, stop_requested: asyncio.Event) -> bool:
    """Start a worker; return False if it was asked to stop before it had started."""
    starting, ending = (
        asyncio.ensure_future(working.start()),
        asyncio.ensure_future(stop_requested.wait()),
    )
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        starting.cancel()
        ending.cancel()


async def _wait_for_stop(working: Worker, stop_requested: asyncio.Event) -> StoreError | None:
    """Wait until the process is asked to stop; return the error if the store failed first."""
    ending, broken = (
        asyncio.ensure_future(stop_requested.wait()),
        asyncio.ensure_future(working.wait_closed()),
    )
    try:
        await asyncio.wait((ending, broken), return_when=asyncio.FIRST_COMPLETED)
        return broken.result() if broken.done() and not ending.done() else None
    finally:
        ending.cancel()
        broken.cancel()


async def _stop_worker(working: Worker, *, drain_seconds: float) -> None:
    """Stop a worker, and say so before and after."""
    # A worker that has lost its lease has no id until it registers again.
    name = f"worker {working.id}".rstrip()
    drain = f"drain {duration_text(round(1000 * drain_seconds))}"
    announce("worker", f"{name} stops: runs in progress {working.running}, {drain}")
    await working.stop()
    name = f"worker {working.id}" if working.id else name
    announce("worker", f"{name} has stopped: {_counts_text(working)}")


def _counts_text(working: Worker) -> str:
    counts = working.counts
    order = (*_COUNTS, *sorted(counts.keys() - {*_COUNTS}))
    return (
        ", ".join(f"{counts[what]} {what}" for what in order if counts[what]) or "no runs claimed"
    )
