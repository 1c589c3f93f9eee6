"""The execution of a run: everything that a program needs to decide what comes next.

A run is a strand that goes from node to node. At a fork the strand waits, and its branches run in
parallel. Each branch is a strand too, and may fork again. The path of a branch says where it comes
from: ``3.0/1.2`` is the third branch of the fork after visit 1 of the first branch of the fork
after visit 3. Each strand counts its own visits. So neither paths nor visits depend on which branch
was faster, and records of different branches can be folded in any order.
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
    SignalSetAside,
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
    "is_in_summary",
    "is_within",
    "nodes_summary",
    "outer_path",
]

Ending: TypeAlias = Literal["finished", "failed", "cancelled", "expired"]
"""How a run can end."""


class Strand(msgspec.Struct, frozen=True, kw_only=True):
    """One flow of control through the nodes: the run itself, or a branch of it."""

    node: str
    """The node to run next, or the last one that ran."""
    visit: int = 0
    """The number of nodes that the strand has entered before this one."""
    failed_attempts: int = 0
    """How many attempts of the node failed in this visit."""
    retry_at_ms: int = 0
    """When the next attempt may start."""
    answers: dict[str, SignalTaken | TimerFired] = {}
    """The signals and timers that answered waits of this visit, by key of the wait or its group."""
    waits: tuple[Wait, ...] = ()
    """The waits of this visit that do not fit into the run's row."""
    failure: Failure | None = None
    fork: Fork | None = None
    """The branches that must end before the node runs."""
    children: dict[int, str] = {}
    """The ids of the child runs that this visit started, by number."""
    ended: int = 0
    """How many branches of the fork have ended."""
    failures: tuple[BranchFailed, ...] = ()
    """The failed branches of the fork before this visit, if failures spare the others."""
    calls: dict[str, Call] = {}
    """The calls of this visit, by id."""
    noted: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """See `notes`. A program that notes nothing has no such field in its snapshots."""

    @property
    def notes(self) -> dict[str, Any]:
        """What the program noted in this visit, such as how often it used each retry policy."""
        return {} if self.noted is msgspec.UNSET else self.noted


class Branch(Strand, frozen=True, kw_only=True):
    """A strand that runs in parallel with others."""

    delta: dict[str, Any] = {}
    """What the branch changed in the state with which it started."""
    ops: dict[str, str] = {}
    """The reducers of the changed fields."""
    over: bool = False
    failed: BranchFailed | None = None
    """How the branch failed. A failed branch is over."""


