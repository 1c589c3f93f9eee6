"""Who starts a process again after it has crashed, as an orchestrator would."""

from __future__ import annotations

from asyncio import Future
from typing import TYPE_CHECKING

from tests.simulation.process import Boot, Crashed, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Supervisor"]


class Supervisor:
    """Keeps one process of a name running: each crash is followed by a new process.

    A process that ends by itself is not started again. One that fails makes the whole run fail.
    """

    def __init__(self, world: World, name: str, boot: Boot) -> None:
        self._world = world
        self._name = name
        self._boot = boot
        self._stopped = False
        self.starts = 0
        self.ended: Future[None] = world.loop.create_future()
        """Done when the process has ended by itself, or crashed after `stop`."""
        self._start()

    def stop(self) -> None:
        """Do not start it again from now on; a process that runs is left alone."""
        self._stopped = True
        if self.process.crashed:
            self._end()

    def _start(self) -> None:
        if self._stopped or self._world.over:
            return
        self.starts += 1
        self.process = Process(self._world, self._name)
        if self.starts > 1:
            self._world.note(self.process, "restart", count=True)
        result = self.process.spawn(self._boot(self.process), name=self.process.name)
        result.add_done_callback(self._watch, context=self._world.context)

    def _watch(self, result: Future[None]) -> None:
        world = self._world
        error = None if result.cancelled() else result.exception()
        if isinstance(error, Crashed):
            if self._stopped:
                self._end()
            else:
                pause = world.random.random() * world.plan.restart_seconds_max
                world.at(world.loop.time() + pause, self._start)
        elif error is not None:
            error.add_note(f"{self.process.name} failed")
            world.loop.fail(error)
        else:
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
