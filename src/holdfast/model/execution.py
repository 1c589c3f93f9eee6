"""Where a run stands: what is left of its journal once it is folded.

A run is a strand of control that goes from node to node. Where it forks, the strand waits and its
branches go on side by side, each a strand of its own that may fork again. A branch is named by
where it comes from: ``3.0/1.2`` is the third branch of the fork after visit 1 of the first branch
of the fork after visit 3. Visits are counted in each strand by itself. So neither names nor visits
depend on which branch was faster, and records of different branches can be folded in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.model.call import Call
from holdfast.model.event import (
    BranchFailed,
    Failure,
    Fork,
    SignalTaken,
    TimerFired,
)
from holdfast.model.reducers import reduced
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import Wait

__all__ = [
    "Branch",
    "Ending",
    "Execution",
    "Strand",
    "branch_paths",
    "is_within",
    "nodes_summary",
    "outer_path",
]

Ending: TypeAlias = Literal["finished", "failed", "cancelled", "expired"]
"""How a run can end."""


class Strand(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes from node to node: the run itself, or a branch of it."""

    node: str
    """The node that is to be run, or that was the last one."""
    visit: int = 0
    """Counts the nodes that the strand entered, so that every entry has a number of its own."""
    failed_attempts: int = 0
    """How often the node failed in this visit."""
    retry_at_ms: int = 0
    """When it is to be tried again."""
    answers: dict[str, SignalTaken | TimerFired] = {}
    """What the waits of this visit were answered."""
    waits: tuple[Wait, ...] = ()
    """What this visit waits for, where the row has no room for it."""
    failure: Failure | None = None
    fork: Fork | None = None
    """The branches that have to end before the node is run."""
    children: dict[int, str] = {}
    """The runs that this visit started, by their number."""
    ended: int = 0
    """How many of them have."""
    failures: tuple[BranchFailed, ...] = ()
    """The branches that failed before this visit, and were to spare the others."""
    calls: dict[str, Call] = {}
    """What is known of the calls of this visit."""
    noted: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """See `notes`. A program that notes nothing has no such field in its snapshots."""

    @property
    def notes(self) -> dict[str, Any]:
        """What the program noted in this visit, such as how often it used each retry policy."""
        return {} if self.noted is msgspec.UNSET else self.noted


class Branch(Strand, frozen=True, kw_only=True):
    """A strand beside others."""

    delta: dict[str, Any] = {}
    """What it changed in the state that it began with."""
    ops: dict[str, str] = {}
    """The reducers of what it contributes to."""
    over: bool = False
    failed: BranchFailed | None = None
    """How it failed; it is over then, too."""


class Execution(Strand, frozen=True, kw_only=True):
    """The fold of a journal: everything that a program decides from."""

    state: dict[str, Any]
    seed: str
    """What makes this run's draws its own."""
    branches: dict[str, Branch] = {}
    """The branches of all forks that are not joined yet."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Name and id of every signal that was taken, so that none counts twice."""
    ending: Ending | None = None
    nodes_run: int = 0
    spent_ms: int = 0
    """Time spent inside nodes."""
    fences: int = 0
    """How often in a row the run was taken over without getting anywhere."""
    retried: str = ""
    """The id of the last retry that was carried out."""
    ttl: int = 0
    """How long records last since the run was extended; 0 where its row alone says so."""
    kept: str = ""
    """The retention class of blobs since then."""
    spent: Spending = NO_SPENDING
    """What its calls cost, and what those may have cost of whose end nothing is known."""
    saved: Spending = NO_SPENDING
    """What answers would have cost that others had asked for before."""
    drawn: Spending | None = None
    """What it was given of the budget that it shares with others; None where it shares none."""
    slices: dict[str, Spending] = {}
    """What children with a budget of their own may spend; once they have ended, what they spent."""

    def strand(self, path: str) -> Strand | None:
        """Return the run itself, or one of its branches if it is not joined yet."""
        return self.branches.get(path) if path else self

    def runnable_strands(self) -> Iterator[tuple[str, Strand]]:
        """Yield every strand that stands at a node to be run, with its name."""
        if self.ending is None:
            yield from self.current_strands()

    def current_strands(self) -> Iterator[tuple[str, Strand]]:
        """Yield every strand that stands at a node, with its name, also if the run has ended."""
        if self.fork is None:
            yield "", self
        for path, branch in self.branches.items():
            if branch.fork is None and not branch.over:
                yield path, branch

    def is_at_node(self, path: str) -> bool:
        """Return whether a strand is there, and stands at a node to be run."""
        strand = self.strand(path)
        over = isinstance(strand, Branch) and strand.over
        return strand is not None and strand.fork is None and not over

    def is_at_visit(self, path: str, visit: int) -> bool:
        """Return whether a strand stands at the node of a certain visit."""
        strand = self.strand(path)
        return strand is not None and strand.visit == visit and self.is_at_node(path)

    def strands_after(self, path: str) -> Iterator[str]:
        """Yield the strands that may have come to stand at a node by an event of this one."""
        while path not in self.branches and path:
            path = outer_path(path)
        strand = self.strand(path)
        if strand is not None and strand.fork is not None:
            yield from branch_paths(path, strand)
        elif strand is not None and not (isinstance(strand, Branch) and strand.over):
            yield path

    def visible_state(self, path: str) -> dict[str, Any]:
        """Return the state as a strand sees it."""
        branch = self.branches.get(path)
        if branch is None:
            return self.state
        above = self.visible_state(outer_path(path))
        fork = self._fork_of(path)
        seen = above
        if fork.takes is not None:
            seen = {own: above[name] for own, name in fork.takes.items() if name in above}
        if fork.over:
            seen = {**seen, fork.into: above[fork.over][_branch_index(path)]}
        return reduced(seen, branch.delta, branch.ops)

    def spares(self, path: str) -> bool:
        """Return whether the others of its fork outlive this branch if it fails."""
        return self._fork_of(path).spares

    def max_concurrent_branches(self, path: str) -> int:
        """Return how many branches of this one's fork may run at a time; 0 for any number."""
        return self._fork_of(path).concurrency if path else 0

    def _fork_of(self, path: str) -> Fork:
        strand = self.strand(outer_path(path))
        assert strand is not None
        assert strand.fork is not None
        return strand.fork


def outer_path(path: str) -> str:
    """Return the strand whose branch this one is."""
    return path.rpartition("/")[0]


def is_within(path: str, within: str) -> bool:
    """Return whether a strand is this one, or came from it."""
    return not within or path == within or path.startswith(f"{within}/")


def nodes_summary(execution: Execution) -> str:
    """Return where a run stands, as people read it: ``read x14, check``."""
    if not execution.branches:
        return execution.node
    # Also once the run has ended: people look where it stood then.
    nodes = Counter(strand.node for _, strand in execution.current_strands())
    shown = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in nodes.items())
    return shown if len(shown) <= _SUMMARY_CHARS_MAX else shown[: _SUMMARY_CHARS_MAX - 1] + "…"


_SUMMARY_CHARS_MAX = 200


def branch_paths(path: str, strand: Strand) -> Iterator[str]:
    """Yield the names of a strand's branches; they fork after the visit before the one to come."""
    if strand.fork is not None:
        prefix = f"{path}/" if path else ""
        for number in range(strand.fork.width):
            yield f"{prefix}{strand.visit - 1}.{number}"


def _branch_index(path: str) -> int:
    return int(path.rpartition(".")[2])
