"""``holdfast documents``: documents, how far they are processed, and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

import click

from holdfast.app import Holdfast
from holdfast.cli.document_access import (
    documents_of,
    find_segments,
    find_workflow,
    list_workflows,
    load_content,
    retry,
)
from holdfast.cli.document_adding import add
from holdfast.cli.document_text import (
    counts_line,
    document_lines,
    document_list_lines,
    hit_lines,
    segment_lines,
    workflow_lines,
    workflow_list_lines,
)
from holdfast.cli.document_watching import watch
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example, json_lines_option, json_option
from holdfast.cli.progress_line import ProgressLine
from holdfast.cli.search_option import search_option
from holdfast.cli.text import pretty, say
from holdfast.display import printable
from holdfast.documents.reindexing import reindex as reindex_documents
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.errors import DocumentNotFound
from holdfast.model.document import Document, DocumentWorkflowPage, WorkflowStatus
from holdfast.model.segment_search import HITS_MAX, SegmentHit

__all__ = ["documents"]

F = TypeVar("F", bound=Callable[..., Any])

_ID = "0190a5c2-e1f6-7c3d-9b0a-4f5e6d7c8b9a"
_TENANT_OF = "the documents belong"
_limit_option = click.option(
    "--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True
)
_cursor_option = click.option("--cursor", help="Continue where another list ended.")


@click.group()
def documents() -> None:
    """Add documents, see how far they are processed, and search them."""


documents.add_command(add)
documents.add_command(watch)


@documents.command("list", epilog=example("holdfast documents list --project contracts --limit 20"))
@click.option("--project", required=True, metavar="ID", help="The project.")
@_limit_option
@_cursor_option
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def list_documents(
    holdfast: Opened, *, project: str, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List the documents of a project."""
    page = await documents_of(holdfast).list(project, limit=limit, cursor=cursor)
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in document_list_lines(page.documents):
        click.echo(line)
    _say_rest(page.documents, page.cursor, "no documents")


