"""Options that several commands share, and the kinds of values that they take."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from holdfast.errors import InvalidRequest
from holdfast.model.durations import days, hours, minutes, seconds

__all__ = [
    "budget_options",
    "example",
    "filter_options",
    "json_option",
    "labels_option",
    "parse_duration",
    "parse_json",
    "parse_path",
    "parse_time",
    "tenant_option",
    "url_option",
]

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"s": seconds, "m": minutes, "h": hours, "d": days}

url_option = click.option(
    "--url",
    envvar="HOLDFAST_URL",
    show_envvar=True,
    required=True,
    metavar="URL",
    help="The store's address; see 'holdfast store --help'.",
)
tenant_option = click.option(
    "--tenant", default="default", show_default=True, help="Whose runs are meant."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def example(*lines: str) -> str:
    """Return the end of a help text."""
    # \b keeps click from filling the lines.
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def parse_time(text: str) -> datetime:
    """Read a time in ISO's form; without a time zone it is in UTC.

    Raises:
        BadParameter: it is none.
    """
    try:
        read = datetime.fromisoformat(text)
        return (read.replace(tzinfo=UTC) if read.tzinfo is None else read).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-11-01 or 2026-11-01T09:30:00Z"
        ) from None


def parse_duration(text: str) -> timedelta:
    """Read a span of time: a number and the letter of its unit.

    Raises:
        BadParameter: it is none.
    """
    read = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd])", text)
    try:
        if read is not None:
            return _UNITS[read[2]](float(read[1]))
    except InvalidRequest:  # too long
        pass
    raise click.BadParameter(f"{text!r} is not a span of time such as 90s, 30m, 12h or 3d")


def parse_path(text: str) -> Path:
    """Read the name of a file.

    Raises:
        BadParameter: no file can have it.
    """
    try:
        text.encode()  # SQLite takes no other names than those in UTF-8
    except UnicodeEncodeError:
        text = ""
    if not text or "\0" in text:
        raise click.BadParameter("this is not the name of a file")
    return Path(text)


def parse_json(text: str) -> Any:
    """Read a value as JSON, ``-`` from standard input.

    Raises:
        BadParameter: it is none.
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
    raise ValueError(f"it has no {constant}")


def _labels(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"{text!r} is not of the form name=value")
        if labels.setdefault(name, value) != value:
            raise click.BadParameter(f"{name!r} is there twice")
    return labels


labels_option = click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_labels,
    metavar="NAME=VALUE",
    help="May be given several times.",
)


def filter_options(*statuses: str) -> Callable[[F], F]:
    """Give a command the options by which runs of a list are chosen."""

    def decorate(function: F) -> F:
        for option in (
            click.option(
                "--until", type=parse_time, metavar="TIME", help="Started before then (UTC)."
            ),
            click.option(
                "--since", type=parse_time, metavar="TIME", help="Started then or later (UTC)."
            ),
            labels_option,
            click.option("--graph", help="The graph's name."),
            click.option("--status", type=click.Choice(statuses)),
        ):
            function = option(function)
        return function

    return decorate


def budget_options(function: F) -> F:
    """Give a command the options by which a run's spending is limited."""
    for option in (
        click.option(
            "--wall", type=parse_duration, metavar="SPAN", help="Time inside its nodes (30m, 2h)."
        ),
        click.option("--tokens", type=click.IntRange(min=0), help="Tokens, in and out."),
        click.option("--usd", type=click.FloatRange(min=0), help="Dollars."),
    ):
        function = option(function)
    return function
