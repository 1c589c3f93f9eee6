"""The options of commands that run a worker: ``holdfast worker``, ``serve`` and ``dev``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click

from holdfast.cli.failures import show_errors
from holdfast.cli.logs import LOG_FORMATS, LOG_LEVELS
from holdfast.cli.parameters import DURATION
from holdfast.cli.search_option import search_option
from holdfast.cli.targets import load_dict, load_review_options
from holdfast.documents.search_opening import SearchChoice
from holdfast.engine.worker.options import WorkerOptions
from holdfast.model.durations import duration_text
from holdfast.model.payload_limits import PayloadLimits

__all__ = ["WorkerSettings", "log_options", "worker_options"]

_DEFAULTS = WorkerOptions()


class WorkerSettings(NamedTuple):
    """What the options of a command say about its worker and its Holdfast."""

    options: WorkerOptions
    holdfast: dict[str, Any]
    """The keyword arguments of `Holdfast`."""


# Each decorator puts its option before those of the earlier ones.
_OPTIONS = (
    click.option(
        "--resumes-max",
        type=click.IntRange(min=1),
        default=_DEFAULTS.resumes_max,
        show_default=True,
        help="A run is quarantined after this many failed resumes or lost workers in a row.",
    ),
    click.option(
        "--hold",
        type=DURATION,
        default=duration_text(round(1000 * _DEFAULTS.hold_seconds)),
        show_default=True,
        help="The worker waits in place for sleeps and backoffs up to this; longer ones pause the "
        "run.",
    ),
    click.option(
        "--poll",
        type=DURATION,
        help="How often an idle worker polls for runs.  [default: depends on the store]",
    ),
    click.option(
        "--drain",
        type=DURATION,
        default=duration_text(round(1000 * _DEFAULTS.drain_seconds)),
        show_default=True,
        help="How long nodes may continue after the worker is asked to stop.",
    ),
    click.option(
        "--lease",
        type=DURATION,
        default=duration_text(round(1000 * _DEFAULTS.lease_seconds)),
        show_default=True,
        help="How long after the worker's death other workers take over its runs.",
    ),
    click.option(
        "--reviews",
        metavar="TARGET",
        help="How reviewers are notified: a ReviewOptions (package.module:attribute).  "
        "[default: notices are logged]",
    ),
    click.option(
        "--quotas", metavar="TARGET", help="The quotas of these models: a dict by the same names."
    ),
    click.option(
        "--models",
        metavar="TARGET",
        help="The models that nodes can ask: a dict by name (package.module:attribute).",
    ),
    click.option(
        "--pool",
        "pools",
        multiple=True,
        metavar="POOL",
        help="Claim runs of this pool; may be given several times. '' is the pool without a name, "
        "the default.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        default=_DEFAULTS.concurrency,
        show_default=True,
        help="The maximum number of runs that the worker drives at the same time.",
    ),
)


def worker_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a worker, and pass it `WorkerSettings` as ``settings``."""

    @wraps(function)
    def command(
        *,
        concurrency: int,
        pools: Sequence[str],
        models: str | None,
        quotas: str | None,
        reviews: str | None,
        search: SearchChoice,
        limits: PayloadLimits | None,
        user_key: bytes | None,
        **given: Any,
    ) -> None:
        named = {
            name: given.pop(name) for name in ("lease", "drain", "poll", "hold", "resumes_max")
        }
        with show_errors():
            options = WorkerOptions(
                concurrency=concurrency,
                pools=[pool or None for pool in pools] or _DEFAULTS.pools,
                **named,
            )
            holdfast = {
                "models": None if models is None else load_dict(models),
                "quotas": None if quotas is None else load_dict(quotas),
                "reviews": None if reviews is None else load_review_options(reviews),
                "search": search,
                "limits": limits,
                "user_key": user_key,
            }
        function(settings=WorkerSettings(options, holdfast), **given)

    decorated: Callable[..., None] = search_option(command)
    for option in _OPTIONS:
        decorated = option(decorated)
    return decorated


def log_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its logs: ``log_level`` and ``log_format``."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice(LOG_FORMATS),
            default="text",
            show_default=True,
            help="How logs are shown on standard error.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LOG_LEVELS),
            help="Show logs from this level on, also those of your own modules.  [default: info]",
        ),
    ):
        function = option(function)
    return function
