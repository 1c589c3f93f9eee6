"""Runs what is due, for the length of one invocation: a worker that ends before Lambda freezes it.

Lambda freezes the process between two invocations, and kills it at the timeout. A worker that lived
on would lose its lease while it is frozen. So each invocation has a worker of its own, which
releases every run before the handler returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.clock import Clock
from holdfast.display import get_logger
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.errors import InvalidRequest
from holdfast.model.program import Program

__all__ = ["LambdaOptions", "run_due", "run_due_beside"]

_log = get_logger("holdfast.lambda")

# A worker needs about this long to register, to poll once and to leave.
_SECONDS_MIN = 1.0
# Of the time, these shares are for nodes that go on after the last claim, and for releasing runs.
_DRAIN_SHARE = 0.4
_RELEASE_SHARE = 0.2
_RELEASE_SECONDS_MAX = 5.0
_TICK_SECONDS = 0.05


def _default_worker() -> WorkerOptions:
    # The lease is short: a killed invocation's runs wait that long. The drain ends by the time.
    return WorkerOptions(lease=15, poll=0.5, drain=900)


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaOptions:
    """How the handlers run what is due."""

    worker: WorkerOptions = field(default_factory=_default_worker)
    """The options of the worker; its ``drain`` is at most 40 % of the time that is left."""
    idle_seconds: float = 1.0
    """How long a handler waits for further runs after the last one. An index shows a run that
    another process has just made due some moments later."""
    beside: Iterable[Callable[[], AbstractAsyncContextManager[Any]]] = ()
    """What runs beside the worker, such as ``[hf.webhooks.deliver]``."""

    def __post_init__(self) -> None:
        if not isinstance(self.worker, WorkerOptions):
            raise InvalidRequest(
                f"worker must be WorkerOptions, got {self.worker!r:.80}", field="worker"
            )
        _check_seconds(self.idle_seconds, "idle_seconds")
        beside = tuple(self.beside) if isinstance(self.beside, Iterable) else (self.beside,)
        if not all(callable(each) for each in beside):
            raise InvalidRequest(
                "beside must be functions that return async context managers, such as "
                f"[hf.webhooks.deliver], got {beside!r:.80}",
                field="beside",
            )
        object.__setattr__(self, "beside", beside)


async def run_due(
    hf: Holdfast,
    graphs: Iterable[Program],
    *,
    seconds: float,
    options: LambdaOptions | None = None,
) -> dict[str, int]:
    """Run what is due until nothing is, for at most so many seconds; then release every run.

    It returns what the worker counted, such as ``{"claimed": 2, "finished": 1}``. In the last 40 %
    of the time, and 5 seconds before that, the worker claims nothing more: nodes finish. A node
    that needs longer is interrupted, and its run goes on in the next worker, with the same
    idempotency keys.

    Raises:
        InvalidRequest: ``seconds`` is not a number of at least 0.
        StoreUnusable: the store cannot be used.
    """
    return await run_due_beside(None, hf, graphs, seconds=seconds, options=options)


async def run_due_beside(
    work: Callable[[], Awaitable[object]] | None,
    hf: Holdfast,
    graphs: Iterable[Program],
    *,
    seconds: float,
    options: LambdaOptions | None = None,
) -> dict[str, int]:
    """Do some work while a worker runs what is due, as `run_due` does; both end in time.

    ``work`` begins when the worker can take the runs that it starts. It is cancelled when the time
    is up. If there is no time for a worker, the work is done without one.

    Raises:
        InvalidRequest: ``seconds`` is not a number of at least 0.
        StoreUnusable: the store cannot be used.
    """
    _check_seconds(seconds, "seconds")
    options = options or LambdaOptions()
    if seconds < _SECONDS_MIN:
        _log.warning("%.1f s are left, which is too short to run what is due", seconds)
        await _do(work, seconds)
        return {}
    worker = hf.worker(tuple(graphs), options=options.worker)
    schedule = _Schedule.begun(hf.clock, seconds, options)
    limit = asyncio.timeout(seconds)
    try:
        async with limit, AsyncExitStack() as stack:
            for each in options.beside:
                await stack.enter_async_context(each())
            await _work(worker, work, schedule)
    except TimeoutError:
        if not limit.expired():
            raise
        _log.warning(
            "the worker did not stop within %.1f s; others take over its runs in %g s",
            seconds,
            options.worker.lease_seconds,
        )
    return dict(worker.counts)


class _Schedule(NamedTuple):
    """When a worker has to do what, by its clock."""

    clock: Clock
    claim_until: float
    drain_until: float
    idle_seconds: float

    @classmethod
    def begun(cls, clock: Clock, seconds: float, options: LambdaOptions) -> _Schedule:
        release_seconds = min(_RELEASE_SECONDS_MAX, seconds * _RELEASE_SHARE)
        drain_seconds = min(options.worker.drain_seconds, seconds * _DRAIN_SHARE)
        drain_until = clock.monotonic() + seconds - release_seconds
        return cls(clock, drain_until - drain_seconds, drain_until, options.idle_seconds)


async def _work(
    worker: Worker, work: Callable[[], Awaitable[object]] | None, schedule: _Schedule
) -> None:
    clock = schedule.clock
    task: asyncio.Future[object] | None = None
    try:
        await worker.start()
        if work is not None:
            task = asyncio.ensure_future(work())
        await _wait_until_idle(worker, task, schedule)
    finally:
        await worker.stop(drain=max(0.0, schedule.drain_until - clock.monotonic()))
        if task is not None:
            seconds = max(0.0, schedule.drain_until - clock.monotonic())
            await asyncio.wait({task}, timeout=seconds)
            task.cancel()
            await asyncio.wait({task})
    if task is not None and not task.cancelled():
        task.result()


async def _wait_until_idle(
    worker: Worker, task: asyncio.Future[object] | None, schedule: _Schedule
) -> None:
    """Return when nothing was run or due for a while, at the latest when claims have to end."""
    clock, seen = schedule.clock, -1
    idle_since = clock.monotonic()
    while (now := clock.monotonic()) < schedule.claim_until:
        counted = worker.counts.total()
        if worker.running or counted != seen or not (task is None or task.done()):
            idle_since, seen = now, counted
        elif now - idle_since >= schedule.idle_seconds:
            return
        await clock.sleep(min(_TICK_SECONDS, schedule.claim_until - now))


async def _do(work: Callable[[], Awaitable[object]] | None, seconds: float) -> None:
    if work is not None:
        async with asyncio.timeout(seconds):
            await work()


def _check_seconds(value: Any, name: str) -> None:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise InvalidRequest(
            f"{name} must be a number of at least 0, got {value!r:.40}", field=name
        )
