"""Starts runs, with a worker of this process that has room for them, where there is one.

A run with ``durability="on_pause"`` stands nowhere but in that worker's memory until it pauses, and
its start is acknowledged only then, or when it has ended.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.journal.in_memory import InMemoryRun, RunExists
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import starting
from holdfast.engine.runs.rows import read_row
from holdfast.engine.worker.claims import SlotReservation
from holdfast.errors import AlreadyExists, InvalidRequest, Refused, RunNotFound
from holdfast.model.program import Program
from holdfast.records.keys import RunKey

__all__ = ["LaunchedRun", "RunLauncher"]


class LaunchedRun(msgspec.Struct, frozen=True):
    """A run whose start is acknowledged."""

    run: RunKey
    graph: Program | None
    """None where another run took the input that is not one of this graph."""
    outcome: RunOutcome | None = None
    """How it ended, where nobody wrote that down."""


class RunLauncher:
    """The starts of this process."""

    def __init__(self, kernel: Kernel, workers: ProcessWorkers) -> None:
        self._kernel = kernel
        self._workers = workers
        # Runs that are just being started, and stand nowhere but in memory.
        self._in_memory: dict[RunKey, InMemoryRun] = {}

    async def start(
        self, graph: Program, input: Any, request: starting.StartRequest
    ) -> LaunchedRun:
        """Start a run, and return it once nothing can lose it.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            AlreadyExists: there is a run of this id, with another input, in another session or for
                another user.
            SessionBusy: another run of its session goes on, and it is not to wait for that.
        """
        if request.run in self._in_memory:
            return await self._join_start(graph, input, request)
        slot = self._workers.reserve(request.run, graph.name, request.pool)
        if request.on_pause and slot is not None and _can_stay_in_memory(request):
            return await self._start_in_memory(graph, input, request, slot)
        try:
            started = await starting.start_run(
                self._kernel,
                self._workers,
                graph,
                input,
                request,
                owner=None if slot is None else slot.owner,
            )
        except BaseException as error:
            if slot is not None:
                slot.release(maybe_claimed=not isinstance(error, InvalidRequest | Refused))
            raise
        self._hand_to_worker(started, slot)
        if started.head.into is None:
            return LaunchedRun(request.run, graph)
        merged_into = RunKey(request.run.tenant, started.head.into)
        return LaunchedRun(
            merged_into, graph if await self._is_run_of(merged_into, graph) else None
        )

    async def _start_in_memory(
        self, graph: Program, input: Any, request: starting.StartRequest, slot: SlotReservation
    ) -> LaunchedRun:
        try:
            started = await starting.start_in_memory(
                self._kernel, graph, input, request, owner=slot.owner
            )
        except BaseException:
            slot.release()
            raise
        in_memory = None if started.loaded is None else started.loaded.in_memory
        if in_memory is None:
            slot.release()
            return LaunchedRun(request.run, graph)
        if request.run in self._in_memory:  # somebody else was faster
            slot.release()
            return await self._join_start(graph, input, request)
        # Until it is known, though whoever started it may not wait for that.
        self._in_memory[request.run] = in_memory
        in_memory.add_done_callback(lambda: self._in_memory.pop(request.run))
        slot.start_run(started.head, started.loaded)
        return await self._await_acknowledged(request.run, graph, in_memory)

    async def _join_start(
        self, graph: Program, input: Any, request: starting.StartRequest
    ) -> LaunchedRun:
        """Return a run that another caller in this process is just starting."""
        in_memory = self._in_memory[request.run]
        same_user = await starting.hash_requested_user(self._kernel, request) == in_memory.user
        prepared = await starting.prepare_input(self._kernel, graph, input, request.session)
        if prepared.input_hash != in_memory.input_hash or not same_user:
            raise AlreadyExists(
                f"a run {request.run.id!r} is just being started, with another input, in another "
                "session or for another user"
            )
        return await self._await_acknowledged(request.run, graph, in_memory)

    async def _await_acknowledged(
        self, run: RunKey, graph: Program, in_memory: InMemoryRun
    ) -> LaunchedRun:
        try:
            outcome = await in_memory.wait()
        except RunExists as stood:
            starting.check_same_run(stood.item, in_memory.input_hash, run, user=in_memory.user)
            outcome = None
        return LaunchedRun(run, graph, outcome)

    def _hand_to_worker(self, started: starting.StartResult, slot: SlotReservation | None) -> None:
        head, loaded = started.head, started.loaded
        if slot is not None and loaded is not None and head.owner is not None:
            slot.start_run(head, loaded)
            return
        if slot is not None:
            slot.release()
        if loaded is not None and head.reason is None and head.index_key is not None:
            self._workers.offer(head.index_key)

    async def _is_run_of(self, run: RunKey, graph: Program) -> bool:
        with suppress(RunNotFound):  # a pointer may outlive the run to which it points
            return (await read_row(self._kernel, run)).graph == graph.name
        return False


def _can_stay_in_memory(request: starting.StartRequest) -> bool:
    """Return whether nobody has to find the run while it is written nowhere."""
    return request.session is None and request.starts_ms is None and request.budget is None
