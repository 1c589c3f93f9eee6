"""``holdfast completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from holdfast.cli.parameters import RequiredChoice, example

__all__ = ["completion"]

_VARIABLE = "_HOLDFAST_COMPLETE"


@click.command(
    epilog=example(
        'eval "$(holdfast completion bash)"',
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
)
@click.argument("shell", type=RequiredChoice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and their values in a SHELL."""
    found = get_completion_class(shell)
    if found is None:  # pragma: no cover
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(context.find_root().command, {}, "holdfast", _VARIABLE).source())
