"""The demo: serves the application with three documents, until Ctrl-C. `make demo` runs it.

One document finishes, one waits for a person, and one fails. Stop the demo at any moment and start
it again: it goes on where it stopped, and its ledger shows that no model call was paid twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import uvicorn

from holdfast import Holdfast, ReviewOptions, Run, RunHandle, WorkerOptions
from holdfast.errors import HoldfastError
from holdfast.server import asgi
from warranty.application import SAMPLES, Application, application
from warranty.documents import Warranty
from warranty.ledger import Ledger, Paid
from warranty.make_documents import LOCKED_PASSWORD
from warranty.settings import settings_from

__all__ = ["main"]

DOCUMENTS = ("kettle.txt", "compressor.pdf", "freezer-locked.pdf")
"""Low risk; high risk by the judgement of the large model; locked by a password."""
_PORT = 8410
_ANSWER_SECONDS = 0.4
# After a kill -9, runs go on after this long. After a Ctrl-C they go on at once.
_WORKER = WorkerOptions(lease=5, drain=10)
_PATIENCE_SECONDS = 30
_LOOK_SECONDS = 0.05
_FOLLOW_SECONDS = 0.5
_ENDED = ("finished", "failed", "cancelled", "expired", "quarantined")


@click.command(help=__doc__)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("warranty-demo"),
    show_default=True,
    help="The folder for everything that the demo writes; delete it to start again.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True)
@click.option("--open/--no-open", "opens", default=True, help="Open the review in a browser.")
def main(data: Path, port: int, *, opens: bool) -> None:
    # A person who names an absolute path may type the printed commands in another folder.
    home = None if data.is_absolute() else Path.cwd()
    data = data.absolute()
    os.environ["WARRANTY_DATA"] = str(data)
    ledger = Ledger(data / "paid.jsonl")
    app = application(settings_from())
    _log_to(data / "demo.log")
    app = replace(app, models=ledger.models(app.models, seconds=_ANSWER_SECONDS))
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_Demo(app, ledger, opens=opens, home=home).serve(_bound(port)))
    except HoldfastError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"\nStopped. {_told(ledger.total())} `make demo` goes on where it stopped.")


def _bound(port: int) -> socket.socket:
    """Return a socket on this port, or on a free one if another program has it, and say so."""
    for wanted in (port, 0):
        on = socket.socket()
        on.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            on.bind(("127.0.0.1", wanted))
        except OSError:
            on.close()
        else:
            if wanted != port:
                click.echo(f"Port {port} is in use: the demo takes {on.getsockname()[1]}.")
            return on
    raise click.ClickException("no port of 127.0.0.1 is free")


def _log_to(path: Path) -> None:
    """Write logs to a file: a document that fails on purpose would hide what the demo prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )


