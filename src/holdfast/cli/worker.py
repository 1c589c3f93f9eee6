"""``holdfast worker``: a worker as a process of its own, until somebody asks it to end."""

from __future__ import annotations

import asyncio
import logging
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
from holdfast.cli.failures import showing_errors
from holdfast.cli.opening import common_options
from holdfast.cli.parameters import example
from holdfast.cli.targets import FORMS, load_graphs, load_named
from holdfast.cli.text import say
from holdfast.engine.worker.worker import Worker, WorkerOptions
from holdfast.errors import StoreError
from holdfast.graph import Graph
from holdfast.model.limits import PayloadLimits

__all__ = ["worker"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long the process has to end after the drain, before it is ended.
_FAREWELL_SECONDS = 3.0
# How long to wait before a store is opened again that may recover: longer and longer.
_TROUBLE_SECONDS = 1.0
_TROUBLE_SECONDS_MAX = 30.0
_DEFAULTS = WorkerOptions()
_EPILOG = (
    f"\b\nA target looks so:\n{FORMS}\n\n"
    + example(
        "export HOLDFAST_URL=sqlite:///runs.db",
        "holdfast worker shop.flows --concurrency 20",
        "holdfast worker shop.flows --models shop.models:MODELS --quotas shop.models:QUOTAS",
    )
    + "\n\nSIGTERM or SIGINT (Ctrl-C): it claims nothing more, lets nodes run on for a while, "
    "releases every run and ends with exit code 0. A second one ends it at once."
)


@click.command(epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@common_options
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=_DEFAULTS.concurrency,
    show_default=True,
    help="How many runs it drives at once.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="POOL",
    help="Take runs of this pool; may be given several times. '' is the pool without a name, which "
    "is served if none is given.",
)
@click.option(
    "--models",
    metavar="TARGET",
    help="A dict: the models that nodes can ask, by name (package.module:attribute).",
)
@click.option(
    "--quotas", metavar="TARGET", help="A dict: the quotas of these models, by the same names."
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=_DEFAULTS.lease_seconds,
    show_default=True,
    help="How long after its death others take over what it held.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.drain_seconds,
    show_default=True,
    help="How long nodes may run on when it is asked to end.",
)
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="How often it asks for work when there was none.  [default: what suits the store]",
)
@click.option(
    "--hold-seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.hold_seconds,
    show_default=True,
    help="Up to this it waits in place for a sleep, or for another attempt; longer ones pause the "
    "run.",
)
@click.option(
    "--resumes-max",
    type=click.IntRange(min=1),
    default=_DEFAULTS.resumes_max,
    show_default=True,
    help="After so many failed resumes in a row, or workers lost in a row, a run is quarantined.",
)
def worker(
    targets: Sequence[str],
    url: str,
    limits: PayloadLimits | None,
    user_key: bytes | None,
    concurrency: int,
    pools: Sequence[str],
    models: str | None,
    quotas: str | None,
    lease_seconds: float,
    drain_seconds: float,
    poll_seconds: float | None,
    hold_seconds: float,
    resumes_max: int,
) -> None:
    """Run the graphs of the TARGETs, for all tenants, until asked to end."""
    with showing_errors():
        graphs = load_graphs(targets)
        means = {
            "models": None if models is None else load_named(models),
            "quotas": None if quotas is None else load_named(quotas),
            "limits": limits,
            "user_key": user_key,
        }
        options = WorkerOptions(
            concurrency=concurrency,
            pools=[pool or None for pool in pools] or _DEFAULTS.pools,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
            poll_seconds=poll_seconds,
            hold_seconds=hold_seconds,
            resumes_max=resumes_max,
        )
        # Does nothing if one of the modules has set up its own.
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        asyncio.run(_work(url, graphs, options, means))


async def _work(
    url: str, graphs: Sequence[Graph], options: WorkerOptions, means: Mapping[str, Any]
) -> None:
    asked = asyncio.Event()
    with _asked_to_end(asked.set):
        opened = await _opened(url, means, asked)
        if opened is None:
            return
        async with opened as holdfast:
            working = holdfast.worker(graphs, options=options)
            if not await _started(working, asked):
                return
            names = ", ".join(sorted({graph.name for graph in graphs}))
            if working.id:
                say(f"worker {working.id} runs {names} on {url}", err=True)
            else:  # its log has said why
                say(f"worker waits until it can use {url}", err=True)
            broken = await _until_asked(working, asked)
            drain = f"{options.drain_seconds:g} seconds"
            say(
                f"worker {working.id} leaves: runs in hand {working.running}, drain {drain}",
                err=True,
            )
            await working.stop()
            _end_soon(0 if broken is None else 1)
            say(f"worker {working.id} has left: {_told(working)}", err=True)
            sys.stdout.flush()
            await holdfast.close()
            if broken is not None:
                raise broken


async def _opened(url: str, means: Mapping[str, Any], asked: asyncio.Event) -> Holdfast | None:
    """Open the store, again and again where it may recover; return None if asked to end."""
    pause, told = _TROUBLE_SECONDS, ""
    while not asked.is_set():
        try:
            return Holdfast(url, **means)
        except StoreError as error:
            if not error.may_pass:
                raise
            if error.code != told:
                say(f"worker waits until it can use {url}: {error}", err=True)
            told = error.code
        ending = asyncio.ensure_future(asked.wait())
        await asyncio.wait({ending}, timeout=pause)
        ending.cancel()
        pause = min(2 * pause, _TROUBLE_SECONDS_MAX)
    return None


async def _started(working: Worker, asked: asyncio.Event) -> bool:
    """Start a worker; return False if it was asked to end before it had started."""
    starting, ending = asyncio.ensure_future(working.start()), asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        starting.cancel()
        ending.cancel()


async def _until_asked(working: Worker, asked: asyncio.Event) -> StoreError | None:
    """Wait until the process is asked to end; return the error if the store went away instead."""
    ending, broken = asyncio.ensure_future(asked.wait()), asyncio.ensure_future(working.broken())
    try:
        await asyncio.wait((ending, broken), return_when=asyncio.FIRST_COMPLETED)
        return broken.result() if broken.done() and not ending.done() else None
    finally:
        ending.cancel()
        broken.cancel()


@contextmanager
def _asked_to_end(ask: Callable[[], None]) -> Generator[None]:
    """Hand on the first signal to end, and end the process at the second.

    The loop's own handlers would not do: a node that blocks the loop would block them, too.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os.write(2, b"worker ends at once: its lease has to lapse before others go on\n")
            os._exit(128 + number)
        asked = True
        loop.call_soon_threadsafe(ask)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_soon(code: int) -> None:
    """End the process in a moment, even if it waits for a thread.

    Nodes' threads are not waited for, but those that a node has made itself would be, and those of
    ``asyncio.to_thread``: by the loop when it ends, and by Python.
    """
    timer = threading.Timer(_FAREWELL_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _told(working: Worker) -> str:
    told = [f"{count} {what}" for what, count in sorted(working.counts.items()) if count]
    return ", ".join(told) or "there was nothing to do"
