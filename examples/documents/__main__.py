"""The command line of the application: ``python -m documents``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from documents.application import Application, application
from documents.arrivals import DEFAULT_PROJECT, Arrivals, FolderWatch
from documents.entities import find_entity
from documents.processing import Processing
from documents.shelf import load_json
from documents.upkeep import end_abandoned
from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.documents.pipelines import start_pipelines
from holdfast.documents.retrying import retry_workflow
from holdfast.errors import HoldfastError
from holdfast.model.document import DocumentWorkflow

_LOOK_SECONDS = 2.0
_LOOKS_PER_UPKEEP = 30
_TENANT = click.option("--tenant", default="default", show_default=True, help="Whose documents.")
_WORKFLOW = click.option("--workflow", help="One of its workflows.  [default: the newest]")


def _open() -> Application:
    try:
        return application()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except (HoldfastError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("stopped; documents go on when a worker starts again")


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE|FOLDER|ADDRESS…")
@click.option("--project", default=DEFAULT_PROJECT, show_default=True, help="Its project.")
@_TENANT
def add(sources: tuple[str, ...], project: str, tenant: str) -> None:
    """Add documents. A worker handles them: `python -m documents work`.

    What cannot be added does not keep the rest from being added; then the exit code is 1.
    """
    app = _open()

    async def work() -> None:
        async with app.open(tenant=tenant) as hf:
            start_pipelines(hf, [app.graph])
            arrivals = Arrivals(hf, project)
            await arrivals.prepare()
            found = [each for source in sources for each in _expanded(source)]
            failed = 0
            for each in found:
                try:
                    if isinstance(each, Path):
                        added = await arrivals.add_file(each)
                    else:
                        added = await arrivals.add_address(each)
                except (HoldfastError, OSError) as error:
                    failed += 1
                    click.echo(f"{each}: {error}", err=True)
                    continue
                click.echo(f"{added.document}  {each}")
            if failed:
                raise click.ClickException(f"{failed} of {len(found)} could not be added")

    _run(work())


@main.command()
@click.option(
    "--watch",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also add the files that are dropped into this folder.",
)
@click.option("--project", default=DEFAULT_PROJECT, show_default=True, help="Their project.")
@_TENANT
def work(folder: Path | None, project: str, tenant: str) -> None:
    """Handle documents until Ctrl-C."""
    app = _open()

    async def serve() -> None:
        async with app.open(tenant=tenant) as hf, hf.worker([app.graph]):
            start_pipelines(hf, [app.graph])
            click.echo(f"working on {app.settings.store_url}; Ctrl-C stops")
            arrivals = Arrivals(hf, project)
            if folder is not None:
                await arrivals.prepare()
            await _look_after(hf, arrivals, None if folder is None else FolderWatch(folder))

    _run(serve())


async def _look_after(hf: Holdfast, arrivals: Arrivals, watch: FolderWatch | None) -> None:
    """Add dropped files, and look now and then what was left behind."""
    clock, looks = SystemClock(), 0
    while True:
        if watch is not None:
            for added in await watch.look(arrivals):
                click.echo(f"{added.document}  {added.name}")
        if looks % _LOOKS_PER_UPKEEP == 0:
            await hf.documents.uploads.sweep()
            for workflow in await end_abandoned(hf):
                click.echo(f"{workflow}  failed: its run has ended")
        looks += 1
        await clock.sleep(_LOOK_SECONDS)


@main.command()
@click.argument("document", required=False)
@_WORKFLOW
@_TENANT
def status(document: str | None, workflow: str | None, tenant: str) -> None:
    """Print the steps of a document, or how many documents there are in each status."""
    app = _open()

    async def work() -> None:
        async with app.open(tenant=tenant) as hf:
            if document is None:
                for name, number in (await hf.documents.counts()).items():
                    click.echo(f"{name:12} {number:,}")
                return
            found = await _workflow_of(hf, document, workflow)
            click.echo(f"{found.file_name}: {found.status}{_after(found.error)}")
            for step in (await hf.documents.steps(found.id)).values():
                click.echo(f"  {step.label:26} {step.status}{_after(step.error)}")

    _run(work())


@main.command()
@click.argument("document")
@click.option(
    "--segment",
    type=click.IntRange(1),
    help="Only analyse this segment again, if its analysis failed.",
)
@_WORKFLOW
@_TENANT
def retry(document: str, segment: int | None, workflow: str | None, tenant: str) -> None:
    """Go on with a document at the step that failed, or analyse one segment again."""
    app = _open()

    async def work() -> None:
        async with app.open(tenant=tenant) as hf:
            found = await _workflow_of(hf, document, workflow)
            await retry_workflow(hf, found.id, segment=segment)
            click.echo(f"{found.id} goes on")

    _run(work())


@main.command()
@click.argument("document")
@_WORKFLOW
@_TENANT
def show(document: str, workflow: str | None, tenant: str) -> None:
    """Print the summary of a document, as JSON."""
    app = _open()

    async def work() -> None:
        async with app.open(tenant=tenant) as hf:
            found = await _workflow_of(hf, document, workflow)
            state = await _state_of(hf, app, found)
            if not state.summary:
                raise click.ClickException("it has no summary yet")
            summary = await load_json(hf.documents.files, state.summary, tenant=tenant)
            click.echo(json.dumps(summary, ensure_ascii=False, indent=2))

    _run(work())


@main.command()
@click.argument("document")
@click.option("--entity", help="Its name.  [default: the entities that are named most]")
@_WORKFLOW
@_TENANT
def graph(document: str, entity: str | None, workflow: str | None, tenant: str) -> None:
    """Print what a document says about an entity, as JSON: its segments and its relations."""
    app = _open()

    async def work() -> None:
        async with app.open(tenant=tenant) as hf:
            found = await _workflow_of(hf, document, workflow)
            state = await _state_of(hf, app, found)
            if not state.graph:
                raise click.ClickException("it has no graph yet")
            load = partial(load_json, hf.documents.files, tenant=tenant)
            if entity is None:
                index = await load(state.graph)
                del index["parts"]
                click.echo(json.dumps(index, ensure_ascii=False, indent=2))
                return
            facts = await find_entity(load, state.graph, entity)
            if facts is None:
                raise click.ClickException(f"the document does not name {entity!r:.200}")
            click.echo(json.dumps(asdict(facts), ensure_ascii=False, indent=2))

    _run(work())


def _expanded(source: str) -> Sequence[str | Path]:
    """Return the files of a folder; an address or a file as it is."""
    if "://" in source:
        return [source]
    path = Path(source)
    if not path.exists():
        raise click.ClickException(f"there is no file {str(path)!r:.200}")
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink())


async def _workflow_of(hf: Holdfast, document: str, workflow: str | None) -> DocumentWorkflow:
    if workflow is None:
        workflow = (await hf.documents.get(document)).workflow
    if workflow is None:
        raise click.ClickException("the document was never processed")
    return await hf.documents.workflow(workflow)


def _run_of(workflow: DocumentWorkflow) -> str:
    if workflow.execution_arn is None:
        raise click.ClickException("no worker has begun with it yet: python -m documents work")
    return workflow.execution_arn


async def _state_of(hf: Holdfast, app: Application, workflow: DocumentWorkflow) -> Processing:
    return await hf.run(_run_of(workflow), graph=app.graph).state()


def _after(error: str | None) -> str:
    return f": {error}" if error else ""


if __name__ == "__main__":
    main(prog_name="documents")