class Execution(Strand, frozen=True, kw_only=True):
    """The fold of a journal."""

    state: dict[str, Any]
    seed: str
    """The seed of all random draws of this run."""
    branches: dict[str, Branch] = {}
    """The branches of all forks that are not joined yet, by path."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Name and id of each signal that was taken or set aside. A signal is taken once."""
    ending: Ending | None = None
    nodes_run: int = 0
    spent_ms: int = 0
    """Time spent inside nodes."""
    fences: int = 0
    """How often in a row the run was taken over without any progress."""
    retried: str = ""
    """The id of the last retry request that was carried out."""
    ttl: int = 0
    """The ttl of records since the run was extended; 0 if it never was."""
    kept: str = ""
    """The retention class of blobs since the run was extended."""
    spent: Spending = NO_SPENDING
    """Cost of finished calls plus the reservations of unresolved ones."""
    saved: Spending = NO_SPENDING
    """What shared answers would have cost without sharing."""
    drawn: Spending | None = None
    """What the run has drawn from a shared budget; None if it shares none."""
    slices: dict[str, Spending] = {}
    """What each child with its own budget may spend; after its end, what it spent."""
    failed_node: str | msgspec.UnsetType = msgspec.UNSET
    """See `ending_node`. A run that did not fail has no such field in its snapshots."""
    timed_out: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """When a wait for a signal last timed out, by node. A run without such a node has no such field
    in its snapshots."""
    aside: tuple[SignalSetAside, ...] | msgspec.UnsetType = msgspec.UNSET
    """See `set_aside`. A run that set no signal aside has no such field in its snapshots."""
    failed_in: str | msgspec.UnsetType = msgspec.UNSET
    """The branch in which the run failed, if it has branches."""

    @property
    def ending_node(self) -> str:
        """The node at which the run failed, also inside a branch; otherwise its current nodes."""
        return nodes_summary(self) if self.failed_node is msgspec.UNSET else self.failed_node

    def has_timed_out_since(self, moment_ms: int, *, node: str | None = None) -> bool:
        """Return whether a wait for a signal timed out since then, in any node or in this one."""
        times = {} if self.timed_out is msgspec.UNSET else self.timed_out
        found = times.values() if node is None else (times.get(node, -1),)
        return any(at_ms >= moment_ms for at_ms in found)

    @property
    def set_aside(self) -> tuple[SignalSetAside, ...]:
        """The signals that did not fit the type of the wait for them, the oldest first."""
        return () if self.aside is msgspec.UNSET else self.aside

    @property
    def answered(self) -> frozenset[tuple[str, str]]:
        """Name and id of each signal that answered a wait."""
        return self.taken - {(event.name, event.id) for event in self.set_aside}

    def strand(self, path: str) -> Strand | None:
        """Return the run itself for an empty path, or a branch; None if it is joined."""
        return self.branches.get(path) if path else self

    def runnable_strands(self) -> Iterator[tuple[str, Strand]]:
        """Yield each strand that is at a node to run, with its path."""
        if self.ending is None:
            yield from self.current_strands()

    def current_strands(self) -> Iterator[tuple[str, Strand]]:
        """Yield each strand that is at a node, with its path, also after the end of the run."""
        if self.fork is None:
            yield "", self
        for path, branch in self.branches.items():
            if branch.fork is None and not branch.over:
                yield path, branch

    def is_at_node(self, path: str) -> bool:
        """Return whether a strand exists and is at a node to run."""
        strand = self.strand(path)
        over = isinstance(strand, Branch) and strand.over
        return strand is not None and strand.fork is None and not over

    def is_at_visit(self, path: str, visit: int) -> bool:
        """Return whether a strand is at the node of a given visit."""
        strand = self.strand(path)
        return strand is not None and strand.visit == visit and self.is_at_node(path)

    def strands_after(self, path: str) -> Iterator[str]:
        """Yield the strands that may be at a new node after an event of this one."""
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
        """Return whether the other branches of its fork go on if this branch fails."""
        return self._fork_of(path).spares

    def max_concurrent_branches(self, path: str) -> int:
        """Return how many branches of its fork may run at a time; 0 means any number."""
        return self._fork_of(path).concurrency if path else 0

    def _fork_of(self, path: str) -> Fork:
        strand = self.strand(outer_path(path))
        assert strand is not None
        assert strand.fork is not None
        return strand.fork


def outer_path(path: str) -> str:
    """Return the path of the strand that forked into this branch."""
    return path.rpartition("/")[0]


def is_within(path: str, within: str) -> bool:
    """Return whether a strand is ``within`` itself or one of its branches at any depth."""
    return not within or path == within or path.startswith(f"{within}/")


def nodes_summary(execution: Execution) -> str:
    """Return the current nodes of a run for display: ``read x14, check``."""
    if not execution.branches:
        return execution.node
    # Also after the end of the run: operators want to see where it was.
    nodes = Counter(strand.node for _, strand in execution.current_strands())
    shown = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in nodes.items())
    return shown if len(shown) <= _SUMMARY_CHARS_MAX else shown[: _SUMMARY_CHARS_MAX - 1] + "…"


def is_in_summary(node: str, summary: str) -> bool:
    """Return whether a summary of the current nodes of a run names a node."""
    return node == summary or any(
        node in (part, part.rpartition(" x")[0]) for part in summary.split(", ")
    )


_SUMMARY_CHARS_MAX = 200


def branch_paths(path: str, strand: Strand) -> Iterator[str]:
    """Yield the paths of a strand's branches. They contain the visit after which it forked."""
    if strand.fork is not None:
        prefix = f"{path}/" if path else ""
        for number in range(strand.fork.width):
            yield f"{prefix}{strand.visit - 1}.{number}"


def _branch_index(path: str) -> int:
    return int(path.rpartition(".")[2])
