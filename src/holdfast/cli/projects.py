"""``holdfast projects``: the projects that documents belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.document_access import documents_of
from holdfast.cli.document_text import project_lines, project_list_lines
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example, json_option
from holdfast.cli.search_option import search_option
from holdfast.cli.text import pretty, say
from holdfast.display import printable
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.model.document import Project

__all__ = ["projects"]

F = TypeVar("F", bound=Callable[..., Any])

_TENANT_OF = "the projects belong"
_RETENTION_DAYS_MAX = 36_500


def _settings_options(function: F) -> F:
    """Give a command the options of what a project says about its documents."""
    for option in (
        click.option(
            "--retention-days",
            type=click.IntRange(1, _RETENTION_DAYS_MAX),
            metavar="N",
            help="Delete documents so many days after they were added.  [default: keep them]",
        ),
        click.option("--pipeline", metavar="GRAPH", help="The graph that processes documents."),
        click.option("--ocr-model", metavar="NAME", help="pp-ocrv5, tesseract or textract."),
        click.option("--prompt", "document_prompt", help="What models are told about documents."),
        click.option("--language", metavar="CODE", help="The language of the documents: en, de."),
    ):
        function = option(function)
    return function


@click.group()
def projects() -> None:
    """Create projects of documents, list them, and change them."""


@projects.command(epilog=example("holdfast projects create Contracts --id contracts --language de"))
@click.argument("name")
@click.option("--id", help="The id, and the idempotency key.  [default: a new one]")
@_settings_options
@json_option
@with_holdfast(make=True, tenant_of=_TENANT_OF)
async def create(
    holdfast: Opened, *, name: str, id: str | None, as_json: bool, **given: Any
) -> None:
    """Create the project NAME."""
    created = await documents_of(holdfast).projects.create(name, id=id, **_named(given))
    if as_json:
        click.echo(pretty(created.as_dict()))
        return
    say(created.id)


@projects.command("list", epilog=example("holdfast projects list"))
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Continue where another list ended.")
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def list_projects(holdfast: Opened, *, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the projects of the tenant, the newest first."""
    page = await documents_of(holdfast).projects.list(limit=limit, cursor=cursor)
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in project_list_lines(page.projects):
        click.echo(line)
    if not page.projects:
        click.echo("no projects", err=True)
    if page.cursor is not None:
        say(f"there may be more: --cursor '{page.cursor}'", err=True)


@projects.command(epilog=example("holdfast projects show contracts"))
@click.argument("id")
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def show(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """Show the project ID."""
    _show(await documents_of(holdfast).projects.get(id), as_json=as_json)


@projects.command(epilog=example("holdfast projects update contracts --ocr-model tesseract"))
@click.argument("id")
@click.option("--name", help="The new name.")
@_settings_options
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def update(
    holdfast: Opened, *, id: str, name: str | None, as_json: bool, **given: Any
) -> None:
    """Change the project ID. It applies to what is processed later."""
    changes = _named({"name": name, **given})
    if not changes:
        raise click.UsageError("pass what shall change: --name, --language, --ocr-model and so on")
    _show(await documents_of(holdfast).projects.update(id, **changes), as_json=as_json)


@projects.command(epilog=example("holdfast projects delete contracts --yes"))
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@search_option
@json_option
@with_holdfast(tenant_of=_TENANT_OF)
async def delete(holdfast: Opened, *, id: str, yes: bool, as_json: bool) -> None:
    """Delete the project ID with all of its documents.

    A delete that is interrupted goes on when you repeat it.
    """
    if not yes:
        told = printable(f"delete project {id} with all of its documents?")
        click.confirm(told, abort=True, err=True)
    await documents_of(holdfast).projects.delete(id)
    if as_json:
        click.echo(pretty({"id": id, "deleted": True}))
    else:
        say(f"project {id} is deleted")


def _show(project: Project, *, as_json: bool) -> None:
    if as_json:
        click.echo(pretty(project.as_dict()))
        return
    for line in project_lines(project):
        click.echo(line)


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in given.items() if value is not None}
