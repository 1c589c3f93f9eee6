"""``holdfast``: all commands under one name."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from holdfast.cli.lazy_group import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "completion": LazyCommand(
        "holdfast.cli.completion", "completion", "Print the script that completes commands."
    ),
    "dev": LazyCommand(
        "holdfast.cli.dev", "dev", "Serve on this machine, and start again when code changes."
    ),
    "init": LazyCommand("holdfast.cli.init", "init", "Write one file with a workflow that works."),
    "run": LazyCommand("holdfast.cli.run", "run", "Start runs, watch them, and act on them."),
    "serve": LazyCommand(
        "holdfast.cli.serve", "serve", "Serve graphs over HTTP, with a worker, until a signal."
    ),
    "store": LazyCommand(
        "holdfast.cli.store", "store", "Create, describe, check, back up and sweep a store."
    ),
    "worker": LazyCommand(
        "holdfast.cli.worker", "worker", "Run graphs, for all tenants, until a signal."
    ),
}
"""Where each command is defined, and its summary."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Durable agent workflows: a run can stop at any moment and continue at the same node."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that it cannot show become escapes
            stream.reconfigure(errors="backslashreplace")
