"""Redraws lines in place on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

import click

from holdfast.cli.run_picture import Line

__all__ = ["LiveScreen", "is_drawable", "screen_size"]

_COLORS = {"running": "cyan", "waiting": "yellow", "done": "green", "failed": "red"}


def is_drawable() -> bool:
    """Return whether standard output is a terminal on which lines can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def screen_size() -> tuple[int, int]:
    """Return the columns and the lines of the terminal, as they are now."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


class LiveScreen:
    """The lines that were drawn last, which the next ones replace."""

    def __init__(self) -> None:
        self._drawn = 0
        self._colored = "NO_COLOR" not in os.environ

    def draw(self, lines: Sequence[Line]) -> None:
        """Replace what was drawn before."""
        text = f"\x1b[{self._drawn}A" if self._drawn else ""
        # Each line ends with a clear to its end, and the last with a clear of what is below.
        text += "".join(f"\r{self._colored_text(line)}\x1b[K\n" for line in lines) + "\x1b[J"
        click.echo(text, nl=False, color=True)
        self._drawn = len(lines)

    def _colored_text(self, line: Line) -> str:
        color = _COLORS.get(line.mark or "")
        return click.style(line.text, fg=color) if self._colored and color else line.text
