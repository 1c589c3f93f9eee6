"""Formats times, tables, JSON and safe text for a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from holdfast.display import escaped_json, printable
from holdfast.model.moments import utc_text
from holdfast.redaction import without_credentials

__all__ = [
    "aligned",
    "columns",
    "compact",
    "fitted",
    "pretty",
    "say",
    "terminal_width",
    "utc_of_ms",
]

_GAP = "  "
# A column that would be narrower is left out.
_CELL_MIN = 8


def say(text: str, *, err: bool = False) -> None:
    """Print a line without control characters and without credentials of addresses."""
    click.echo(printable(without_credentials(text)), err=err)


def utc_of_ms(ms: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    return utc_text(datetime.fromtimestamp(ms / 1000, UTC))


def columns(rows: Sequence[Sequence[str]], *, cut: Sequence[int] = ()) -> Iterable[str]:
    """Return rows as lines with aligned columns.

    On a terminal that is too narrow, the columns of ``cut`` get narrower or are left out, in this
    order; those that are not named stay whole.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    width = terminal_width()
    return aligned(shown) if width is None else fitted(shown, width, cut)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None if standard output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield _GAP.join(map(str.ljust, row, widths)).rstrip()


def fitted(rows: Sequence[Sequence[str]], width: int, cut: Sequence[int]) -> Iterator[str]:
    """Yield rows as lines that fit a width, as far as the columns that may be cut permit it."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left_out: set[int] = set()
    for number in cut:
        kept = [each for n, each in enumerate(widths) if n not in left_out]
        excess = sum(kept) + len(_GAP) * (len(kept) - 1) - width
        if excess <= 0:
            break
        if widths[number] - excess >= _CELL_MIN:
            widths[number] -= excess
        else:
            left_out.add(number)
    yield from aligned(
        [[_cut(cell, widths[n]) for n, cell in enumerate(row) if n not in left_out] for row in rows]
    )


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return escaped_json(msgspec.json.encode(value).decode())


def pretty(value: Any) -> str:
    """Return a value as indented JSON."""
    return escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
