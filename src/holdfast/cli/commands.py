"""``holdfast``: all commands under one name."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from holdfast.cli.cost import cost
from holdfast.cli.doctor import doctor
from holdfast.cli.failures import EscapingGroup
from holdfast.cli.run import run
from holdfast.cli.store import store
from holdfast.cli.worker import worker

__all__ = ["main"]


@click.group(cls=EscapingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Durable agent workflows: a run can stop at any moment and continue at the same node."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that it cannot show become escapes
            stream.reconfigure(errors="backslashreplace")


for _command in (run, store, worker, cost, doctor):
    main.add_command(_command)
