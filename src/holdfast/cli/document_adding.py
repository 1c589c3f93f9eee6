"""``holdfast documents add``: files, folders and addresses become documents of a project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from holdfast.app import Holdfast
from holdfast.cli.document_access import documents_of
from holdfast.cli.document_watching import watch_workflow
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example
from holdfast.cli.targets import FORMS, load_graphs
from holdfast.cli.text import compact, say
from holdfast.display import printable
from holdfast.documents.pipelines import start_pipelines
from holdfast.errors import HoldfastError
from holdfast.model.upload import Upload

__all__ = ["add"]

_WEB = ("http://", "https://")
_S3 = "s3://"
_FILES_MAX = 100_000


class _Source(NamedTuple):
    """One document to add."""

    text: str
    """The path of a file, or an address."""

    @property
    def is_address(self) -> bool:
        return self.text.lower().startswith((*_WEB, _S3))


@click.command(
    epilog=example(
        "holdfast documents add report.pdf --project contracts --server https://holdfast.example",
        "holdfast documents add scans/ https://example.org/terms --project contracts \\",
        "    --graph documents.app:graph --watch",
    )
    + f"\n\n\b\nGraphs look like this:\n{FORMS}"
)
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option("--project", required=True, metavar="ID", help="The project they belong to.")
@click.option("--name", help="The name of the document, if it is only one.  [default: the file's]")
@click.option(
    "--id",
    help="Idempotency key, if it is only one: the same file again goes on, or does nothing.",
)
@click.option(
    "--graph",
    "graphs",
    multiple=True,
    metavar="TARGET",
    help="With a store: the pipeline that projects name, as the worker has it. May be repeated.",
)
@click.option("--watch", is_flag=True, help="Show the progress until they are processed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each document.")
@with_holdfast(tenant_of="the documents belong")
async def add(
    holdfast: Opened,
    *,
    sources: Sequence[str],
    project: str,
    name: str | None,
    id: str | None,
    graphs: Sequence[str],
    watch: bool,
    as_json: bool,
) -> None:
    """Add FILEs to a project, and process them.

    A FILE is a file, a folder (all files below it), an address (http://, https://), whose pages are
    crawled, or an object of S3 (s3://bucket/key) in a bucket that the server permits. The exit code
    is 1 if one cannot be added, or, with --watch, if one cannot be processed.
    """
    if isinstance(holdfast, Holdfast):
        if not graphs:
            raise click.UsageError(
                "on a store, pass --graph TARGET, the pipeline that processes the documents; a "
                "server has its own"
            )
        start_pipelines(holdfast, load_graphs(graphs))
    elif graphs:
        raise click.UsageError("--graph is for a store: the server has its own")
    found = [each for source in sources for each in _expanded(source)]
    if len(found) != 1 and (name is not None or id is not None):
        raise click.UsageError(f"--name and --id are for one document, and there are {len(found)}")
    added: list[Upload] = []
    failed = 0
    for source in found:
        try:
            upload = await _add(holdfast, source, project, name=name, id=id)
        except (HoldfastError, OSError) as error:
            failed += 1
            code = f" [{error.code}]" if isinstance(error, HoldfastError) else ""
            say(f"{source.text}: {error}{code}", err=True)
            continue
        added.append(upload)
        _show(upload, as_json=as_json)
    ended_well = [
        await watch_workflow(holdfast, upload.workflow, as_json=as_json)
        for upload in (added if watch else [])
    ]
    if failed:
        raise click.ClickException(f"{failed} of {len(found)} could not be added")
    if not all(ended_well):
        raise click.exceptions.Exit(1)


def _show(upload: Upload, *, as_json: bool) -> None:
    if as_json:
        click.echo(compact(upload.as_dict()))
        return
    say(upload.document)
    say(f"{upload.name}: document {upload.document}, workflow {upload.workflow}", err=True)


async def _add(
    holdfast: Opened, source: _Source, project: str, *, name: str | None, id: str | None
) -> Upload:
    verbs = documents_of(holdfast)
    given = {"name": name} if name is not None else {}
    if id is not None:
        given["id"] = id
    if not source.is_address:
        if isinstance(holdfast, Holdfast):
            return await verbs.uploads.add_path(project, source.text, **given)
        return await verbs.add(source.text, project=project, **given)
    is_object = source.text.lower().startswith(_S3)
    if isinstance(holdfast, Holdfast):
        kind = "uri" if is_object else "address"
        return await verbs.uploads.add_source(project, **{kind: source.text}, **given)
    send = verbs.add_uri if is_object else verbs.add_address
    return await send(project, source.text, **given)


def _expanded(text: str) -> Iterator[_Source]:
    """Yield the files of a folder, without hidden ones and links; anything else as it is.

    Raises:
        click.ClickException: there is no such file, or the folder has none.
    """
    source = _Source(text)
    if source.is_address:
        yield source
        return
    path = Path(text)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise click.ClickException(f"{printable(text)!s:.200}: {error}") from None
    if not exists:
        raise click.ClickException(f"there is no file {text}")
    if not is_folder:
        yield source
        return
    files = list(_files_below(path))
    if not files:
        raise click.ClickException(f"there are no files in the folder {text}")
    yield from map(_Source, files)


def _files_below(folder: Path) -> Iterator[str]:
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.startswith(".") or os.path.islink(path) or not os.path.isfile(path):
                continue
            count += 1
            if count > _FILES_MAX:
                raise click.ClickException(
                    f"the folder {folder} has more than {_FILES_MAX:,} files: add it in parts"
                )
            yield path
