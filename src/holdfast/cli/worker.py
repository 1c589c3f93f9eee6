"""``holdfast worker``: runs a worker as its own process, until a signal asks it to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import show_errors
from holdfast.cli.logs import LOG_FORMATS, LOG_LEVELS, configure_logging
from holdfast.cli.opening import common_options
from holdfast.cli.parameters import DURATION, example
from holdfast.cli.targets import FORMS, load_dict, load_graphs
from holdfast.cli.text import say
from holdfast.cli.webhook import allow_option
from holdfast.cli.webhook_delivery import deliver_webhooks
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.errors import StoreError
from holdfast.model.durations import duration_text
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.program import Program

__all__ = ["worker"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long the process may take to end after the drain; then it is killed.
_EXIT_GRACE_SECONDS = 3.0
# The backoff between attempts to open a store that may recover.
_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
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
_DEFAULTS = WorkerOptions()
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
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=_DEFAULTS.concurrency,
    show_default=True,
    help="The maximum number of runs that the worker drives at the same time.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="POOL",
    help="Claim runs of this pool; may be given several times. '' is the pool without a name, the "
    "default.",
)
@click.option(
    "--models",
    metavar="TARGET",
    help="The models that nodes can ask: a dict by name (package.module:attribute).",
)
@click.option(
    "--quotas", metavar="TARGET", help="The quotas of these models: a dict by the same names."
)
@click.option(
    "--lease",
    type=DURATION,
    default=duration_text(round(1000 * _DEFAULTS.lease_seconds)),
    show_default=True,
    help="How long after the worker's death other workers take over its runs.",
)
@click.option(
    "--drain",
    type=DURATION,
    default=duration_text(round(1000 * _DEFAULTS.drain_seconds)),
    show_default=True,
    help="How long nodes may continue after the worker is asked to stop.",
)
@click.option(
    "--poll",
    type=DURATION,
    help="How often an idle worker polls for runs.  [default: depends on the store]",
)
@click.option(
    "--hold",
    type=DURATION,
    default=duration_text(round(1000 * _DEFAULTS.hold_seconds)),
    show_default=True,
    help="The worker waits in place for sleeps and backoffs up to this; longer ones pause the run.",
)
@click.option(
    "--resumes-max",
    type=click.IntRange(min=1),
    default=_DEFAULTS.resumes_max,
    show_default=True,
    help="A run is quarantined after this many failed resumes or lost workers in a row.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="Show logs from this level on, also those of your own modules.  [default: info]",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="How logs are shown on standard error.",
)
@allow_option
def worker(
    targets: Sequence[str],
    url: str,
    limits: PayloadLimits | None,
    user_key: bytes | None,
    concurrency: int,
    pools: Sequence[str],
    models: str | None,
    quotas: str | None,
    lease: str,
    drain: str,
    poll: str | None,
    hold: str,
    resumes_max: int,
    log_level: str | None,
    log_format: str,
    webhook_allow: Sequence[str],
) -> None:
    """Run the graphs of the TARGETs, for all tenants, until a signal asks it to stop."""
    with show_errors():
        graphs = load_graphs(targets)
        settings = {
            "models": None if models is None else load_dict(models),
            "quotas": None if quotas is None else load_dict(quotas),
            "limits": limits,
            "user_key": user_key,
        }
        options = WorkerOptions(
            concurrency=concurrency,
            pools=[pool or None for pool in pools] or _DEFAULTS.pools,
            lease=lease,
            drain=drain,
            poll=poll,
            hold=hold,
            resumes_max=resumes_max,
        )
        configure_logging(log_level, log_format)
        asyncio.run(_run_worker(url, graphs, options, settings, webhook_allow))


async def _run_worker(
    url: str,
    graphs: Sequence[Program],
    options: WorkerOptions,
    settings: Mapping[str, Any],
    webhook_allow: Sequence[str],
) -> None:
    stop_requested = asyncio.Event()
    with _handle_signals(stop_requested.set):
        opened = await _open_holdfast(url, settings, stop_requested)
        if opened is None:
            return
        async with opened as holdfast, deliver_webhooks(holdfast, webhook_allow):
            working = holdfast.worker(graphs, options=options)
            if not await _start_worker(working, stop_requested):
                return
            names = ", ".join(sorted({graph.name for graph in graphs}))
            if working.id:
                say(f"worker {working.id} runs {names} on {url}", err=True)
            else:  # the worker has logged why
                say(f"worker waits until it can use {url}", err=True)
            broken = await _wait_for_stop(working, stop_requested)
            await _stop_worker(working, drain_seconds=options.drain_seconds)
            _exit_soon(0 if broken is None else 1)
            sys.stdout.flush()
            await holdfast.close()
            if broken is not None:
                raise broken


async def _open_holdfast(
    url: str, settings: Mapping[str, Any], stop_requested: asyncio.Event
) -> Holdfast | None:
    """Open the store, with retries while it may recover; return None if asked to stop."""
    backoff_seconds, told = _BACKOFF_SECONDS, ""
    while not stop_requested.is_set():
        try:
            return Holdfast(url, **settings)
        except StoreError as error:
            if not error.is_transient:
                raise
            if error.code != told:
                say(f"worker waits until it can use {url}: {error}", err=True)
            told = error.code
        ending = asyncio.ensure_future(stop_requested.wait())
        await asyncio.wait({ending}, timeout=backoff_seconds)
        ending.cancel()
        backoff_seconds = min(2 * backoff_seconds, _BACKOFF_SECONDS_MAX)
    return None


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
    say(f"{name} stops: runs in progress {working.running}, {drain}", err=True)
    await working.stop()
    name = f"worker {working.id}" if working.id else name
    say(f"{name} has stopped: {_counts_text(working)}", err=True)


@contextmanager
def _handle_signals(ask: Callable[[], None]) -> Generator[None]:
    """Call ``ask`` at the first signal to stop, and end the process at the second.

    The loop's own signal handlers do not suffice: a node that blocks the loop blocks them, too.
    """
    loop = asyncio.get_running_loop()
    stop_requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        if stop_requested:
            os.write(
                2,
                b"worker ends at once: its runs continue after its lease has expired\n",
            )
            os._exit(128 + number)
        stop_requested = True
        loop.call_soon_threadsafe(ask)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_soon(code: int) -> None:
    """End the process soon, even if it waits for a thread.

    The threads of nodes are daemons. But Python and the loop wait for threads that a node started
    itself, and for those of ``asyncio.to_thread``.
    """
    timer = threading.Timer(_EXIT_GRACE_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _counts_text(working: Worker) -> str:
    counts = working.counts
    order = (*_COUNTS, *sorted(counts.keys() - {*_COUNTS}))
    return (
        ", ".join(f"{counts[what]} {what}" for what in order if counts[what]) or "no runs claimed"
    )
