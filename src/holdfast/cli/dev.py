"""``holdfast dev``: a server for one's own machine that starts again when the code changes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import click
import msgspec

from holdfast.cli.example_input import example_input
from holdfast.cli.failures import show_errors
from holdfast.cli.logs import LOG_LEVELS, configure_logging
from holdfast.cli.outage import answer_outage
from holdfast.cli.parameters import check_store_url, example
from holdfast.cli.reloading import run_reloading
from holdfast.cli.serve import Serving, address_of, bind, run_server
from holdfast.cli.server_options import options_of
from holdfast.cli.targets import FORMS, load_dict, load_graphs, load_review_options
from holdfast.cli.text import say
from holdfast.cli.worker_options import WorkerSettings
from holdfast.display import printable
from holdfast.engine.worker.options import WorkerOptions
from holdfast.model.program import Program
from holdfast.redaction import without_credentials

__all__ = ["dev"]

_REASON_CHARS_MAX = 1000
_PIPE_BYTES = 64 * 1024
_FOLDER = Path(".holdfast")
_STORE = f"sqlite:///{_FOLDER}/dev.db"
# After a kill, runs continue soon. A reload interrupts nodes that last longer than the drain.
_WORKER = WorkerOptions(lease=10, drain=2)
_EPILOG = (
    f"\b\nTargets look like this:\n{FORMS}\n\n"
    + example("holdfast init app.py", "holdfast dev app.py")
    + "\n\nRuns survive a reload: they resume with the new code."
)


@click.command(epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option(
    "--url",
    default=_STORE,
    show_default=True,
    callback=check_store_url,
    metavar="URL",
    help="The store's address; HOLDFAST_URL is not used.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8400, show_default=True, help="0 is any."
)
@click.option("--models", metavar="TARGET", help="The models that nodes can ask: a dict by name.")
@click.option("--quotas", metavar="TARGET", help="The quotas of these models.")
@click.option("--reviews", metavar="TARGET", help="How reviewers are notified: a ReviewOptions.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Show logs from this level on.")
@click.option("--fd", type=int, hidden=True)
@click.option("--reason-fd", type=int, hidden=True)
def dev(
    targets: Sequence[str],
    url: str,
    port: int,
    models: str | None,
    quotas: str | None,
    reviews: str | None,
    log_level: str | None,
    fd: int | None,
    reason_fd: int | None,
) -> None:
    """Serve the graphs of the TARGETs on this machine, and start again when the code changes.

    The store is a file in the folder .holdfast, unless --url names another.
    """
    if fd is None or reason_fd is None:
        with show_errors():
            _supervise(targets, url, port)
        return
    _stop_with_parent()
    with _tell_reason(reason_fd, targets), show_errors():
        configure_logging(log_level, "color" if sys.stderr.isatty() else "text")
        settings = WorkerSettings(
            _WORKER,
            {
                "models": None if models is None else load_dict(models),
                "quotas": None if quotas is None else load_dict(quotas),
                "reviews": None if reviews is None else load_review_options(reviews),
            },
        )
        graphs = load_graphs(targets)
        serving = Serving(
            url=url,
            graphs=graphs,
            settings=settings,
            options=options_of(),
            host="127.0.0.1",
            port=port,
            with_worker=True,
            on_open=partial(_show_examples, graphs, url),
        )
        run_server(serving, socket(fileno=fd))


def _supervise(targets: Sequence[str], url: str, port: int) -> None:
    """Run the server in a child, on a socket of this process: a reload refuses no connection."""
    on = bind("127.0.0.1", port, options_of())
    if url == _STORE:
        _make_folder()
    say(f"dev serves {', '.join(targets)} at {address_of(on)}; Ctrl-C ends it", err=True)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    pass_fds = [on.fileno(), writing]
    command = [sys.executable, "-m", "holdfast", *sys.argv[1:]]
    command += ["--fd", str(on.fileno()), "--reason-fd", str(writing)]
    folders = {Path.cwd(), *(Path(file).resolve().parent for file in _files_of(targets))}

    def answer(code: int) -> AbstractContextManager[None]:
        return answer_outage(on, _told_reason(reading) or f"the server ended with code {code}")

    with on:
        run_reloading(command, folders=sorted(folders), pass_fds=pass_fds, while_ended=answer)


@contextmanager
def _tell_reason(fd: int, targets: Sequence[str]) -> Generator[None]:
    """Tell the process that supervises this one why it ends, for those who send requests."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, click.ClickException)
        told = error.message if known else f"{type(error).__name__}: {error}"
        # A message with a traceback ends with the error.
        last = printable(told.strip().rpartition("\n")[2])[:_REASON_CHARS_MAX]
        reason = f"{', '.join(targets)} cannot be loaded: {without_credentials(last)}\n"
        os.write(fd, reason.encode(errors="replace"))
        raise


def _told_reason(fd: int) -> str:
    """Return what the child told before it ended; nothing if it was killed."""
    try:
        told = os.read(fd, _PIPE_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
    # The children before it may have told something as well.
    return told.rstrip("\n").rpartition("\n")[2]


def _files_of(targets: Sequence[str]) -> Iterator[str]:
    for target in targets:
        source = target.partition(":")[0]
        if source.endswith(".py"):
            yield source


def _make_folder() -> None:
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / ".gitignore").write_text("*\n")


def _stop_with_parent() -> None:
    """Ask this process to stop when the one that supervises it has ended."""

    def wait() -> None:
        # Not a buffered read: its lock would be held at the end of the process.
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _show_examples(graphs: Sequence[Program], url: str, address: str) -> None:
    """Print how to start the graphs, to answer them and to watch them."""
    for graph in graphs:
        body = {"graph": graph.name, "id": f"{graph.name}-1", "input": example_input(graph)}
        say(f"start {graph.name}:", err=True)
        say(f"  {_curl(f'{address}/v1/runs', body)}", err=True)
        for name in sorted(graph.signals):
            path = f"{address}/v1/runs/{graph.name}-1/signals"
            say(f"  {_curl(path, {'name': name, 'payload': True})}", err=True)
    say("watch a run:", err=True)
    say(f"  holdfast run watch {graphs[0].name}-1 --url {url}", err=True)


def _curl(address: str, body: dict[str, Any]) -> str:
    shown = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl {address} -H 'content-type: application/json' -d {shown}"
