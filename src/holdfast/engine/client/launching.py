"""Starts runs, in a worker of this process if one has a free slot.

A run with ``durability="on_pause"`` exists only in that worker's memory until it pauses or ends,
and its start is acknowledged only then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.journal.in_memory import InMemoryRun, RunExists
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import starting
from holdfast.engine.runs.graph_items import publish_declared
from holdfast.engine.runs.local_workers import SlotHandover, reserve_slot
from holdfast.engine.runs.rows import read_row
from holdfast.errors import AlreadyExists, RunNotFound
from holdfast.model.program import Program
from holdfast.records.keys import RunKey

__all__ = ["LaunchedRun", "RunLauncher"]


class LaunchedRun(msgspec.Struct, frozen=True):
    """A run whose start is acknowledged."""

    run: RunKey
    graph: Program | None
    """None if a run of another graph took the input."""
    outcome: RunOutcome | None = None
    """How it ended, if it ended in memory: then no row says it."""
    repeated: bool = False
    """Whether the run existed before, or another run took the input."""


class RunLauncher:
    """Starts the runs of this process."""

    def __init__(self, kernel: Kernel, workers: ProcessWorkers) -> None:
        self._kernel = kernel
        self._workers = workers
        # Runs whose start is not acknowledged: they exist only in memory.
        self._in_memory: dict[RunKey, InMemoryRun] = {}
        # Runs of which a caller finds out whether they exist, before it starts them in memory.
        self._undecided: dict[RunKey, asyncio.Event] = {}

    async def start(
        self, graph: Program, input: Any, request: starting.StartRequest
    ) -> LaunchedRun:
        """Start a run; return when its start is acknowledged.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            AlreadyExists: there is a run of this id, with another input, in another session or for
                another user.
            SessionBusy: another run of its session is open, and the request says not to wait.
        """
        await publish_declared(self._kernel, graph)
        # Without this wait, a second caller would get no slot, and would write the run.
        while undecided := self._undecided.get(request.run):
            await undecided.wait()
        if request.run in self._in_memory:
            return await self._join_start(graph, input, request)
        in_memory = request.on_pause and _can_stay_in_memory(request)
        unwritten = (BaseException,) if in_memory else starting.START_REFUSALS
        slot_for_run = reserve_slot(
            self._workers, request.run, graph.name, request.pool, unwritten=unwritten
        )
        with slot_for_run as slot:
            owner = slot.owner
            if in_memory and owner is not None:
                return await self._start_in_memory(graph, input, request, slot, owner=owner)
            started = await starting.start_run(
                self._kernel, self._workers, graph, input, request, owner=owner
            )
            if started.loaded is not None:
                slot.start_run(started.head, started.loaded)
        repeated = started.loaded is None
        if started.head.into is None:
            return LaunchedRun(request.run, graph, repeated=repeated)
        merged_into = RunKey(request.run.tenant, started.head.into)
        graph_or_none = graph if await self._is_run_of(merged_into, graph) else None
        return LaunchedRun(merged_into, graph_or_none, repeated=repeated)

    async def _start_in_memory(
        self,
        graph: Program,
        input: Any,
        request: starting.StartRequest,
        slot: SlotHandover,
        *,
        owner: str,
    ) -> LaunchedRun:
        self._undecided[request.run] = decided = asyncio.Event()
        try:
            started = await starting.start_in_memory(
                self._kernel, graph, input, request, owner=owner
            )
        finally:
            del self._undecided[request.run]
            decided.set()
        in_memory = None if started.loaded is None else started.loaded.in_memory
        if in_memory is None:
            return LaunchedRun(request.run, graph)
        # It stays listed until it is acknowledged, even if this caller is cancelled before.
        self._in_memory[request.run] = in_memory
        in_memory.add_done_callback(lambda: self._in_memory.pop(request.run))
        slot.start_run(started.head, started.loaded)
        return await self._await_acknowledged(request.run, graph, in_memory)

    async def _join_start(
        self, graph: Program, input: Any, request: starting.StartRequest
    ) -> LaunchedRun:
        """Wait for a run that another caller in this process is starting."""
        in_memory = self._in_memory[request.run]
        same_user = await starting.hash_requested_user(self._kernel, request) == in_memory.user
        prepared = await starting.prepare_input(self._kernel, graph, input, request.session)
        if prepared.input_hash != in_memory.input_hash or not same_user:
            raise AlreadyExists(
                f"a run {request.run.id!r} is being started by another graph, with another input, "
                "in another session or for another user"
            )
        return await self._await_acknowledged(request.run, graph, in_memory)

    async def _await_acknowledged(
        self, run: RunKey, graph: Program, in_memory: InMemoryRun
    ) -> LaunchedRun:
        try:
            outcome = await in_memory.wait()
        except RunExists as stood:
            starting.check_same_run(
                stood.item, in_memory.input_hash, run, graph=graph.name, user=in_memory.user
            )
            outcome = None
        return LaunchedRun(run, graph, outcome)

    async def _is_run_of(self, run: RunKey, graph: Program) -> bool:
        with suppress(RunNotFound):  # the row may be gone before the pointer to it
            return (await read_row(self._kernel, run)).graph == graph.name
        return False


def _can_stay_in_memory(request: starting.StartRequest) -> bool:
    """Return whether no other process has to find the run before it pauses or ends."""
    return request.session is None and request.starts_ms is None and request.budget is None
