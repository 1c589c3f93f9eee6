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
        self._shown = ""

    def show(self, text: str, facts: dict[str, Any]) -> None:
        """Show a report: ``facts`` for programs, ``text`` for people. Repetitions are left out."""
        shown = compact(facts) if self._as_json else printable(text)
        if shown == self._shown:
            return
        self._shown = shown
        if self._redraws:
            click.echo(f"\r{shown[: (terminal_width() or len(shown)) - 1]}\x1b[K", nl=False)
        else:
            click.echo(shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._redraws and self._shown:
            click.echo(f"\r{self._shown}\x1b[K")
