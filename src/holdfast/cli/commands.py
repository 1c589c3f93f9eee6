"""``holdfast``: all commands under one name.

Each command is imported when it is used: ``holdfast --help`` must be quick, and the server and the
client are optional.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from holdfast.cli.lazy_group import LazyCommand, LazyGroup

__all__ = ["COMMANDS", "main"]


def _load_alerts() -> click.Command:
    from holdfast.cli.alerts import alerts

    return alerts


def _load_completion() -> click.Command:
    from holdfast.cli.completion import completion

    return completion


def _load_cost() -> click.Command:
    from holdfast.cli.cost import cost

    return cost


def _load_doctor() -> click.Command:
    from holdfast.cli.doctor import doctor

    return doctor


def _load_dev() -> click.Command:
    from holdfast.cli.dev import dev

    return dev


def _load_documents() -> click.Command:
    from holdfast.cli.documents import documents

    return documents


def _load_fleet() -> click.Command:
    from holdfast.cli.fleet import fleet

    return fleet


def _load_init() -> click.Command:
    from holdfast.cli.init import init

    return init


def _load_key() -> click.Command:
    from holdfast.cli.key import key

    return key


def _load_projects() -> click.Command:
    from holdfast.cli.projects import projects

    return projects


def _load_review() -> click.Command:
    from holdfast.cli.review import review

    return review


def _load_run() -> click.Command:
    from holdfast.cli.run import run

    return run


def _load_serve() -> click.Command:
    from holdfast.cli.serve import serve

    return serve


def _load_store() -> click.Command:
    from holdfast.cli.store import store

    return store


def _load_webhook() -> click.Command:
    from holdfast.cli.webhook import webhook

    return webhook


def _load_worker() -> click.Command:
    from holdfast.cli.worker import worker

    return worker


COMMANDS = {
    "alerts": LazyCommand(_load_alerts, "Print alert rules for Prometheus or CloudWatch."),
    "completion": LazyCommand(_load_completion, "Print the script that completes commands."),
    "cost": LazyCommand(_load_cost, "Show what runs and the store cost."),
    "dev": LazyCommand(_load_dev, "Serve on this machine, and start again when code changes."),
    "doctor": LazyCommand(_load_doctor, "Find what is misconfigured, stuck or unserved."),
    "documents": LazyCommand(_load_documents, "Add documents, follow them, and search them."),
    "fleet": LazyCommand(_load_fleet, "Show workers, graphs, and stuck or unserved runs."),
    "init": LazyCommand(_load_init, "Write one file with a workflow that works."),
    "key": LazyCommand(_load_key, "Create, list and revoke API keys."),
    "projects": LazyCommand(_load_projects, "Create and change projects of documents."),
    "review": LazyCommand(_load_review, "List what runs ask people, and decide it."),
    "run": LazyCommand(_load_run, "Start runs, watch them, and act on them."),
    "serve": LazyCommand(_load_serve, "Serve graphs over HTTP, with a worker, until a signal."),
    "store": LazyCommand(_load_store, "Create, describe, check, back up and sweep a store."),
    "webhook": LazyCommand(_load_webhook, "Tell other systems about events of runs."),
    "worker": LazyCommand(_load_worker, "Run graphs, for all tenants, until a signal."),
}
"""All commands, and what the list of them says."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast")
def main() -> None:
    """Durable agent workflows: a run can stop at any moment and continue at the same node."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that it cannot show become escapes
            stream.reconfigure(errors="backslashreplace")
