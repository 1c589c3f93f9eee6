"""``holdfast key rotate``: replaces the key that signs the addresses of callbacks."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example, json_option
from holdfast.cli.text import pretty, say

__all__ = ["rotate"]


@click.command(epilog=example("holdfast key rotate"))
@click.option(
    "--revoke", is_flag=True, help="Drop the old keys: all addresses that exist stop working."
)
@json_option
@with_holdfast()
async def rotate(holdfast: Opened, *, revoke: bool, as_json: bool) -> None:
    """Let a new key sign the addresses of callbacks, for all tenants.

    Addresses that were signed with older keys stay valid until they expire. With --revoke they stop
    working, in every process within a minute.
    """
    if not isinstance(holdfast, Holdfast):
        raise click.UsageError("pass --url: only a process on the store itself rotates this key")
    id = await holdfast.callbacks.rotate_keys(revoke=revoke)
    if as_json:
        click.echo(pretty({"id": id, "older_keys_dropped": revoke}))
        return
    say(f"the key {id} signs from now on" + (", and older keys are dropped" if revoke else ""))
