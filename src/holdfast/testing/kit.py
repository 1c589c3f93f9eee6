"""`TestKit`: a store in memory, a clock that the test moves, and workers that follow both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from holdfast.app import Holdfast
from holdfast.clock import SeededIds, SystemClock
from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.invocation import Model
from holdfast.model.moments import Moment, moment_ms
from holdfast.model.names import POOL_LABEL
from holdfast.model.program import Program
from holdfast.model.quota import Quota
from holdfast.records.run_filter import RunFilter
from holdfast.review.options import ReviewOptions
from holdfast.testing.activity import Activity, describe_threads, observe_activity
from holdfast.testing.clock import KitClock
from holdfast.testing.worker import KitHoldfast, KitWorker

__all__ = ["NotSettled", "TestKit"]

_STORE = "sqlite://:memory:"
_START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
# The engine waits for so short a time between two attempts to write. To a test that is work.
_MOMENT_MS = 100
_NAP_SECONDS = 0.001
# On a loop that does not show its queue, this many turns count as proof that the queue is empty.
_BLIND_TURNS = 50


class NotSettled(AssertionError):
    """Something in the test goes on and on, or waits for something that the kit cannot see."""


class TestKit:
    """Runs workflows in a test: ``async with TestKit(approve) as kit: …``

    The store is in memory. The time of `clock` stands still until `skip` moves it. Leases, polls,
    timers, backoffs, expiries, start times and quotas all follow that clock.
    """

    __test__ = False  # pytest collects classes that are called Test…

    def __init__(
        self,
        *programs: Program,
        models: Mapping[str, Model] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        tasks: Mapping[str, Callable[..., Any]] | None = None,
        now: Moment = _START,
        **options: Any,
    ) -> None:
        """Prepare a kit whose worker runs ``programs``; see `serves`.

        ``now`` is the time at which the clock begins. ``options`` are further arguments of
        `Holdfast`, such as ``limits``.

        Raises:
            InvalidRequest: ``now`` is not a point in time.
        """
        self.clock = KitClock(moment_ms(now, "now"))
        # How far moments between two attempts moved the clock: the next skip is shorter by that.
        self._moments_ms = 0
        self._programs = programs
        self._resources: dict[str, Any] = {"models": models, "quotas": quotas, "tasks": tasks}
        self._options = options
        self._hf: KitHoldfast | None = None
        self._workers: list[KitWorker] = []
        self._starts: list[asyncio.Task[None]] = []
        self._real = SystemClock()

    @property
    def hf(self) -> Holdfast:
        """The `Holdfast` of the test: it starts runs, lists them, and makes workers."""
        return self._opened()

    def serves(
        self,
        *programs: Program,
        models: Mapping[str, Model] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        tasks: Mapping[str, Callable[..., Any]] | None = None,
        reviews: ReviewOptions | None = None,
        **options: Any,
    ) -> Self:
        """Start a worker for these programs, and return the kit.

        ``models``, ``quotas``, ``tasks`` and ``reviews`` are those of `Holdfast`; give them before
        the first use of `hf`. ``options`` are those of a worker, such as ``concurrency``.

        Raises:
            InvalidRequest: there is no program, `hf` was used before, or an option is invalid.
            ResourceMissing: a program declares a model or a quota that the kit does not have.
        """
        if not programs:
            raise InvalidRequest("serves needs at least one workflow or graph", field="programs")
        for program in programs:
            if not isinstance(program, Program):
                raise InvalidRequest(
                    f"programs must be workflows or graphs, got {program!r:.80}: pass each as an "
                    "argument of its own, as in kit.serves(approve, refund)",
                    field="programs",
                )
        given = {"models": models, "quotas": quotas, "tasks": tasks, "reviews": reviews}
        for name, value in given.items():
            if value is None:
                continue
            if self._hf is not None:
                raise InvalidRequest(
                    f"{name} must be given before the first use of kit.hf: pass them to the first "
                    "serves(…), or to TestKit(…)",
                    field=name,
                )
            if isinstance(value, Mapping):
                self._resources[name] = {**(self._resources[name] or {}), **value}
            else:
                self._options[name] = value
        worker = self._opened().worker(programs, **options)
        assert isinstance(worker, KitWorker)
        self._workers.append(worker)
        self._starts.append(asyncio.ensure_future(worker.start()))
        return self

    async def settled(self, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Return when everything has proceeded that can proceed without the test.

        What is left waits for a signal, for a time, or for something else that the test does. Nodes
        and calls that run are waited for, in threads and in real input and output, too. The clock
        stands still, except for moments of at most a tenth of a second between attempts.

        Raises:
            NotSettled: something still goes on after ``timeout`` real seconds; the message says
                which run, which node and which line. Or a run is ready, and no worker of the kit
                serves its program.
        """
        await self._settle(timeout)
        await self._check_served()

    async def _settle(self, seconds_max: float) -> None:
        deadline = self._real.monotonic() + seconds_max
        await self._finish_starts()
        while True:
            before = self._count_writes(), self.clock.now_ms()
            for worker in self._running():
                worker.poll_now()
            await self._quiesce(deadline, seconds_max)
            if (self._count_writes(), self.clock.now_ms()) == before:
                return

    async def skip(self, duration: Duration, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Move the clock on, from due time to due time, and settle at each of them.

        So timers, backoffs, expiries and notices come in their order and at their exact time.
        Afterwards the kit is settled, see `settled`.

        Raises:
            InvalidRequest: the value is not a duration.
            NotSettled: it takes longer than ``timeout`` real seconds.
        """
        skipped_ms = milliseconds_of(duration, "duration")
        end_ms = self.clock.now_ms() + skipped_ms - self._moments_ms
        deadline = self._real.monotonic() + timeout
        last_due_ms: int | None = None
        while True:
            left = deadline - self._real.monotonic()
            if left <= 0:
                raise NotSettled(
                    f"the time to skip was not over after {timeout:g} real seconds; the clock "
                    f"shows {self.clock.now.isoformat()}. Does a run sleep and wake in a loop?"
                )
            await self._settle(max(left, 1.0))
            if last_due_ms is None:
                # A wait that began after such a moment ends after end_ms, and within the duration.
                last_due_ms = self.clock.now_ms() + skipped_ms
            due_ms = await self._find_next_due_ms()
            if due_ms is None or due_ms > last_due_ms:
                break
            self.clock.move_to(due_ms)
        self._moments_ms = max(self.clock.now_ms() - end_ms, 0)
        self.clock.move_to(end_ms)
        await self.settled(timeout=max(deadline - self._real.monotonic(), 1.0))

    async def crash(self) -> None:
        """Kill the workers in the middle of what they do, and start new ones in their place.

        The dead workers release nothing. The new ones take over their runs, as other workers do
        when a lease has ended; the clock does not move. A ``finally`` of an async node still runs,
        and a plain node goes on in its thread, but nothing that it asks of its context is done.
        """
        await self._finish_starts()
        dead = self._running()
        for worker in dead:
            await worker.kill()
        self._workers = [worker.replacement(self.hf) for worker in dead]
        for worker, successor in zip(dead, self._workers, strict=True):
            await successor.take_over(worker)

    async def close(self) -> None:
        """Stop the workers and close the store. A kit that is closed cannot be used again."""
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        self._starts.clear()
        for worker in self._running():
            await worker.kill()
        if self._hf is not None:
            await self._hf.close()

    async def __aenter__(self) -> Self:
        try:
            if self._programs:
                self.serves(*self._programs)
                await self._finish_starts()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- settling ---------------------------------------------------------------------------------

    async def _quiesce(self, deadline: float, timeout_seconds: float) -> None:
        """Return when nothing proceeds by itself any more."""
        while True:
            await self._run_ready()
            # Before the tasks: a thread that has ended has told the loop so by then.
            threads = sum(worker.busy_threads for worker in self._workers)
            idle = not getattr(asyncio.get_running_loop(), "_ready", ())
            if idle and not threads:
                activity = observe_activity(self.clock.list_sleepers())
                if not activity.busy:
                    if not self._sits_out_moment(activity):
                        return
                    continue
            if self._real.monotonic() >= deadline:
                raise NotSettled(self._describe(timeout_seconds))
            await self._real.sleep(_NAP_SECONDS)

    async def _run_ready(self) -> None:
        """Let the loop run until its queue is empty, as far as it shows it."""
        loop = asyncio.get_running_loop()
        ready: Any = getattr(loop, "_ready", None)
        for _ in range(_BLIND_TURNS):
            await self._real.sleep(0)
            if ready is not None and not ready:
                return

    def _sits_out_moment(self, activity: Activity) -> bool:
        wake_ms = activity.next_wake_ms
        if wake_ms is None or wake_ms > self.clock.now_ms() + _MOMENT_MS:
            return False
        passing_ms = max(wake_ms - self.clock.now_ms(), 1)
        self._moments_ms += passing_ms
        self.clock.move_to(self.clock.now_ms() + passing_ms)
        return True

    async def _check_served(self) -> None:
        """Check that a worker serves each run that is ready.

        Raises:
            NotSettled: no worker serves one.
        """
        ready = await self._opened().list(RunFilter(status="ready"))
        running = self._running()
        for run in ready.runs:
            pool = run.labels.get(POOL_LABEL)
            if not any(worker.serves(run.graph, pool) for worker in running):
                into = "" if pool is None else f", pools=[{pool!r}]"
                where = "" if pool is None else f" in pool {pool!r}"
                raise NotSettled(
                    f"run {run.id!r} is ready, and no worker of the kit serves {run.graph!r}"
                    f"{where}: write kit.serves({run.graph}{into}), or pass it to TestKit(…)"
                )

    def _describe(self, timeout_seconds: float) -> str:
        busy = observe_activity(self.clock.list_sleepers()).busy
        lines = [*busy, *describe_threads("holdfast-node-")]
        shown = "".join(f"\n  {line}" for line in lines) or "\n  the event loop never comes to rest"
        return f"not settled after {timeout_seconds:g} real seconds. Still going on:{shown}"

    async def _find_next_due_ms(self) -> int | None:
        """Return the next time at which something happens by itself; None if nothing does."""
        dues = [await worker.find_next_due_ms() for worker in self._running()]
        dues.append(observe_activity(self.clock.list_sleepers()).next_wake_ms)
        return min((due for due in dues if due is not None), default=None)

    def _count_writes(self) -> float:
        return self._opened().meter.report().units.writes

    def _running(self) -> list[KitWorker]:
        return [worker for worker in self._workers if worker.is_running]

    async def _finish_starts(self) -> None:
        while self._starts:
            await self._starts[0]
            del self._starts[0]

    def _opened(self) -> KitHoldfast:
        if self._hf is None:
            self._hf = KitHoldfast(
                _STORE,
                clock=self.clock,
                ids=SeededIds(1, self.clock),
                **self._resources,
                **self._options,
            )
        return self._hf
