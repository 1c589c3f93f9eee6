"""The command line of the application: ``python -m warranty``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from warranty.application import Application, application, prepare
from warranty.arrivals import FolderWatch, InvalidArrival
from warranty.costs import cost_report

_LOOK_SECONDS = 2.0


def _open() -> Application:
    try:
        return application()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except (HoldfastError, InvalidArrival, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("stopped; runs go on when a worker starts again")


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--tenant", help="Whose documents they are.")
def add(files: tuple[str, ...], tenant: str | None) -> None:
    """Add documents. A worker handles them: `python -m warranty work`."""
    app = _open()

    async def work() -> None:
        async with app.open() as hf:
            for name in files:
                run = await app.arrivals(hf).add_file(Path(name), tenant=tenant)
                click.echo(f"{run.id}  {name}{'  (known)' if run.repeated else ''}")

    _run(work())


@main.command()
def samples() -> None:
    """Add the sample documents."""
    app = _open()

    async def work() -> None:
        async with app.open() as hf:
            for name, run in (await prepare(hf, app)).items():
                click.echo(f"{run}  {name}")

    _run(work())


@main.command()
@click.argument("file", type=click.File())
def event(file: Any) -> None:
    """Add the objects of an S3 event, which is a file with JSON, or `-`."""
    app = _open()

    async def work() -> None:
        try:
            announced = json.load(file)
        except ValueError as error:
            raise click.ClickException(f"the event must be JSON: {error}") from None
        async with app.open() as hf:
            for run in await app.arrivals(hf).add_s3_event(announced):
                click.echo(f"{run.id}{'  (known)' if run.repeated else ''}")

    _run(work())


@main.command()
@click.option(
    "--watch",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="Also add the files that are dropped into this folder.",
)
def work(folder: str | None) -> None:
    """Handle documents until Ctrl-C."""
    app = _open()

    async def serve() -> None:
        async with app.open() as hf, hf.worker([app.graph]):
            click.echo(f"working on {app.settings.store_url}; Ctrl-C stops")
            await _watch(hf, app, None if folder is None else Path(folder))

    _run(serve())


async def _watch(hf: Holdfast, app: Application, folder: Path | None) -> None:
    if folder is None:
        await asyncio.Event().wait()
        return
    watch, arrivals, clock = FolderWatch(folder), app.arrivals(hf), SystemClock()
    while True:
        for run in await watch.look(arrivals):
            click.echo(f"{run.id}{'  (known)' if run.repeated else ''}")
        await clock.sleep(_LOOK_SECONDS)


@main.command()
@click.option("--tenant", help="Whose documents to count.")
@click.option("--per-day", default=500, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cost(tenant: str | None, per_day: int, as_json: bool) -> None:
    """Print what the documents of this store cost, before and after, and the month."""
    app = _open()

    async def work() -> None:
        async with app.open() as hf:
            report = await cost_report(hf, app, tenant=tenant, per_day=per_day)
        click.echo(json.dumps(report.as_dict(), indent=2) if as_json else str(report))

    _run(work())


if __name__ == "__main__":
    main(prog_name="warranty")
