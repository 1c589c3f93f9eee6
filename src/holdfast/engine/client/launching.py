"""Starts runs, with a worker of this process that has room for them, where there is one.

A run with ``durability="on_pause"`` stands nowhere but in that worker's memory until it pauses, and
its start is acknowledged only then, or when it has ended.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.client.process_workers import Crew
from holdfast.engine.journal.endings import Outcome
from holdfast.engine.journal.in_memory import Stood, Unwritten
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import starting
from holdfast.engine.runs.rows import read_row
from holdfast.engine.worker.worker import Room
from holdfast.errors import AlreadyExists, InvalidRequest, Refused, RunNotFound
from holdfast.graph import Graph
from holdfast.records.keys import RunKey

__all__ = ["Launched", "Launching"]


class Launched(msgspec.Struct, frozen=True):
    """A run whose start is acknowledged."""

    run: RunKey
    graph: Graph | None
    """None where another run took the input that is not one of this graph."""
    outcome: Outcome | None = None
    """How it ended, where nobody wrote that down."""


class Launching:
    """The starts of this process."""

    def __init__(self, kernel: Kernel, crew: Crew) -> None:
        self._kernel = kernel
        self._crew = crew
        # Runs that are just being started, and stand nowhere but in memory.
        self._unwritten: dict[RunKey, Unwritten] = {}

    async def start(self, graph: Graph, input: Any, asked: starting.Start) -> Launched:
        """Start a run, and return it once nothing can lose it.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            AlreadyExists: there is a run of this id, with another input, in another session or for
                another user.
            SessionBusy: another run of its session goes on, and it is not to wait for that.
        """
        if asked.run in self._unwritten:
            return await self._joined(graph, input, asked)
        room = self._crew.reserve(asked.run, graph.name, asked.pool)
        if asked.on_pause and room is not None and _fits_in_memory(asked):
            return await self._start_in_memory(graph, input, asked, room)
        try:
            started = await starting.start(
                self._kernel,
                self._crew,
                graph,
                input,
                asked,
                owner=None if room is None else room.owner,
            )
        except BaseException as error:
            if room is not None:
                room.give_back(unsure=not isinstance(error, InvalidRequest | Refused))
            raise
        self._hand_on(started, room)
        if started.head.into is None:
            return Launched(asked.run, graph)
        taken_by = RunKey(asked.run.tenant, started.head.into)
        return Launched(taken_by, graph if await self._is_of(taken_by, graph) else None)

    async def _start_in_memory(
        self, graph: Graph, input: Any, asked: starting.Start, room: Room
    ) -> Launched:
        try:
            started = await starting.begin_unwritten(
                self._kernel, graph, input, asked, owner=room.owner
            )
        except BaseException:
            room.give_back()
            raise
        unwritten = None if started.loaded is None else started.loaded.unwritten
        if unwritten is None:
            room.give_back()
            return Launched(asked.run, graph)
        if asked.run in self._unwritten:  # somebody else was faster
            room.give_back()
            return await self._joined(graph, input, asked)
        # Until it is known, though whoever started it may not wait for that.
        self._unwritten[asked.run] = unwritten
        unwritten.when_known(lambda: self._unwritten.pop(asked.run))
        room.take(started.head, started.loaded)
        return await self._acknowledged(asked.run, graph, unwritten)

    async def _joined(self, graph: Graph, input: Any, asked: starting.Start) -> Launched:
        """Return a run that another caller in this process is just starting."""
        unwritten = self._unwritten[asked.run]
        same_user = await starting.hashed_user(self._kernel, asked) == unwritten.user
        prepared = await starting.prepare(self._kernel, graph, input, asked.session)
        if prepared.hash != unwritten.hash or not same_user:
            raise AlreadyExists(
                f"a run {asked.run.id!r} is just being started, with another input, in another "
                "session or for another user"
            )
        return await self._acknowledged(asked.run, graph, unwritten)

    async def _acknowledged(self, run: RunKey, graph: Graph, unwritten: Unwritten) -> Launched:
        try:
            outcome = await unwritten.known()
        except Stood as stood:
            starting.same_run(stood.item, unwritten.hash, run, user=unwritten.user)
            outcome = None
        return Launched(run, graph, outcome)

    def _hand_on(self, started: starting.Started, room: Room | None) -> None:
        head, loaded = started.head, started.loaded
        if room is not None and loaded is not None and head.owner is not None:
            room.take(head, loaded)
            return
        if room is not None:
            room.give_back()
        if loaded is not None and head.reason is None and head.place is not None:
            self._crew.offer(head.place)

    async def _is_of(self, run: RunKey, graph: Graph) -> bool:
        with suppress(RunNotFound):  # a pointer may outlive the run to which it points
            return (await read_row(self._kernel, run)).graph == graph.name
        return False


def _fits_in_memory(asked: starting.Start) -> bool:
    """Return whether nobody has to find the run while it is written nowhere."""
    return asked.session is None and asked.starts_ms is None and asked.budget is None
