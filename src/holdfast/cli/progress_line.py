"""Shows how far long work is: one line that changes on a terminal, or a line for each report."""

from __future__ import annotations

import sys
from typing import Any, Self

import click

from holdfast.cli.text import compact, terminal_width
from holdfast.display import printable

__all__ = ["ProgressLine"]


class ProgressLine:
    """Prints reports of progress; the last one stays on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._redraws = not as_json and sys.stdout.isatty()
        self._text = ""

    def show(self, text: str, facts: dict[str, Any]) -> None:
        """Show a report: ``facts`` for programs, ``text`` for people, unless it says the same."""
        if self._as_json:
            click.echo(compact(facts))
        elif text != self._text:
            shown = printable(text)
            if self._redraws:
                click.echo(f"\r{shown[: (terminal_width() or len(shown)) - 1]}\x1b[K", nl=False)
            else:
                click.echo(shown)
        self._text = text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._redraws and self._text:
            click.echo(f"\r{printable(self._text)}\x1b[K")
