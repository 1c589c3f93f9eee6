"""``holdfast webhook``: events of runs that are posted to other systems."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example, json_option
from holdfast.cli.text import columns, pretty, say
from holdfast.model.moments import utc_text
from holdfast.model.webhook import WEBHOOK_EVENTS, Webhook, WebhookDelivery, WebhookEvent
from holdfast.network.addresses import AllowList

__all__ = ["allow_option", "webhook"]

allow_option = click.option(
    "--webhook-allow",
    multiple=True,
    envvar="HOLDFAST_WEBHOOK_ALLOW",
    show_envvar=True,
    metavar="ENTRY",
    help="Permit webhooks to this network (10.1.0.0/16) or host and port (hooks.internal:8443), "
    "although it is not public. May be repeated.",
)


@click.group()
def webhook() -> None:
    """Post events of runs to other systems, and see what became of it."""


@webhook.command(
    epilog=example(
        "holdfast webhook add https://example.org/hooks --event run.paused --event run.failed"
    )
)
@click.argument("address")
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(WEBHOOK_EVENTS),
    help="Post this event. May be repeated.  [default: all]",
)
@click.option("--graph", metavar="NAME", help="Only runs of this graph.")
@allow_option
@json_option
@with_holdfast(make=True, tenant_of="the webhook belongs")
async def add(
    holdfast: Opened,
    *,
    address: str,
    events: Sequence[WebhookEvent],
    graph: str | None,
    webhook_allow: Sequence[str],
    as_json: bool,
) -> None:
    """Post events of the tenant's runs to ADDRESS.

    The secret is shown only now: the receiver verifies signatures with it. Servers and workers
    deliver; those must permit ADDRESS, too, if it is not public.
    """
    if isinstance(holdfast, Holdfast):  # a server has its own list
        holdfast.webhooks.allow = AllowList(webhook_allow)
    added = await holdfast.webhooks.add(address, events=events or WEBHOOK_EVENTS, graph=graph)
    if as_json:
        click.echo(pretty(added.as_dict()))
        return
    say(f"webhook {added.webhook.id} posts to {added.webhook.url}", err=True)
    click.echo(added.secret)


@webhook.command("list", epilog=example("holdfast webhook list"))
@json_option
@with_holdfast(tenant_of="the webhook belongs")
async def list_webhooks(holdfast: Opened, *, as_json: bool) -> None:
    """List the webhooks of the tenant, the oldest first."""
    found = await holdfast.webhooks.list()
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    for line in columns(_webhook_rows(found)):
        click.echo(line)
    if not found:
        click.echo("no webhooks", err=True)


def _webhook_rows(found: Sequence[Webhook]) -> list[tuple[str, ...]]:
    rows = [("ID", "CREATED", "STATE", "GRAPH", "EVENTS", "ADDRESS")] if found else []
    for each in found:
        state = "active" if each.disabled_at is None else "disabled"
        events = "all" if each.events == WEBHOOK_EVENTS else ",".join(each.events)
        created = utc_text(each.created_at)
        rows.append((each.id, created, state, each.graph or "", events, each.url))
    return rows


@webhook.command(epilog=example("holdfast webhook remove wh_0190a5c2e1f67c3d9b0a4f5e6d7c8b9a"))
@click.argument("id")
@json_option
@with_holdfast(tenant_of="the webhook belongs")
async def remove(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """Remove a webhook. Servers and workers stop to deliver to it within 5 s."""
    await holdfast.webhooks.remove(id)
    if as_json:
        click.echo(pretty({"id": id, "removed": True}))
    else:
        say(f"webhook {id} is removed")


@webhook.command(epilog=example("holdfast webhook test wh_0190a5c2e1f67c3d9b0a4f5e6d7c8b9a"))
@click.argument("id")
@json_option
@with_holdfast(tenant_of="the webhook belongs")
async def test(holdfast: Opened, *, id: str, as_json: bool) -> None:
    """Let a server or worker post a test message, and tell what became of it.

    The exit code is 0 if the receiver accepted the message, else 1.
    """
    tested = await holdfast.webhooks.test(id)
    if as_json:
        click.echo(pretty(tested.as_dict()))
    elif tested.state == "pending":
        say("no server or worker has delivered it: does one run?", err=True)
    elif tested.state == "failed":
        say(f"the receiver did not accept it: {tested.error}", err=True)
    else:
        say("the receiver accepted it")
    if tested.state != "delivered":
        raise click.exceptions.Exit(1)


@webhook.command(epilog=example("holdfast webhook deliveries wh_0190a5c2e1f67c3d9b0a4f5e6d7c8b9a"))
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@json_option
@with_holdfast(tenant_of="the webhook belongs")
async def deliveries(holdfast: Opened, *, id: str, limit: int, as_json: bool) -> None:
    """List what became of the last message about each run, the latest first."""
    found = await holdfast.webhooks.deliveries(id, limit=limit)
    if as_json:
        click.echo(pretty([each.as_dict() for each in found]))
        return
    for line in columns(_delivery_rows(found)):
        click.echo(line)
    if not found:
        click.echo("no deliveries", err=True)


def _delivery_rows(found: Sequence[WebhookDelivery]) -> list[tuple[str, ...]]:
    rows = [("UPDATED", "RUN", "EVENT", "STATE", "FAILURES", "ERROR")] if found else []
    for each in found:
        told = (utc_text(each.updated_at), each.run, each.event, each.state, str(each.attempts))
        rows.append((*told, each.error or ""))
    return rows
