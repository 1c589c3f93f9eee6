"""What users want of real processes: runs started, signals sent, budgets raised."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec

from tests.crash.flows import BRANCH_SIGNALS, SIGNALS, TOKENS_A_QUESTION

__all__ = ["GRAPHS", "Errand", "acknowledged", "drawn_errands", "read_errands", "write_errands"]

GRAPHS = ("ten", "varied", "wide", "leaf", "idle", "brief", "ten_calls", "ten_calls_once", "paid")
"""What the workers serve; some of it only the others start."""
_STARTED = ("ten", "varied", "varied", "wide", "brief", "brief", "ten_calls", "ten_calls", "paid")
_SESSIONS = ("chat-1", "chat-2")
_SENT_TWICE = 0.3
_FUNDED = 0.6
PLENTY_TOKENS = 100 * TOKENS_A_QUESTION

Verb: TypeAlias = Literal["start", "signal", "fund"]


class Errand(msgspec.Struct, kw_only=True):
    """One thing that a client does until it is acknowledged."""

    number: int
    at_seconds: float
    verb: Verb
    run: str
    graph: str = ""
    given: dict[str, Any] = {}
    session: str | None = None
    tokens: int | None = None
    name: str = ""
    id: str = ""


def drawn_errands(draw: Random, seconds: float, *, runs: int) -> list[Errand]:
    """Draw what is done to so many runs within that time."""
    errands: list[Errand] = []

    def add(at: float, verb: Verb, run: str, **rest: Any) -> None:
        errands.append(Errand(number=len(errands), at_seconds=at, verb=verb, run=run, **rest))

    for number in range(runs):
        graph = draw.choice((*_STARTED, "ten_calls_once"))
        run = f"{graph}-{number:03d}"
        at = draw.random() * seconds
        rest: dict[str, Any] = {"graph": graph, "given": _given(draw, graph)}
        if graph == "brief":
            rest["session"] = draw.choice(_SESSIONS)
        if graph == "paid":
            rest["tokens"] = draw.randint(0, 5) * TOKENS_A_QUESTION
        add(at, "start", run, **rest)
        if draw.random() < _SENT_TWICE:
            add(at + draw.random(), "start", run, **rest)
        for name, id in _signals(graph):
            sent = at + draw.random() * seconds / 2
            add(sent, "signal", run, name=name, id=id)
            if draw.random() < _SENT_TWICE:
                add(sent + draw.random() * 3, "signal", run, name=name, id=id)
        if graph == "paid" and draw.random() < _FUNDED:
            add(at + draw.random() * seconds / 2, "fund", run, tokens=PLENTY_TOKENS)
    return errands


def _given(draw: Random, graph: str) -> dict[str, Any]:
    match graph:
        case "ten" | "ten_calls" | "ten_calls_once":
            return {"work_seconds": round(draw.random() * 0.15, 3)}
        case "brief":
            return {"work_seconds": round(draw.random() * 0.5, 3)}
        case "paid":
            return {"questions": draw.randint(1, 4), "heirs": draw.choice([0, 0, 2, 3])}
        case _:
            return {}


def _signals(graph: str) -> list[tuple[str, str]]:
    if graph == "varied":
        return [("answer", id) for id in SIGNALS]
    return [(name, name) for name in BRANCH_SIGNALS] if graph == "wide" else []


def write_errands(file: Path, errands: list[Errand]) -> None:
    file.write_bytes(msgspec.json.encode(errands))


def read_errands(file: Path) -> list[Errand]:
    return msgspec.json.decode(file.read_bytes(), type=list[Errand])


def acknowledged(file: Path) -> dict[int, str]:
    """Return what became of each errand that a client was told of: ``done``, or why not."""
    if not file.exists():
        return {}
    found: dict[int, str] = {}
    for line in file.read_text().splitlines():
        number, _, outcome = line.partition(" ")
        found.setdefault(int(number), outcome)
    return found
