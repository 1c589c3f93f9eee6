"""Formats times, tables, JSON and safe text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from holdfast.display import escaped_json, printable
from holdfast.model.moments import utc_text
from holdfast.redaction import without_credentials

__all__ = ["columns", "compact", "pretty", "say", "utc_of_ms"]


def say(text: str, *, err: bool = False) -> None:
    """Print a line without control characters and without credentials of addresses."""
    click.echo(printable(without_credentials(text)), err=err)


def utc_of_ms(ms: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    return utc_text(datetime.fromtimestamp(ms / 1000, UTC))


def columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return rows as lines with aligned columns."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return escaped_json(msgspec.json.encode(value).decode())


def pretty(value: Any) -> str:
    """Return a value as indented JSON."""
    return escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
