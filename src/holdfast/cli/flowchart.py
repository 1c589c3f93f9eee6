"""Reads back the flowchart of a graph, as workers store it, for a terminal."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["NO_CHART", "Flowchart", "parsed_flowchart"]

_BOX = re.compile(r'^\s*(n\d+)\["(.*)"\]$')
_ARROW = re.compile(r"^\s*(\w+) (-->|-\.->|==>|-\. \".*\" \.->)(\|\".*\"\|)? (\w+)$")
_ESCAPE = re.compile(r"#(\d{1,7});")
_MARKUP = "<br/>"


class Flowchart(NamedTuple):
    """The steps of a graph in their order, and where each one leads."""

    steps: tuple[str, ...]
    arrows: dict[str, tuple[str, ...]]


NO_CHART = Flowchart((), {})


def parsed_flowchart(drawing: str) -> Flowchart:
    """Return the steps and arrows of a drawing; lines that are neither are skipped."""
    names: dict[str, str] = {}
    arrows: dict[str, list[str]] = {}
    for line in drawing.splitlines():
        if box := _BOX.match(line):
            names[box[1]] = _label(box[2])
        elif (arrow := _ARROW.match(line)) and arrow[1] in names and arrow[4] in names:
            targets = arrows.setdefault(names[arrow[1]], [])
            if names[arrow[4]] not in targets:
                targets.append(names[arrow[4]])
    steps = tuple(dict.fromkeys(names.values()))
    return Flowchart(steps, {step: tuple(targets) for step, targets in arrows.items()})


def _label(text: str) -> str:
    shown = text.partition(_MARKUP)[0]
    return _ESCAPE.sub(_character, shown)


def _character(found: re.Match[str]) -> str:
    code = int(found[1])
    return chr(code) if code <= 0x10FFFF else "?"
