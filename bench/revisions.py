"""Compares the project with an earlier revision of itself, in turns and in one run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import nan
from pathlib import Path

from bench.figures import Figure, ratio, show

ROOT = Path(__file__).parents[1]
COST_BEFORE = os.environ.get("COST_BEFORE", "e5412b5")
"""What the CPU is compared with: the last revision that did not check sizes, users and files."""
ROUNDS = 20
COST_MAX = 1.03


def cost_beside(what: str, cpu_ms: Callable[[Path], float]) -> Figure:
    """Return how much more CPU something takes than it took before.

    ``cpu_ms`` measures it with the sources in a folder. A machine may be faster for some seconds
    and slower for others: so the two take turns, each begins every other round, and a ratio is that
    of one round.
    """
    figure = f"{what} / that of {COST_BEFORE}"
    with tree(COST_BEFORE) as before:
        if before is None:
            print(f"  Nothing to compare {what} with: {missing(COST_BEFORE, 'COST_BEFORE')}")
            return Figure(figure, nan, at_most=COST_MAX)
        sources = {COST_BEFORE: before / "src", "now": ROOT / "src"}
        orders = [list(sources.items()), list(reversed(sources.items()))]
        rounds = [
            {name: cpu_ms(folder) for name, folder in orders[turn % 2]} for turn in range(ROUNDS)
        ]
    show(rounds, what, digits=3)
    return Figure(figure, ratio(rounds, "now", COST_BEFORE), at_most=COST_MAX)


def missing(revision: str, variable: str) -> str:
    """Return why there is no tree of a revision, and what helps."""
    return (
        f"there is no revision {revision} here. A shallow copy of the repository lacks it "
        f"(git fetch --unshallow), or name another one in {variable}."
    )


@contextmanager
def tree(revision: str) -> Generator[Path | None, None, None]:
    """Yield a work tree of a revision; None where the repository has no such revision."""
    if _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").returncode:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "before"
        added = _git("worktree", "add", "--detach", str(path), revision)
        if added.returncode:
            print(f"  git cannot make a work tree of {revision}: {added.stderr.strip()}")
            yield None
            return
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