@documents.command(
    epilog=example(
        "holdfast documents status --counts",
        "holdfast documents status --status failed",
        f"holdfast documents status {_ID}",
    )
)
@click.argument("id", required=False)
@click.option("--in-progress", is_flag=True, help="List what is being processed; the default.")
@click.option(
    "--status", type=click.Choice(get_args(WorkflowStatus)), help="List those with this status."
)
@click.option("--counts", is_flag=True, help="Count the workflows by status.")
@_limit_option
@_cursor_option
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def status(
    holdfast: Opened,
    *,
    id: str | None,
    in_progress: bool,
    status: WorkflowStatus | None,
    counts: bool,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """Show how far a document is processed, or what is in progress.

    ID is that of a document or of one of its workflows.
    """
    if [id is not None, in_progress, status is not None, counts].count(True) > 1:
        raise click.UsageError("pass one of ID, --in-progress, --status and --counts")
    if id is not None:
        await _show_workflow(holdfast, id, as_json=as_json)
        return
    if counts:
        found = await documents_of(holdfast).counts()
        click.echo(pretty(found) if as_json else counts_line(found))
        return
    wanted = status or "in_progress"
    page = await list_workflows(holdfast, wanted, limit=limit, cursor=cursor)
    _show_workflows(page, f"no workflows {wanted.replace('_', ' ')}", as_json=as_json)


async def _show_workflow(holdfast: Opened, id: str, *, as_json: bool) -> None:
    workflow = await find_workflow(holdfast, id)
    steps = await documents_of(holdfast).steps(workflow.id)
    if as_json:
        shown = {name: step.as_dict() for name, step in steps.items()}
        click.echo(pretty({"workflow": workflow.as_dict(), "steps": shown}))
        return
    for line in workflow_lines(workflow, steps):
        click.echo(line)


def _show_workflows(page: DocumentWorkflowPage, nothing: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in workflow_list_lines(page.workflows):
        click.echo(line)
    _say_rest(page.workflows, page.cursor, nothing)


@documents.command(
    epilog=example(f"holdfast documents show {_ID}", f"holdfast documents show {_ID} --segment 3")
)
@click.argument("id")
@click.option("--segment", type=click.IntRange(1), metavar="N", help="Show this segment.")
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def show(holdfast: Opened, *, id: str, segment: int | None, as_json: bool) -> None:
    """Show the document ID, or one of its segments with its text.

    With --segment, ID may also be that of a workflow.
    """
    if segment is not None:
        await _show_segment(holdfast, id, segment, as_json=as_json)
        return
    verbs = documents_of(holdfast)
    document: Document = await verbs.get(id)
    page = await verbs.workflows(document=id)
    if as_json:
        workflows = [each.as_dict() for each in page]
        click.echo(pretty({"document": document.as_dict(), "workflows": workflows}))
        return
    for line in document_lines(document, page.workflows):
        click.echo(line)
    _say_rest(page.workflows, page.cursor, "it was never processed")


async def _show_segment(holdfast: Opened, id: str, number: int, *, as_json: bool) -> None:
    workflow = await find_workflow(holdfast, id)
    segment = await documents_of(holdfast).segment(workflow.id, number)
    content = await load_content(holdfast, segment)
    if as_json:
        click.echo(pretty({"segment": segment.as_dict(), "content": content}))
        return
    for line in segment_lines(segment, content):
        click.echo(line)


@documents.command(
    epilog=example(
        "holdfast documents search 'total amount of the invoice'",
        f"holdfast documents search '\"net amount\" tax* -draft' --document {_ID}",
    )
)
@click.argument("text")
@click.option("--project", metavar="ID", help="Search the documents of this project.")
@click.option("--document", metavar="ID", help="Search this document.")
@click.option("--limit", type=click.IntRange(1, HITS_MAX), default=10, show_default=True)
@search_option
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def search(holdfast: Opened, *, text: str, as_json: bool, **given: Any) -> None:
    """Show the segments that answer the question TEXT best.

    A segment needs one of the words; more of them, and rarer ones, come first. "Words in quotes"
    must occur together, -word must not occur, word* is the beginning of a word.
    """
    hits = await find_segments(holdfast, text, **given)
    if as_json:
        click.echo(pretty({"hits": [hit.as_dict() for hit in hits]}))
        return
    names = await _names_of(holdfast, hits)
    for line in hit_lines(hits, names):
        click.echo(line)
    if not hits:
        click.echo("nothing found", err=True)


async def _names_of(holdfast: Opened, hits: list[SegmentHit]) -> dict[str, str]:
    """Return the names of the documents of hits; the index may know one that is deleted."""
    verbs = documents_of(holdfast)
    ids = list(dict.fromkeys(hit.document for hit in hits))

    async def name_of(id: str) -> str:
        try:
            return cast(Document, await verbs.get(id)).file_name
        except DocumentNotFound:
            return "deleted"

    return dict(zip(ids, await asyncio.gather(*map(name_of, ids)), strict=True))


@documents.command("retry", epilog=example(f"holdfast documents retry {_ID} --segment 1201"))
@click.argument("id")
@click.option(
    "--segment",
    type=click.IntRange(1),
    metavar="N",
    help="Analyze only this one again, if its analysis failed.",
)
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def retry_document(holdfast: Opened, *, id: str, segment: int | None, as_json: bool) -> None:
    """Let the processing of ID go on where it failed, or analyze one segment again.

    ID is that of a document or of one of its workflows. What was done is not done again.
    """
    workflow = await find_workflow(holdfast, id)
    await retry(holdfast, workflow, segment)
    if as_json:
        click.echo(pretty({"workflow": workflow.id, "segment": segment, "retried": True}))
    elif segment is None:
        say(f"workflow {workflow.id} goes on where it failed")
    else:
        say(f"segment {segment} of workflow {workflow.id} is analyzed again")


@documents.command(epilog=example(f"holdfast documents delete {_ID} --yes"))
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@search_option
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def delete(holdfast: Opened, *, id: str, yes: bool, as_json: bool) -> None:
    """Delete the document ID with all that was made of it: segments, content, runs.

    A delete that is interrupted goes on when you repeat it.
    """
    if not yes:
        click.confirm(printable(f"delete document {id}?"), abort=True, err=True)
    await documents_of(holdfast).delete(id)
    if as_json:
        click.echo(pretty({"id": id, "deleted": True}))
    else:
        say(f"document {id} is deleted")


@documents.command(epilog=example("holdfast documents reindex"))
@click.option("--document", metavar="ID", help="Index only this document again.")
@search_option
@json_lines_option
@with_holdfast(tenant_of=_TENANT_OF)
async def reindex(holdfast: Opened, *, document: str | None, as_json: bool) -> None:
    """Build the search index of the tenant again from the store.

    Use it after a restore, and if the index is damaged, lost, or new. A search finds what is
    indexed so far. A damaged file is moved aside with the entries of all tenants: index each again.
    """
    if not isinstance(holdfast, Holdfast):
        raise click.UsageError("reindex reads the store: pass --url instead of --server")
    progress = None
    with ProgressLine(as_json=as_json) as line:
        async for progress in reindex_documents(
            holdfast.documents, document=document, tenant=holdfast.tenant
        ):
            told = f"{progress.documents:,} documents, {progress.segments:,} segments indexed"
            if progress.unreadable:
                told += f", {progress.unreadable:,} segments cannot be read"
            line.show(told, progress.as_dict())
    if progress is not None and progress.unreadable:
        raise click.ClickException(f"{progress.unreadable:,} segments cannot be read")


def _say_rest(found: list[Any], cursor: str | None, nothing: str) -> None:
    if not found:
        click.echo(nothing, err=True)
    if cursor is not None:
        say(f"there may be more: --cursor '{cursor}'", err=True)
