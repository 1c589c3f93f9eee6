"""A group that imports a command when it is used: ``holdfast --help`` imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from holdfast.cli.failures import EscapingGroup

__all__ = ["LazyCommand", "LazyGroup"]


class LazyCommand(NamedTuple):
    """What imports a command, and what the list of commands says about it."""

    load: Callable[[], click.Command]
    summary: str


class LazyGroup(EscapingGroup):
    """A group of commands that it knows by name and summary."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self._lazy.get(cmd_name)
        return None if found is None else found.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].summary) for name in sorted(self._lazy)])
