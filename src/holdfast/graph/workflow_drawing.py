"""Draws the steps of a workflow as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.graph.mermaid import END_ID, START_ID, escaped
from holdfast.graph.workflow_steps import Attempt, Block, Choice, Exit, Loop, Step

__all__ = ["drawn_steps"]

_STEPS_MAX = 100


def drawn_steps(name: str, steps: Sequence[Block] | None) -> str:
    """Return the flowchart of a workflow; one box if its steps are not known.

    Dotted arrows are taken under a condition, after an error, or once more.
    """
    layout = _Layout()
    try:
        exits = layout.place(steps or (), [_Source(START_ID)])
    except RecursionError:  # the code is nested too deeply
        layout, exits = _Layout(), []
    if not layout.labels:
        layout = _Layout()
        exits = layout.place((Step(name),), [_Source(START_ID)])
    layout.connect(exits, END_ID)
    lines = ["flowchart TD", f"    {START_ID}((start))"]
    lines += [f'    n{number}["{escaped(label)}"]' for number, label in enumerate(layout.labels)]
    if any(to == END_ID for _, to in layout.arrows):
        lines.append(f"    {END_ID}(((END)))")
    lines += [f"    {source} {arrow} {to}" for (source, to), arrow in layout.arrows.items()]
    return "\n".join(lines) + "\n"


class _Source(NamedTuple):
    """Where an arrow begins."""

    id: str
    dotted: bool = False
    text: str = ""

    @property
    def arrow(self) -> str:
        if self.text:
            return f'-. "{self.text}" .->'
        return "-.->" if self.dotted else "-->"


class _LoopExits(NamedTuple):
    """Where the statements ``break`` and ``continue`` of a loop stand."""

    breaks: list[_Source]
    continues: list[_Source]


class _Layout:
    """Places steps one after the other, and connects them."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.arrows: dict[tuple[str, str], str] = {}
        self._loops: list[_LoopExits] = []

    def connect(self, sources: Iterable[_Source], to: str) -> None:
        """Draw an arrow from each source, unless there is one."""
        for source in sources:
            self.arrows.setdefault((source.id, to), source.arrow)

    def place(self, blocks: Iterable[Block], sources: list[_Source]) -> list[_Source]:
        """Place the blocks after these sources; return where the next one begins."""
        for block in blocks:
            if not sources:
                break  # no path leads here
            match block:
                case Step():
                    sources = self._place_step(block, sources)
                case Choice():
                    chosen = _dotted(sources)
                    sources = _merged(*(self.place(each, chosen) for each in block.options))
                case Loop():
                    sources = self._place_loop(block, sources)
                case Attempt():
                    sources = self._place_attempt(block, sources)
                case Exit():
                    sources = self._place_exit(block, sources)
        return sources

    def _place_step(self, step: Step, sources: list[_Source]) -> list[_Source]:
        if len(self.labels) <= _STEPS_MAX:
            self.labels.append(step.label if len(self.labels) < _STEPS_MAX else "…")
        id = f"n{len(self.labels) - 1}"
        self.connect([each for each in sources if each.id != id], id)
        return [_Source(id)]

    def _place_loop(self, loop: Loop, sources: list[_Source]) -> list[_Source]:
        exits = _LoopExits([], [])
        self._loops.append(exits)
        entries = sources if loop.is_endless else _dotted(sources)
        before = len(self.arrows)
        ends = _merged(self.place(loop.body, entries), exits.continues)
        self._loops.pop()
        ids = {source.id for source in entries}
        entered = [to for source, to in list(self.arrows)[before:] if source in ids]
        again = [_Source(each.id, dotted=True, text="again") for each in ends if each.id not in ids]
        for first in dict.fromkeys(entered):
            self.connect(again, first)
        passed = [] if loop.is_endless else _merged(_dotted(ends), entries)
        return _merged(exits.breaks, passed)

    def _place_attempt(self, attempt: Attempt, sources: list[_Source]) -> list[_Source]:
        first = len(self.labels)
        ends = self.place(attempt.body, sources)
        failing = [
            _Source(f"n{number}", dotted=True, text="error")
            for number in range(first, len(self.labels))
        ]
        handled = [self.place(each, failing or _dotted(sources)) for each in attempt.handlers]
        return self.place(attempt.final, _merged(ends, *handled))

    def _place_exit(self, exit: Exit, sources: list[_Source]) -> list[_Source]:
        match exit.kind:
            case "return":
                self.connect(sources, END_ID)
            case "break" if self._loops:
                self._loops[-1].breaks.extend(_dotted(sources))
            case "continue" if self._loops:
                self._loops[-1].continues.extend(sources)
            case _:
                pass
        return []


def _dotted(sources: Iterable[_Source]) -> list[_Source]:
    return [source._replace(dotted=True) for source in sources]


def _merged(*parts: Iterable[_Source]) -> list[_Source]:
    found: dict[str, _Source] = {}
    for part in parts:
        for source in part:
            found.setdefault(source.id, source)
    return list(found.values())
