"""An event loop in virtual time that draws from a seed which ready callback runs next.

Nothing waits: when no callback is ready, the time jumps to the next timer. Nothing hangs either: a
main task that can never end is a `Deadlock`, one that never ends is a `RanAway`.

Real loops run ready callbacks in the order in which they became ready. Here any of them may be
next, so that code which owes its correctness to that order is found out.
"""

from __future__ import annotations

import asyncio
import gc
import random
from asyncio import Handle, Task, TimerHandle
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import cache, partial
from heapq import heapify, heappop, heappush
from types import CoroutineType
from typing import Any, TypeVar

__all__ = ["OWNER", "Deadlock", "Owner", "RanAway", "VirtualLoop", "run"]

T = TypeVar("T")

CALLBACKS_MAX = 5_000_000
_TASKS_SHOWN_MAX = 20
# A task may answer a cancellation with further awaits, each of which is then cancelled in turn.
_FAREWELLS_MAX = 50
_FAREWELL_CALLBACKS_MAX = 200_000
_TIMERS_SWEPT_MIN = 100


class Deadlock(Exception):
    """Nothing can happen any more, and the main task is not done."""


class RanAway(Exception):
    """More callbacks ran than a run may need."""


class Owner:
    """What callbacks belong to, so that they can be held back together: a simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.held: list[Handle] = []
        """Callbacks that became ready while it was paused."""


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)
"""To whom the running code belongs. Tasks and callbacks inherit it from whoever makes them."""


class _Call(Handle):
    """A callback that is ready. Made for most of what happens, so nothing but what it needs.

    Its loop fills it in: to call a constructor takes longer than what it does.
    """

    __slots__ = ()
    _source_traceback = None  # asyncio looks for one, which only its debug mode has
    _repr = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class _Timer(TimerHandle):
    """A callback at a time. Its loop asks whether it is cancelled when that time has come."""

    __slots__ = ()
    _source_traceback = None
    _repr = None

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)


_new = object.__new__


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks of many owners, one after the other, in an order that the seed decides.

    It relies on four privates of BaseEventLoop that have not changed since Python 3.4: `_ready`,
    `_scheduled`, `_stopping` and `_run_once`. A seed runs some 30,000 callbacks, so what stands
    between two of them counts: handles are slim, and this loop runs them itself.
    """

    _ready: list[Handle]
    _scheduled: list[tuple[float, _Timer]]  # type: ignore[assignment]
    """Of two timers for the same moment neither is the lesser, as asyncio has it."""
    _stopping: bool
    _timer_cancelled_count: int

    # It is never in debug mode. Every future asks, so what answers is no function of Python.
    get_debug = bool  # type: ignore[assignment]

    def __init__(
        self, seed: int | str, *, shuffle: bool = True, callbacks_max: int = CALLBACKS_MAX
    ) -> None:
        super().__init__()
        # Text is hashed by SHA-512, the same in every process; a tuple would not be.
        self._draw = random.Random(f"{seed}/loop").random
        self._shuffle = shuffle
        self.create_future = partial(asyncio.Future, loop=self)
        self.now = 0.0
        """The virtual time: what `time` returns, for whoever asks often."""
        self._ready = []
        self._callbacks = 0
        self._callbacks_max = callbacks_max
        self._failure: BaseException | None = None
        self._ending = False
        self._farewells: list[Callable[[], None]] = []
        # Strong references, and in order: a forgotten task that the garbage collector ends whenever
        # it likes could not be replayed, nor could an iteration over asyncio's own (weak) set.
        self._tasks: list[tuple[Task[Any], Owner | None]] = []
        self._tasks_made = 0
        self._tasks_swept_at = 64

    @property
    def callbacks(self) -> int:
        """How many callbacks ran so far."""
        return self._callbacks

    @property
    def ending(self) -> bool:
        """Whether the main task is done and what is left is being cancelled."""
        return self._ending

    def time(self) -> float:
        return self.now

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> Task[T]:
        self._tasks_made += 1
        # asyncio's own names count on from one loop to the next.
        name = name or f"task-{self._tasks_made}"
        task = Task(coro, loop=self, name=name, context=context)
        owner = OWNER.get() if context is None else context.get(OWNER)
        self._tasks.append((task, owner))
        if len(self._tasks) > self._tasks_swept_at:
            self._tasks = [entry for entry in self._tasks if not entry[0].done()]
            self._tasks_swept_at = 64 + 2 * len(self._tasks)
        return task

    def pending(self) -> list[tuple[Task[Any], Owner | None]]:
        """Return the tasks that are not done, with their owners, in the order of their making."""
        return [entry for entry in self._tasks if not entry[0].done()]

    def has_timers(self, context: Context) -> bool:
        """Return whether a timer of that context is still to come."""
        return any(
            timer._context is context and not timer._cancelled for _, timer in self._scheduled
        )

    def release(self, owner: Owner) -> None:
        """Let what an owner's pause held back run."""
        owner.paused = False
        self._ready.extend(owner.held)
        owner.held.clear()

    def at_end(self, farewell: Callable[[], None]) -> None:
        """Call this when the main task is done, before what is left is released and cancelled."""
        self._farewells.append(farewell)

    def fail(self, error: BaseException) -> None:
        """Let the whole run fail with this error, at once."""
        if self._failure is None and not self._ending:
            self._failure = error

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # What asyncio would merely log (an invariant that a callback found broken, a task whose
        # error nobody looked at) must not pass for a success.
        error = context.get("exception") or RuntimeError("no exception")
        source = context.get("task") or context.get("future") or context.get("handle")
        if self._failure is None and not self._ending:
            error.add_note(f"{context.get('message')}: {source!r}")
        self.fail(error)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        call = _new(_Call)
        call._callback = callback
        call._args = args
        call._context = copy_context() if context is None else context
        call._cancelled = False
        self._ready.append(call)
        return call

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        timer = _new(_Timer)
        timer._when = when
        timer._callback = callback
        timer._args = args
        timer._loop = self
        timer._context = copy_context() if context is None else context
        timer._cancelled = False
        timer._scheduled = True
        heappush(self._scheduled, (when, timer))
        return timer

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call the function here and now: a thread's timing could not be replayed."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def check(self) -> None:
        """Raise what failed and was not noticed so far, now that nobody is left to look at it.

        Tasks of a paused owner count for nothing: it could not look at them.
        """
        for task, owner in self._tasks:
            if owner is not None and owner.paused:
                continue
            if task.done() and task._log_traceback:  # type: ignore[attr-defined]
                self.fail(task.exception() or RuntimeError("no exception"))
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Cancel what is left, quietly, and close."""
        self._ending, self._failure = True, None
        for farewell in self._farewells:
            farewell()
        self._callbacks_max = self._callbacks + _FAREWELL_CALLBACKS_MAX
        try:
            for _ in range(_FAREWELLS_MAX):
                left = self.pending()
                if not left:
                    break
                for task, owner in left:
                    task.cancel()
                    if owner is not None:
                        self.release(owner)
                self.run_forever()
        except RanAway:
            pass
        for task, _ in self.pending():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        # Not left to the collector: to find what is not needed takes longer than to free it.
        for task, _ in self._tasks:
            if task.cancelled():
                task._make_cancelled_error()  # type: ignore[attr-defined]
        self._tasks.clear()
        self._ready.clear()
        self._scheduled.clear()
        self._farewells.clear()
        self.close()

    def _run_once(self) -> None:
        """Run all that is ready and becomes ready by it, time after time, until it is to stop."""
        ready, draw, shuffle = self._ready, self._draw, self._shuffle
        owner_in, callbacks_max = OWNER, self._callbacks_max
        while not self._stopping:
            if not ready:
                self._move_on()
                continue
            if len(ready) == 1:
                handle = ready.pop()
            elif shuffle:
                chosen = int(draw() * len(ready))
                handle = ready[chosen]
                ready[chosen] = ready[-1]
                del ready[-1]
            else:
                handle = ready.pop(0)
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            context = handle._context  # type: ignore[attr-defined]
            owner = context.get(owner_in)
            if owner is not None and owner.paused:
                owner.held.append(handle)
                continue
            self._callbacks += 1
            if self._callbacks > callbacks_max:
                raise RanAway(self._told(f"after {callbacks_max:,} callbacks"))
            try:
                context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error})
            if self._failure is not None:
                raise self._failure

    def _move_on(self) -> None:
        """Let the time of the next timers come."""
        timers = self._scheduled
        if len(timers) > _TIMERS_SWEPT_MIN and self._timer_cancelled_count * 2 > len(timers):
            timers = [timer for timer in timers if not timer[1]._cancelled]
            heapify(timers)
            self._scheduled, self._timer_cancelled_count = timers, 0
        while timers and timers[0][1]._cancelled:
            heappop(timers)
            self._timer_cancelled_count -= 1
        if self._ending:
            self._stopping = True
        elif not timers:
            raise Deadlock(self._told("nothing can happen any more"))
        else:
            if timers[0][0] > self.now:
                self.now = timers[0][0]
            now, ready = self.now, self._ready
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[1]
                timer._scheduled = False
                ready.append(timer)

    def _told(self, what: str) -> str:
        """Return what happened, and who is still waiting where."""
        pending = self.pending()
        lines = [f"{what} at {self.now:.3f} s; {len(pending)} tasks wait:"]
        for task, owner in pending[:_TASKS_SHOWN_MAX]:
            of = f" of {owner.name}" + (", held back" if owner.paused else "") if owner else ""
            lines.append(f"  {task.get_name()}{of}: {_place(task)}")
        return "\n".join(lines)

    # What the base class asks of a loop that has sockets.

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


# Less than one world leaves behind: right after it, most of that is still in the processor's
# caches, and to look through it takes half as long as after five of them.
_GARBAGE_OBJECTS_MAX = 10_000


def run(
    main: Coroutine[Any, Any, T],
    seed: int | str = 0,
    *,
    shuffle: bool = True,
    callbacks_max: int = CALLBACKS_MAX,
) -> T:
    """Run a coroutine to its end in virtual time; cancel quietly whatever it leaves behind.

    Raises:
        Deadlock: it can never end.
        RanAway: it did not end within that many callbacks.
    """
    loop = VirtualLoop(seed, shuffle=shuffle, callbacks_max=callbacks_max)
    collecting = gc.isenabled()
    # The collector may end an abandoned generator, and so run code of it, at any allocation.
    gc.disable()
    _spare_collector()
    try:
        with _unregistered_tasks():
            result = loop.run_until_complete(main)
        loop.check()
        return result
    finally:
        loop.end()
        if collecting:
            gc.enable()


@contextmanager
def _unregistered_tasks() -> Iterator[None]:
    """Spare asyncio its weak set of all tasks: nobody asks for it, and it has a twentieth of a run.

    Where it has none, as in later releases of Python, this does nothing.
    """
    registry: Any = getattr(asyncio.tasks, "_all_tasks", None)
    if registry is None:
        yield
        return
    registry.add = _pass_over
    try:
        yield
    finally:
        del registry.add


def _pass_over(task: object) -> None: ...


@cache
def _spare_collector() -> None:
    """Let the collector look at what is new only, and only where there is much of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS_MAX)


def _place(task: Task[Any]) -> str:
    """Return where in its code a task waits."""
    waiting: Any = task.get_coro()
    while isinstance(getattr(waiting, "cr_await", None), CoroutineType):
        waiting = waiting.cr_await
    frame = getattr(waiting, "cr_frame", None)
    if frame is None:
        return repr(waiting)
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
