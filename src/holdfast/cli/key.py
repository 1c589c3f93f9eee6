"""``holdfast key``: create, list and revoke API keys."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.key_rotation import rotate
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import DURATION, RequiredChoice, example, json_option
from holdfast.cli.text import columns, pretty, say
from holdfast.model.api_key import ANY_TENANT, KEY_ROLES, ApiKey, KeyRole
from holdfast.model.moments import utc_text

__all__ = ["key"]

_HEADINGS = ("ID", "NAME", "TENANT", "ROLE", "CREATED", "EXPIRES", "LAST USED")
_all_tenants_option = click.option(
    "--all-tenants", is_flag=True, help="Every tenant, instead of the one of --tenant."
)


@click.group()
def key() -> None:
    """Create, list and revoke the API keys with which callers use a server."""


key.add_command(rotate)


@key.command(epilog=example("holdfast key create ci --role operator --expires 90d"))
@click.argument("name")
@click.option(
    "--role",
    type=RequiredChoice(KEY_ROLES),
    required=True,
    help="What the key's holder may do.",
)
@click.option("--expires", type=DURATION, help="How long it is valid.  [default: until revoked]")
@_all_tenants_option
@json_option
@with_holdfast(make=True, tenant_of="the key belongs")
async def create(
    holdfast: Opened,
    *,
    name: str,
    role: KeyRole,
    expires: str | None,
    all_tenants: bool,
    as_json: bool,
) -> None:
    """Create an API key and print it. It cannot be shown again."""
    if isinstance(holdfast, Holdfast):
        tenant = ANY_TENANT if all_tenants else holdfast.tenant
        made = await holdfast.keys.create(name, tenant=tenant, role=role, expires=expires)
    else:  # the credentials say which tenant
        acting = ANY_TENANT if all_tenants else None
        made = await holdfast.keys.create(name, tenant=acting, role=role, expires=expires)
    if as_json:
        click.echo(pretty(made.as_dict()))
    else:
        say(
            f"key {made.id}, tenant {made.tenant}, role {made.role}; it cannot be shown again:",
            err=True,
        )
        click.echo(made.secret)


@key.command("list", epilog=example("holdfast key list --all-tenants"))
@_all_tenants_option
@json_option
@with_holdfast(tenant_of="the key belongs")
async def list_keys(holdfast: Opened, *, all_tenants: bool, as_json: bool) -> None:
    """List API keys, without their secrets, the oldest of each tenant first.

    On a server, without --tenant, these are the keys of all tenants that your key is for.
    """
    keys = await holdfast.keys.list(None if all_tenants else holdfast.tenant)
    if as_json:
        click.echo(pretty([each.as_dict() for each in keys]))
    else:
        for line in columns([_HEADINGS, *map(_row, keys)], cut=(6, 4, 5, 1)):
            click.echo(line)


@key.command(epilog=example("holdfast key revoke 5hq3k7mzc2vnyt4x"))
@click.argument("id")
@_all_tenants_option
@json_option
@with_holdfast(tenant_of="the key belongs")
async def revoke(holdfast: Opened, *, id: str, all_tenants: bool, as_json: bool) -> None:
    """Delete the API key ID. Every server refuses it at the latest 5 seconds later.

    It must be a key of --tenant; with --all-tenants it may be any key. On a server, without
    --tenant, it may be a key of all tenants that your key is for.
    """
    await holdfast.keys.revoke(id, tenant=None if all_tenants else holdfast.tenant)
    if as_json:
        click.echo(pretty({"id": id, "revoked": True}))
    else:
        say(f"key {id} is revoked")


def _row(shown: ApiKey) -> Sequence[str]:
    times = (shown.created_at, shown.expires_at, shown.last_used_at)
    return (
        shown.id,
        shown.name,
        shown.tenant,
        shown.role,
        *("-" if each is None else utc_text(each) for each in times),
    )
