"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import click

from holdfast.cli.failures import show_errors
from holdfast.errors import InvalidRequest
from holdfast.model.durations import milliseconds_of
from holdfast.model.run import PAUSE_REASONS, Status
from holdfast.records.run_filter import RunFilter
from holdfast.storage.open import is_in_memory

__all__ = [
    "DURATION",
    "RequiredChoice",
    "budget_options",
    "check_store_url",
    "example",
    "filter_options",
    "json_lines_option",
    "json_option",
    "labels_option",
    "parse_json",
    "parse_path",
    "parse_time",
    "tenant_option",
    "tenant_option_of",
    "url_option",
]

F = TypeVar("F", bound=Callable[..., Any])
# Options of a filter that have the names of its conditions.
_SAME_NAMES = ("graph", "since", "until", "node", "updated_since", "updated_until")


def check_store_url(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Return the address of a store that outlives the command.

    Raises:
        click.BadParameter: the store would be lost when the command ends.
    """
    with show_errors():
        in_memory = is_in_memory(url)
    if in_memory:
        raise click.BadParameter(
            "a store in memory is lost when this command ends, and no other process sees it; name "
            "a file, as in sqlite:///runs.db"
        )
    return url


url_option = click.option(
    "--url",
    callback=check_store_url,
    envvar="HOLDFAST_URL",
    show_envvar=True,
    required=True,
    metavar="URL",
    help="The store's address; see 'holdfast store --help'.",
)


def tenant_option_of(what: str) -> Callable[[F], F]:
    """Return the option that names the tenant of something, as in "the runs belong"."""
    return click.option(
        "--tenant", default="default", show_default=True, help=f"The tenant that {what} to."
    )


tenant_option = tenant_option_of("the runs belong")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, a line for each report of progress."
)


def example(*lines: str) -> str:
    """Return the examples at the end of a help text."""
    # \b keeps click from filling the lines.
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def parse_time(text: str) -> datetime:
    """Return the time of ISO 8601 text; one without a time zone is in UTC.

    Raises:
        click.BadParameter: the text is not a time.
    """
    try:
        read = datetime.fromisoformat(text)
        return (read.replace(tzinfo=UTC) if read.tzinfo is None else read).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-11-01 or 2026-11-01T09:30:00Z"
        ) from None


class _DurationType(click.ParamType[str]):
    """Durations as the library takes them: ``90s``, ``1h30m``, ``7d``."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = None if param is None else param.name
        try:
            milliseconds_of(value, name or self.name)
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)
        return value


DURATION = _DurationType()
"""The type of options and arguments that are durations."""


class RequiredChoice(click.Choice[str]):
    """Words that must be given: an error lists them in one line."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return f"Choose from: {', '.join(self.choices)}"


def parse_path(text: str) -> Path:
    """Return the path of a file.

    Raises:
        click.BadParameter: no file can have this name.
    """
    try:
        text.encode()  # SQLite opens only names in UTF-8
    except UnicodeEncodeError:
        text = ""
    if not text or "\0" in text:
        raise click.BadParameter("this is not the name of a file")
    return Path(text)


def parse_json(text: str) -> Any:
    """Return the value of JSON text; ``-`` reads the text from standard input.

    Raises:
        click.BadParameter: the text is not JSON.
    """
    try:
        if text == "-":
            if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
                raise ValueError("standard input is closed")
            text = sys.stdin.read()
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"this is not JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}")


def _labels(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"{text!r} must have the form name=value")
        if labels.setdefault(name, value) != value:
            raise click.BadParameter(f"{name!r} is given twice, with different values")
    return labels


labels_option = click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_labels,
    metavar="NAME=VALUE",
    help="May be given several times.",
)


def _single_option(name: str, **attributes: Any) -> Callable[[F], F]:
    """Return an option that may be given once; click alone would keep the last value."""
    return click.option(name, multiple=True, callback=_only_value, **attributes)


def _only_value(
    context: click.Context, parameter: click.Parameter, given: tuple[Any, ...]
) -> Any | None:
    if len(given) > 1:
        raise click.UsageError(f"{parameter.opts[0]} may be given once, got it {len(given)} times")
    return given[0] if given else None


# Each decorator puts its option before those of the earlier ones.
_FILTER_OPTIONS = (
    _single_option(
        "--cost-max",
        type=click.FloatRange(min=0),
        metavar="USD",
        help="Its calls cost at most so many dollars.",
    ),
    _single_option(
        "--cost-min",
        type=click.FloatRange(min=0),
        metavar="USD",
        help="Its calls cost at least so many dollars.",
    ),
    _single_option(
        "--updated-until",
        type=parse_time,
        metavar="TIME",
        help="Its row last changed before this time (UTC).",
    ),
    _single_option(
        "--updated-since",
        type=parse_time,
        metavar="TIME",
        help="Its row last changed at this time or later (UTC).",
    ),
    _single_option(
        "--until", type=parse_time, metavar="TIME", help="Started before this time (UTC)."
    ),
    _single_option(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="Started at this time or later (UTC).",
    ),
    _single_option(
        "--paused-for",
        type=click.Choice(PAUSE_REASONS),
        metavar="REASON",
        help="Why the run is paused: signal, timer, budget, unserved and so on.",
    ),
    _single_option("--node", help="The node at which the run, or a branch of it, is."),
    labels_option,
    _single_option("--graph", help="The graph's name."),
)


def filter_options(
    *statuses: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a filter, and pass it the `RunFilter` as ``run_filter``."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def filtered(
            *,
            labels: Mapping[str, str],
            status: tuple[str, ...],
            paused_for: str | None,
            cost_min: float | None,
            cost_max: float | None,
            **given: Any,
        ) -> None:
            named = {name: given.pop(name) for name in _SAME_NAMES}
            with show_errors():
                run_filter = RunFilter(
                    cast(Sequence[Status], status) or None,
                    labels=labels,
                    reason=paused_for,
                    cost_usd_min=cost_min,
                    cost_usd_max=cost_max,
                    **named,
                )
            function(run_filter=run_filter, **given)

        for option in (
            *_FILTER_OPTIONS,
            click.option(
                "--status",
                multiple=True,
                type=click.Choice(statuses),
                help="May be given several times: the run has one of them.",
            ),
        ):
            filtered = option(filtered)
        return filtered

    return decorate


def budget_options(function: F) -> F:
    """Give a command the options that limit a run's spending."""
    for option in (
        click.option(
            "--estimate/--no-estimate",
            default=None,
            help="Reserve a call that does not fit by a learned estimate of its input.",
        ),
        click.option(
            "--wall",
            type=DURATION,
            help="Limit the time since the start of the run, pauses included.",
        ),
        click.option("--node-time", type=DURATION, help="Limit the time inside nodes (30m, 2h)."),
        click.option("--tokens", type=click.IntRange(min=0), help="Limit input and output tokens."),
        click.option("--usd", type=click.FloatRange(min=0), help="Limit the cost, in US dollars."),
    ):
        function = option(function)
    return function
