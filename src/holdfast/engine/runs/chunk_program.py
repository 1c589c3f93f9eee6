"""The program of a chunk: it runs an item function for each index of its range, side by side.

A chunk is a run of the graph of its parent, but its nodes are others: ``map`` forks into one branch
for each item, and ``join`` ends the run. The state of the chunk holds its results by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.decision import Decision, Outcome, Raised, Returned
from holdfast.model.event import (
    AttemptFailed,
    BranchFailed,
    Event,
    Failed,
    Failure,
    Finished,
    Fork,
    NodeFinished,
)
from holdfast.model.execution import Execution, Strand
from holdfast.model.map import MapChunk, MappedItem, MapSpec
from holdfast.model.needs import Needs
from holdfast.model.program import Effect, ItemPolicy, Proceed, Program, RunItem

__all__ = ["ChunkProgram", "chunk_entries", "chunk_input", "item_index"]

_MAP, _JOIN = "map", "join"
_FAILURES = "failures"
_DEFAULT_POLICY = ItemPolicy()
# What a crash may repeat of items that make no recorded calls.
_UNWRITTEN_MS_MAX = 5_000


def chunk_input(
    spec: MapSpec, chunk: MapChunk, *, indices: list[int] | None = None
) -> dict[str, Any]:
    """Return the state with which a chunk starts; ``indices`` are those that it has to run."""
    state: dict[str, Any] = {
        "item": spec.item,
        "first": chunk.first,
        "count": chunk.count,
        "branches": spec.branches(max(chunk.lane, 0)),
        "tolerated": spec.tolerated,
    }
    return state if indices is None else {**state, "indices": indices}


def chunk_entries(execution: Execution) -> Iterator[MappedItem]:
    """Yield the items of a chunk that have a result or failed, also before its end."""
    state = execution.state
    indices = _indices(state)
    for index in indices:
        if str(index) in state:
            yield MappedItem(index, state[str(index)])
    for index, failure in state.get(_FAILURES, {}).items():
        yield MappedItem(int(index), None, Failure(*failure))
    for failed in execution.failures:
        yield MappedItem(indices[_branch_number(failed.branch)], None, failed.failure)
    for path, branch in execution.branches.items():
        index = indices[_branch_number(path)]
        if branch.failed is not None:
            yield MappedItem(index, None, branch.failed.failure)
        elif branch.over:
            yield MappedItem(index, branch.delta[str(index)])
        elif path == execution.failed_in:  # the one with which the chunk ended
            yield MappedItem(index, None, execution.failure)


def item_index(execution: Execution, branch: str) -> int:
    """Return the index of the item that a branch of a chunk runs."""
    return _indices(execution.state)[_branch_number(branch)]


class ChunkProgram(Program[Any, Any]):
    """The program of the chunks of one graph.

    Without an ``inner`` program it can start chunks, and not run them.
    """

    def __init__(
        self,
        name: str,
        version: int,
        inner: Program | None = None,
        *,
        find_program: Callable[[str], Program | None] = lambda name: None,
    ) -> None:
        """``find_program`` returns a graph of the worker, if it has one of that name."""
        self._name = name
        self._version = version
        self.inner = inner
        self.find_program = find_program
        self._written_ms: int | None = None

    @property
    def name(self) -> str:
        """The name of the graph of the parent."""
        return self._name

    @property
    def version(self) -> int:
        """The version of the graph of the parent."""
        return self._version

    @property
    def needs(self) -> Needs:
        """What the graph of the parent needs."""
        return super().needs if self.inner is None else self.inner.needs

    @property
    def signals(self) -> Mapping[str, Any]:
        """The types of the signals of the graph of the parent."""
        return {} if self.inner is None else self.inner.signals

    @property
    def takes_other_signals(self) -> bool:
        """Whether the graph of the parent takes signals that it does not declare."""
        return self.inner is None or self.inner.takes_other_signals

    def start(self, input: Any, seed: str) -> Execution:
        """Return the execution of a new chunk."""
        return Execution(state=dict(input), seed=seed, node=_MAP)

    def effect(self, execution: Execution, branch: str) -> Effect:
        """Return the effect that the chunk, or one of its items, needs next."""
        strand = execution.strand(branch)
        assert strand is not None
        if not branch:
            return Proceed(strand.node, strand.visit)
        policy = self._policy(strand.node)
        return RunItem(
            strand.node,
            strand.visit,
            strand.retry_at_ms,
            branch,
            policy.pausable,
            policy.max_pause_ms,
            index=_indices(execution.state)[_branch_number(branch)],
        )

    def step(self, execution: Execution, branch: str, outcome: Outcome, now_ms: int) -> Decision:
        """Decide what follows: all items side by side, and then the end."""
        strand = execution.strand(branch)
        assert strand is not None
        if branch:
            return self._after_item(execution, branch, strand, outcome, now_ms)
        delta: dict[str, Any] = {}
        fork: Fork | None = None
        if strand.node == _MAP:
            indices = _indices(execution.state)
            fork = Fork(
                starts=(execution.state["item"],) * len(indices),
                spares=True,
                concurrency=execution.state["branches"],
            )
        else:
            failures = {
                str(_indices(execution.state)[_branch_number(failed.branch)]): list(
                    msgspec.structs.astuple(failed.failure)
                )
                for failed in execution.failures
            }
            delta = {_FAILURES: failures} if failures else {}
        finished = NodeFinished(
            at_ms=now_ms,
            node=strand.node,
            visit=strand.visit,
            delta=delta,
            to=None if fork is None else _JOIN,
            fork=fork,
        )
        if fork is None:
            return Decision((finished, Finished(now_ms)))
        return Decision((finished,), checkpoint=False)

    def _after_item(
        self, execution: Execution, path: str, strand: Strand, outcome: Outcome, now_ms: int
    ) -> Decision:
        match outcome:
            case Returned():
                index = item_index(execution, path)
                finished = NodeFinished(
                    at_ms=now_ms,
                    node=strand.node,
                    visit=strand.visit,
                    delta={str(index): outcome.value},
                    to=None,
                    spent_ms=outcome.spent_ms,
                    branch=path,
                )
                return Decision((finished,), checkpoint=self._is_due(now_ms))
            case Raised():
                return self._after_error(execution, path, strand, outcome, now_ms)
            case _:
                failure = Failure(
                    "Stale", f"item {strand.node!r} paused for longer than its max_pause"
                )
                return Decision((_item_failed(execution, path, strand, failure, now_ms),))

    def _after_error(
        self, execution: Execution, path: str, strand: Strand, outcome: Raised, now_ms: int
    ) -> Decision:
        retry = self._policy(strand.node).retry
        failed = strand.failed_attempts + 1
        covered = isinstance(outcome.error, Exception) and retry.covers(outcome.error)
        if not covered or failed >= retry.attempts:
            return Decision((_item_failed(execution, path, strand, outcome.failure, now_ms),))
        draw = "#".join([execution.seed, path, str(strand.visit)])
        return Decision(
            (
                AttemptFailed(
                    at_ms=now_ms,
                    node=strand.node,
                    visit=strand.visit,
                    failure=outcome.failure,
                    retry_at_ms=now_ms + retry.backoff_ms(failed, draw),
                    spent_ms=outcome.spent_ms,
                    branch=path,
                ),
            )
        )

    def _policy(self, item: str) -> ItemPolicy:
        if self.inner is None:
            return _DEFAULT_POLICY
        return self.inner.item_policies.get(item, _DEFAULT_POLICY)

    def _is_due(self, now_ms: int) -> bool:
        """Return whether results have stayed in memory for long: then they are written now."""
        if self._written_ms is None or now_ms - self._written_ms >= _UNWRITTEN_MS_MAX:
            first, self._written_ms = self._written_ms is None, now_ms
            return not first
        return False


def _item_failed(
    execution: Execution, path: str, strand: Strand, failure: Failure, now_ms: int
) -> Event:
    """Return the event for an item that failed; the chunk ends if too many of it did."""
    failed = 1 + sum(branch.failed is not None for branch in execution.branches.values())
    if failed > execution.state["tolerated"]:
        return Failed(now_ms, failure, strand.node, path)
    return BranchFailed(now_ms, path, strand.node, failure)


def _indices(state: Mapping[str, Any]) -> Sequence[int]:
    """Return the indices of the items of a chunk, in the order of its branches."""
    if "indices" in state:
        return state["indices"]
    return range(state["first"], state["first"] + state["count"])


def _branch_number(path: str) -> int:
    return int(path.partition("/")[0].rpartition(".")[2])
