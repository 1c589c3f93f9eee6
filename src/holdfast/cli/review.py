"""``holdfast review``: what runs ask people, and how they decide."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import DURATION, example, json_option
from holdfast.cli.review_text import decision_text, review_lines, review_list_lines
from holdfast.cli.review_values import changed_values, values_options
from holdfast.cli.text import pretty, say
from holdfast.engine.runs.argument_checks import LIMIT_MAX
from holdfast.model.review import Review, ReviewStatus

__all__ = ["review"]

F = TypeVar("F", bound=Callable[..., Any])

_ID = "doc-42~5f0c1e7a9b3d2468"
_STATUSES = (*get_args(ReviewStatus), "decided")

_by_option = click.option(
    "--by",
    metavar="NAME",
    help="Who acts.  [default: the user of this process; on a server, the holder of the key]",
)
_comment_option = click.option("--comment", default="", help="Why; the node and the trail have it.")
_seen_option = click.option(
    "--seen",
    metavar="HASH",
    help="Refuse it if the review is not as 'review show' showed it with this hash.",
)


def _acting(function: F) -> F:
    """Give a command the options of an action on a review."""
    return click.argument("id")(_by_option(json_option(function)))


@click.group()
def review() -> None:
    """List what runs ask people, and decide it."""


@review.command(
    "list", epilog=example("holdfast review list --mine", "holdfast review list --overdue")
)
@click.option(
    "--mine/--all",
    default=False,
    show_default=True,
    help="Those that you may decide, or those of all people.",
)
@click.option("--assignee", metavar="NAME", help="Those that this person may decide.")
@click.option("--overdue", is_flag=True, help="Those that wait for longer than their reminder.")
@click.option("--status", type=click.Choice(_STATUSES), default="pending", show_default=True)
@click.option("--run", metavar="ID", help="Those of this run.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@click.option("--cursor", help="Continue where another list ended.")
@json_option
@with_holdfast(tenant_of="the reviews belong")
async def list_reviews(
    holdfast: Opened,
    *,
    mine: bool,
    assignee: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """List reviews: pending ones with the oldest first, others with the newest first."""
    if mine and assignee is not None:
        raise click.UsageError("pass either --mine or --assignee, not both")
    if isinstance(holdfast, Holdfast):
        person = _user() if mine else assignee
        page = await holdfast.reviews.list(assignee=person, **given)
    else:
        page = await holdfast.reviews.list(assignee=assignee, mine=mine, **given)
    if as_json:
        click.echo(pretty(page.as_dict()))
        return
    for line in review_list_lines(page.reviews):
        click.echo(line)
    if not page.reviews:
        click.echo("no reviews", err=True)
    if page.cursor is not None:
        say(f"there may be more: --cursor '{page.cursor}'", err=True)


@review.command(epilog=example(f"holdfast review show {_ID}"))
@click.argument("id")
@json_option
@with_holdfast(tenant_of="the review belongs")
async def show(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """Show the review ID: the question, the data, the form, the votes and the trail."""
    found = await holdfast.reviews.get(id)
    if as_json:
        click.echo(pretty(found.as_dict()))
        return
    for line in review_lines(found):
        click.echo(line)


@review.command(
    epilog=example(
        f"holdfast review approve {_ID} --comment 'looks right'",
        f"holdfast review approve {_ID} --set months=12",
    )
)
@_comment_option
@values_options
@_seen_option
@_acting
@with_holdfast(tenant_of="the review belongs")
async def approve(
    holdfast: Opened,
    *,
    id: str,
    by: str | None,
    comment: str,
    values: Any,
    assigned: Mapping[str, str],
    seen: str | None,
    as_json: bool,
) -> None:
    """Approve the review ID, with changed values of its form if you give some.

    If it needs several votes, this is one of them. --set changes what 'review show' shows; it is
    refused if the review is changed meanwhile.
    """
    if assigned:
        found = await holdfast.reviews.get(id)
        values, seen = changed_values(found, values, assigned), seen or found.rendered
    decided = await holdfast.reviews.approve(
        id, comment=comment, values=values, seen=seen, **_actor(holdfast, by)
    )
    _report(decided, as_json=as_json)


@review.command(epilog=example(f"holdfast review reject {_ID} --comment 'the date is missing'"))
@_comment_option
@_seen_option
@_acting
@with_holdfast(tenant_of="the review belongs")
async def reject(
    holdfast: Opened, *, id: str, by: str | None, comment: str, seen: str | None, as_json: bool
) -> None:
    """Reject the review ID. If it needs several votes, this is one of them."""
    decided = await holdfast.reviews.reject(id, comment=comment, seen=seen, **_actor(holdfast, by))
    _report(decided, as_json=as_json)


@review.command(epilog=example(f"holdfast review withdraw {_ID} --comment 'ordered twice'"))
@_comment_option
@_acting
@with_holdfast(tenant_of="the review belongs")
async def withdraw(
    holdfast: Opened, *, id: str, by: str | None, comment: str, as_json: bool
) -> None:
    """Withdraw the review ID: its run goes on without the decision of a reviewer."""
    decided = await holdfast.reviews.withdraw(id, comment=comment, **_actor(holdfast, by))
    _report(decided, as_json=as_json)


@review.command(epilog=example(f"holdfast review claim {_ID}"))
@click.option("--take-over", is_flag=True, help="Take it from the reviewer who has claimed it.")
@_acting
@with_holdfast(tenant_of="the review belongs")
async def claim(
    holdfast: Opened, *, id: str, by: str | None, take_over: bool, as_json: bool
) -> None:
    """Claim the review ID, so that no other reviewer decides it."""
    claimed = await holdfast.reviews.claim(id, take_over=take_over, **_actor(holdfast, by))
    _report(claimed, f"review {id} is claimed by {claimed.claimed_by}", as_json=as_json)


@review.command(epilog=example(f"holdfast review release {_ID}"))
@_acting
@with_holdfast(tenant_of="the review belongs")
async def release(holdfast: Opened, *, id: str, by: str | None, as_json: bool) -> None:
    """Release the review ID that you have claimed."""
    released = await holdfast.reviews.release(id, **_actor(holdfast, by))
    _report(released, f"review {id} is released", as_json=as_json)


@review.command(epilog=example(f"holdfast review reassign {_ID} --to bob@example.com"))
@click.option(
    "--to", "people", multiple=True, required=True, metavar="NAME", help="May be repeated."
)
@click.option("--force", is_flag=True, help="Although it is assigned to others.")
@_comment_option
@_acting
@with_holdfast(tenant_of="the review belongs")
async def reassign(
    holdfast: Opened,
    *,
    id: str,
    by: str | None,
    people: Sequence[str],
    force: bool,
    comment: str,
    as_json: bool,
) -> None:
    """Let other people decide the review ID."""
    changed = await holdfast.reviews.reassign(
        id, to=people, comment=comment, force=force, **_actor(holdfast, by)
    )
    told = f"review {id} is assigned to {', '.join(changed.assignees)}"
    _report(changed, told, as_json=as_json)


@review.command(epilog=example(f"holdfast review comment {_ID} 'I asked the dealer'"))
@_acting
@click.argument("text")
@with_holdfast(tenant_of="the review belongs")
async def comment(holdfast: Opened, *, id: str, text: str, by: str | None, as_json: bool) -> None:
    """Add a comment, TEXT, to the review ID."""
    changed = await holdfast.reviews.comment(id, text=text, **_actor(holdfast, by))
    _report(changed, f"review {id} has the comment", as_json=as_json)


@review.command(epilog=example(f"holdfast review edit {_ID} --set months=12"))
@values_options
@_seen_option
@_acting
@with_holdfast(tenant_of="the review belongs")
async def edit(
    holdfast: Opened,
    *,
    id: str,
    by: str | None,
    values: Any,
    assigned: Mapping[str, str],
    seen: str | None,
    as_json: bool,
) -> None:
    """Change values of the review ID. Votes that were cast before do not count any more."""
    if values is msgspec.UNSET and not assigned:
        raise click.UsageError("pass --set NAME=VALUE or --values FILE")
    if assigned:
        found = await holdfast.reviews.get(id)
        values, seen = changed_values(found, values, assigned), seen or found.rendered
    changed = await holdfast.reviews.edit(id, values=values, seen=seen, **_actor(holdfast, by))
    _report(changed, f"review {id} has the new values", as_json=as_json)


@review.command(
    epilog=example(f"holdfast review link {_ID} --reviewer ana@example.com --expires 2d")
)
@click.argument("id")
@click.option(
    "--reviewer",
    metavar="NAME",
    help="Who decides with it.  [default: the user of this process; on a server, the holder of "
    "the key]",
)
@click.option("--expires", type=DURATION, help="How long it is valid.  [default: as the review]")
@json_option
@with_holdfast(tenant_of="the review belongs")
async def link(
    holdfast: Opened, *, id: str, reviewer: str | None, expires: str | None, as_json: bool
) -> None:
    """Print a link with which one reviewer opens and decides the review ID.

    On a store, HOLDFAST_PUBLIC_URL must be the address of the server. Who has the link can decide:
    pass it on as you would pass on a password.
    """
    if isinstance(holdfast, Holdfast):
        person = _user() if reviewer is None else reviewer
        url = await holdfast.reviews.link(id, reviewer=person, expires=expires)
    else:
        url = await holdfast.reviews.link(id, reviewer=reviewer, expires=expires)
    click.echo(pretty({"id": id, "url": url}) if as_json else url)


def _actor(holdfast: Opened, by: str | None) -> dict[str, Any]:
    """Return the argument that says who acts; a server knows the holder of a key."""
    if by is None and isinstance(holdfast, Holdfast):
        by = _user()
    return {"by": by}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise click.ClickException("the user of this process has no name: pass --by NAME") from None


def _report(changed: Review, text: str | None = None, *, as_json: bool) -> None:
    """Print what became of a review, for people or for programs."""
    if as_json:
        click.echo(pretty(changed.as_dict()))
    elif text is not None:
        say(text)
    elif changed.decision is not None:
        say(f"review {changed.id} is {decision_text(changed.decision)}")
    else:
        votes = f"{len(changed.votes)} of {changed.quorum} votes"
        say(f"review {changed.id} has your vote; it is pending: {votes}")
