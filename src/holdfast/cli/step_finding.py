"""Finds the step of a flowchart that an event of a workflow belongs to.

Events name functions, signals and children; a chart has the labels that were read from the code.
What an event does not name (a sleep, a call with a key) is the nearest step that fits, from the
step that was found last along the arrows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.cli.flowchart import Flowchart
from holdfast.model.wait import is_group_key, is_sleep_key, shown_key

__all__ = ["ANY_WAIT", "StepFinder"]

_UNREAD = "…"
_WAIT, _SLEEP, _START, _RUN = "wait: ", "sleep: ", "start: ", "run: "
_NAMED = (_WAIT, _SLEEP, _START, _RUN)
_OR = " or "
_GROUP = "wait_any."
_CHILD = "%child."
ANY_WAIT = f"{_GROUP}#1"
"""A key that stands for that of any wait for the first of several conditions."""


class StepFinder:
    """Finds steps in the order of a run's events."""

    def __init__(self, chart: Flowchart) -> None:
        self._chart = chart
        self._last: str | None = None
        self._passed: set[str] = set()
        self._children: dict[str, str] = {}

    def pass_call(self, call: str) -> str | None:
        """Return the step of a call, by its id: ``name#1``, or ``=key``."""
        if call.startswith("="):
            return self._passed_step(_is_call) or self._passed_step(_is_unread)
        name = call.rpartition(">")[2].rpartition("#")[0]
        short = name.rpartition(".")[2]
        return (
            self._passed_step(lambda step: step in (name, f"{name} (model)"))
            or self._passed_step(lambda step: _is_call(step) and step.rpartition(".")[2] == short)
            or self._passed_step(_is_unread)
        )

    def pass_child(self, id: str, graph: str) -> tuple[str | None, bool]:
        """Return the step that starts a child, and whether it waits for its end."""
        step = self._passed_step(lambda each: each in (_START + graph, _RUN + graph))
        waits = step is not None and step.startswith(_RUN)
        if step is not None and waits:
            self._children[id] = step
        return step or self._passed_step(_is_unread), waits

    def pass_wait(self, key: str, signal: str | None = None) -> str | None:
        """Return the step of a wait that has ended."""
        step = self.find_wait(key, signal)
        if step is not None:
            self._last = step
            self._passed.add(step)
        return step

    def find_wait(self, key: str, signal: str | None = None) -> str | None:
        """Return the step of a wait."""
        shown = shown_key(key)
        name = signal or ("" if shown.startswith(_GROUP) else shown.rpartition("#")[0])
        if name.startswith("%"):
            return self._children.get(name.removeprefix(_CHILD))
        if is_sleep_key(key):
            found = self._nearest(lambda step: step.startswith(_SLEEP))
        elif is_group_key(key) or shown.startswith(_GROUP):
            found = self._nearest(lambda step: _OR in step and _is_wait_for(step, name))
        else:
            found = self._nearest(lambda step: step == _WAIT + name)
        return found or self._nearest(lambda step: step == _WAIT + _UNREAD or _is_unread(step))

    def _passed_step(self, fits: Callable[[str], bool]) -> str | None:
        step = self._nearest(fits)
        if step is not None:
            self._last = step
            self._passed.add(step)
        return step

    def _nearest(self, fits: Callable[[str], bool]) -> str | None:
        """Return the nearest step that fits; one that the run has not passed comes first."""
        found = [step for step in self._ahead() if fits(step)]
        return next((step for step in found if step not in self._passed), next(iter(found), None))

    def _ahead(self) -> Iterator[str]:
        """Yield the steps along the arrows from the last one, then the others."""
        seen: dict[str, None] = {}
        upcoming = [] if self._last is None else [self._last]
        while upcoming:
            reached = [to for step in upcoming for to in self._chart.arrows.get(step, ())]
            upcoming = [step for step in dict.fromkeys(reached) if step not in seen]
            seen.update(dict.fromkeys(upcoming))
        yield from seen
        yield from (step for step in self._chart.steps if step not in seen)


def _is_call(step: str) -> bool:
    return not step.startswith(_NAMED) and not _is_unread(step)


def _is_unread(step: str) -> bool:
    """Return whether a step stands for code that was not read."""
    return step == _UNREAD or (step.endswith(f" {_UNREAD}") and not step.startswith(_NAMED))


def _is_wait_for(step: str, name: str) -> bool:
    parts = step.removeprefix(_WAIT).split(_OR)
    return step.startswith(_WAIT) and (not name or name in parts or _UNREAD in parts)
