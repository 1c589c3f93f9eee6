"""One simulated process: a worker or a client, which can crash and stall at any await.

Everything that runs in its name carries it in its context, and the loop asks for it before each
callback. So a crash is one: no line of its code runs any more, no `finally`, no `except`, until the
whole run is over. And so is a stall: nothing of it runs for a while, whatever it waited for.
"""

from __future__ import annotations

from asyncio import Future, Task, TimerHandle
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holdfast.clock import SeededIds
from holdfast.storage.blobs import Blobs
from holdfast.storage.meter import Meter
from holdfast.storage.open import Store
from holdfast.storage.units import Units
from tests.simulation.blobs import HostileCalls
from tests.simulation.clock import ProcessClock
from tests.simulation.faults import drawn
from tests.simulation.hostile import HostileEngine
from tests.simulation.loop import OWNER, Owner

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Boot", "Crashed", "Process"]

T = TypeVar("T")

# What was sent, and not yet carried out, when its sender crashed: did it leave the machine?
_LOST_WITH_ITS_SENDER = 0.5


class _NoMeter(Meter):
    """Counts nothing: operations of a world that is not metered cost nothing."""

    def record(
        self, purpose: str, operation: str, units: Units, *, began: float | None = None
    ) -> None: ...


class _Ids(SeededIds):
    """The ids of one process, each after all that it made before."""

    last = ""
    """The one that was made last."""

    def new(self) -> str:
        self.last = super().new()
        return self.last


class Crashed(BaseException):
    """The process that was waited for has crashed.

    Not an Exception, so that no code under test mistakes it for something that it can handle.
    """


class Process(Owner):
    """An operating system's process, with its own clock, ids, table and blobs.

    What belongs to it is started by `spawn` or `run`. Other code (a test's) may use its table too,
    and then gets `Crashed` where the process itself would get nothing.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.incarnation(name))
        self.world = world
        self.crashed = False
        self.in_flight: dict[int, TimerHandle] = {}
        """What was sent and is not carried out yet."""
        self.context = Context()
        """For callbacks that are to run only while the process does."""
        self.context.run(OWNER.set, self)
        self.clock = ProcessClock(self, world.draw_skew())
        self.ids = _Ids(world.random.getrandbits(64), self.clock)
        self.meter = Meter() if world.metered else _NoMeter()
        self.engine = HostileEngine(self)
        calls = HostileCalls(self)
        self.blobs = Blobs(world.blobs, self.meter, threads=calls)
        self.store = Store(self.engine, self.blobs, url=f"world://{self.name}", meter=self.meter)
        self.table = self.store.table
        self._awaited: dict[Future[Any], None] = {}
        self.stalled_until = 0.0
        """Until when it stood, or stands, still."""
        self.sluggish = world.draw_sluggish()
        """Whether it wakes late from every sleep, and hears every answer late."""
        world.admit(self)

    @property
    def silent(self) -> bool:
        """Whether nothing that it does reaches the world any more."""
        return self.crashed or self.world.over

    @property
    def stalled(self) -> bool:
        """Whether it stands still and will go on."""
        return self.paused and not self.crashed

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> Future[T]:
        """Start a task of the process; return what it comes to, which is `Crashed` in a crash.

        To cancel the future is to cancel the task.
        """
        loop = self.world.loop
        result: Future[T] = loop.create_future()
        if self.silent:
            work.close()
            _give_up(result, self.name)
            return result
        task = loop.create_task(work, name=name, context=self.context.copy())

        def ended(task: Task[T]) -> None:
            if result.done():
                # Cancelled. Should the task have failed all the same, asyncio complains of it.
                return
            if task.cancelled():
                result.cancel()
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        def let_go(result: Future[T]) -> None:
            if result.cancelled():
                task.cancel()

        task.add_done_callback(ended, context=self.world.context)
        self._await(result)
        result.add_done_callback(let_go, context=self.world.context)
        return result

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work as the process, and wait for it.

        Raises:
            Crashed: the process crashed before it was done.
        """
        return await self.spawn(work)

    def crash(self) -> None:
        """End the process at once, as by kill -9."""
        if self.silent:
            return
        self.crashed = self.paused = True
        self.world.note(self, "crash", count=True)
        for timer in self.in_flight.values():
            if self.world.random.random() < _LOST_WITH_ITS_SENDER:
                timer.cancel()
                self.world.note(self, "lost with its sender")
        self.in_flight.clear()
        for result in list(self._awaited):
            _give_up(result, self.name)

    async def die(self) -> None:
        """Crash here: nothing behind this line runs."""
        self.crash()
        await self.promise()

    def stall(self, seconds: float) -> None:
        """Let the process stand still for that long, as by SIGSTOP and SIGCONT."""
        if self.silent:
            return
        self.paused = True
        self.stalled_until = max(self.stalled_until, self.world.loop.time() + seconds)
        self.world.note(self, "stall", f"{seconds:.3f} s", count=True)
        self.world.at(self.stalled_until, self._go_on)

    def _go_on(self) -> None:
        if self.stalled and self.world.loop.time() >= self.stalled_until:
            self.world.note(self, "goes on")
            self.world.loop.release(self)

    def run_risk(self, seconds: float) -> None:
        """Crash or stall at some moment of an await that takes that long, if fate has it so."""
        world = self.world
        odds = world.plan.ends
        if not odds:
            return
        fate = drawn(odds, world.random.random())
        if fate is None:
            return
        moment = world.loop.now + world.random.random() * seconds
        if fate == "crash":
            world.at(moment, self.crash)
        else:
            # Most stalls are short; those beyond a lease matter most.
            lasting = world.random.random() ** 2 * world.plan.stall_seconds_max
            world.at(moment, self.stall, lasting)

    def promise(self) -> Future[Any]:
        """Return a future for the running code to wait for; silent where the process is."""
        future: Future[Any] = self.world.loop.create_future()
        if OWNER.get() is not self:
            self._await(future)
            if self.crashed and not self.world.over:
                _give_up(future, self.name)
        return future

    def _await(self, future: Future[Any]) -> None:
        """Remember that somebody waits for this who does not crash with the process."""
        self._awaited[future] = None
        future.add_done_callback(self._forget, context=self.world.context)

    def _forget(self, future: Future[Any]) -> None:
        self._awaited.pop(future, None)


Boot: TypeAlias = Callable[[Process], Coroutine[Any, Any, None]]
"""What a process does from its start on."""


def _give_up(future: Future[Any], name: str) -> None:
    if not future.done():
        future.set_exception(Crashed(name))
        # Looked at: where nobody waits, nobody is to be told.
        future.exception()