class _Demo:
    """One start of the demo."""

    def __init__(self, app: Application, ledger: Ledger, *, opens: bool, home: Path | None) -> None:
        """Serve an application; printed paths begin at ``home``, or are absolute without it."""
        self._app = app
        self._ledger = ledger
        self._opens = opens
        self._home = home
        self._before = ledger.total()

    async def serve(self, on: socket.socket) -> None:
        # Not by its number: without authentication, a server answers only to this name.
        address = f"http://localhost:{on.getsockname()[1]}"
        async with self._app.open(public_url=address, reviews=ReviewOptions(notifiers=[])) as hf:
            server = uvicorn.Server(
                uvicorn.Config(
                    asgi(hf, [self._app.graph], worker=_WORKER),
                    log_level="warning",
                    timeout_graceful_shutdown=5,
                )
            )
            telling = asyncio.create_task(self._tell(hf, address, server))
            try:
                await server.serve([on])
            finally:
                telling.cancel()
                with suppress(asyncio.CancelledError):
                    await telling

    async def _tell(self, hf: Holdfast, address: str, server: uvicorn.Server) -> None:
        """Add the documents, and say what becomes of them."""
        if self._before.calls:
            click.echo(f"The demo goes on: {_told(self._before)}")
        click.echo(f"Holdfast serves the warranty application at {address}/reviews")
        click.echo(
            f"Everything it writes, logs included, is in {self._path(self._app.settings.data)}\n"
        )
        await _until(hf, lambda: server.started)
        arrivals = self._app.arrivals(hf)
        runs = [await arrivals.add_file(SAMPLES / name) for name in DOCUMENTS]
        rows = [await _settled(hf, run) for run in runs]
        for name, run, row in zip(DOCUMENTS, runs, rows, strict=True):
            click.echo(f"  {name:20} {row.status:9} {await self._outcome(hf, name, run, row)}")
        self._tell_figures(hf)
        self._tell_next(address, rows)
        await self._tell_changes(hf, runs, rows)

    async def _tell_changes(
        self, hf: Holdfast, runs: Sequence[RunHandle[Warranty]], rows: list[Run]
    ) -> None:
        """Print a line each time that a document reaches another state."""
        while True:
            await hf.clock.sleep(_FOLLOW_SECONDS)
            for number, (name, run) in enumerate(zip(DOCUMENTS, runs, strict=True)):
                # What the store cannot tell now, the next look asks again.
                with suppress(HoldfastError):
                    before, row = rows[number], await run.get()
                    if not _is_settled(row) or _place(row) == _place(before):
                        continue
                    outcome = await self._outcome(hf, name, run, row)
                    click.echo(f"  {name:20} {before.status} → {row.status}: {outcome}")
                    rows[number] = row

    async def _outcome(self, hf: Holdfast, name: str, run: RunHandle[Warranty], row: Run) -> str:
        """Return what became of a document, and what a person can do now."""
        if row.status == "finished":
            state = await run.result()
            decided = state.decision
            by = f", {decided.status} by {decided.by}" if decided is not None else ""
            return f"{state.risk} risk, judged by {state.model}{by}; notice {state.notice}"
        if row.status == "failed":
            # Without the name of the call and of the error before it.
            why = row.failure.message.rpartition("UnreadableDocument: ")[2] if row.failure else ""
            retry = [self._holdfast("run", "retry", run.id)]
            if "locked" in name:
                passwords = shlex.quote(self._path(self._app.settings.passwords))
                retry.insert(0, f"echo {LOCKED_PASSWORD} >> {passwords}")
            return _indented(why, *retry)
        page = await hf.reviews.list(run=run.id)
        for entry in page.reviews:
            reviewer = entry.assignees[0] if entry.assignees else "you"
            link = await hf.reviews.link(entry.id, reviewer=reviewer)
            if self._opens and _has_screen():
                webbrowser.open(link)
            decide = self._holdfast("review", "approve", entry.id, "--by", reviewer)
            return _indented("for a person, who decides here:", link, "or here:", decide)
        return f"for {row.reason}"

    def _tell_figures(self, hf: Holdfast) -> None:
        paid = self._ledger.total()
        here = paid.calls - self._before.calls
        click.echo(f"\n{_told(paid)}")
        if self._before.calls:
            saved = (
                f"; {hf.saved.calls} {_were(hf.saved.calls)} answered from the journal, "
                f"which saved ${hf.saved.usd:.6f}"
            )
            click.echo(f"Since this start {_calls(here)} made{saved if hf.saved.calls else ''}.")

    def _tell_next(self, address: str, rows: Sequence[Run]) -> None:
        click.echo("\nTry next:")
        if any(row.status == "waiting" for row in rows):
            click.echo("  open the link, change a value and approve: only the reminder runs")
        for what, command in (
            ("see what is left to decide", f"open {address}/reviews"),
            ("see what each step did and cost", self._holdfast("run", "history", rows[1].id)),
            ("see all runs", self._holdfast("run", "list")),
            ("see the costs, and those of a month", self._warranty("cost")),
            ("add another document", self._warranty("add", self._path(SAMPLES / _MORE))),
        ):
            click.echo(f"  {what}:\n      {command}")
        click.echo("\nCtrl-C stops the demo at any moment; `make demo` goes on where it stopped.")

    def _holdfast(self, *words: str) -> str:
        url = f"sqlite:///{self._path(self._app.settings.data)}/warranty.db"
        command = Path(sys.executable).with_name("holdfast")
        return shlex.join([self._path(command), *words, "--url", url])

    def _warranty(self, *words: str) -> str:
        data = self._path(self._app.settings.data)
        python = self._path(Path(sys.executable))
        package = self._path(Path(__file__).parent.parent)
        return f"WARRANTY_DATA={shlex.quote(data)} PYTHONPATH={shlex.quote(package)} " + shlex.join(
            [python, "-m", "warranty", *words]
        )

    def _path(self, path: Path) -> str:
        """Return a path as short as it can be typed where the demo was started."""
        path, home = path.absolute(), self._home
        return str(path.relative_to(home) if home and path.is_relative_to(home) else path)


_MORE = "washing-machine.pdf"


async def _settled(hf: Holdfast, run: RunHandle[Warranty]) -> Run:
    """Return the row of a run that has ended, or waits for a person."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            row = await run.get()
            if _is_settled(row):
                return row
            await hf.clock.sleep(_LOOK_SECONDS)


def _is_settled(row: Run) -> bool:
    """Return whether a run has ended, or waits for a person."""
    return row.status in _ENDED or row.reason == "review"


def _place(row: Run) -> object:
    """Return what differs as soon as a run is at another place. One may fail a second time."""
    return row.status, row.updated_at if row.status == "failed" else None


async def _until(hf: Holdfast, happened: Callable[[], bool]) -> None:
    while not happened():
        await hf.clock.sleep(_LOOK_SECONDS)


def _told(paid: Paid) -> str:
    """Return what the models cost, for people."""
    return (
        f"{_calls(paid.calls)} paid, ${paid.usd:.6f} at list prices; "
        f"{paid.twice} {_were(paid.twice)} paid twice."
    )


def _calls(number: int) -> str:
    return f"{number} model call{'' if number == 1 else 's'} {_were(number)}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _indented(first: str, *others: str) -> str:
    return "\n".join([first, *(f"      {line}" for line in others)])


def _has_screen() -> bool:
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    main()
