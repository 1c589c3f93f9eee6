"""Calls the hooks of the application, beside the runs: a hook cannot delay or fail a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.display import IndentedLines, get_logger
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.views import run_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import InvalidRequest
from holdfast.model.durations import milliseconds_of
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of
from holdfast.model.hooks import AttemptFailure, Hooks
from holdfast.model.run import Status
from holdfast.model.traces import innermost_place
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey

__all__ = ["HookCalls"]

_log = get_logger("holdfast.hooks")

_CONCURRENCY = 16
_UNFINISHED_MAX = 1_000


class HookCalls:
    """The calls of hooks that a process makes: a bounded number, each for a limited time."""

    def __init__(self, kernel: Kernel, hooks: Hooks | None) -> None:
        if not isinstance(hooks, Hooks | None):
            raise InvalidRequest(f"hooks must be Hooks, got {hooks!r:.80}", field="hooks")
        self._kernel = kernel
        self._hooks = hooks or Hooks()
        self._seconds_max = milliseconds_of(self._hooks.timeout, "timeout") / 1000
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_CONCURRENCY)
        self._threads: NodeThreads | None = None
        # How runs ended whose drivers have not released them yet.
        self._endings: dict[RunKey, tuple[Status, Failure | None]] = {}

    # --- what happened ----------------------------------------------------------------------------

    def on_paused(self, head: Head) -> None:
        """Call the hook for a run that waits, with its row."""
        if self._hooks.on_pause is not None:
            self._begin("on_pause", self._hooks.on_pause, head)

    def on_attempt_failed(self, head: Head, failure: AttemptFailure) -> None:
        """Call the hook for a failed attempt of a node."""
        if self._hooks.on_failure is not None:
            self._begin("on_failure", self._hooks.on_failure, head, failure)

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Note that a driver ends a run; the hook is called when the row says so."""
        if self._hooks.on_end is not None:
            self._endings[head.key] = (status, execution.failure)

    def on_driver_done(self, head: Head, *, released: bool) -> None:
        """Call the hook for a run that its driver has ended; not if the driver lost the run."""
        if released:
            self._kernel.webhooks.notify(head.key, head.generation)
        ending = self._endings.pop(head.key, None)
        if ending is None or not released:
            return
        if head.status not in ENDED:  # it was only in memory, and has no row
            status, failure = ending
            head = msgspec.structs.replace(
                head, status=status, failure=failure, owner=None, index_key=None
            )
        self.on_closed(head)

    def on_closed(self, head: Head) -> None:
        """Call the hook for a run that has ended, with its row."""
        self._kernel.webhooks.notify(head.key, head.generation)
        if self._hooks.on_end is not None:
            self._begin("on_end", self._hooks.on_end, head)

    # --- calls ------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Return when all calls have ended, at the latest after so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Wait for the calls for a while; then cancel those that go on."""
        await self.drain(seconds)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _begin(self, name: str, hook: Callable[..., Any], head: Head, *more: Any) -> None:
        if len(self._tasks) >= _UNFINISHED_MAX:
            _log.warning(
                "%s: %s is not called, because %d calls of hooks have not ended",
                head.key.log_name,
                name,
                _UNFINISHED_MAX,
            )
            return
        call = self._call(name, hook, head, *more)
        task = asyncio.create_task(call, name=f"holdfast {name} {head.key.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, name: str, hook: Callable[..., Any], head: Head, *more: Any) -> None:
        async with self._free:
            timeout = asyncio.timeout(self._seconds_max)
            try:
                async with timeout:
                    user = await self._kernel.bind_user_hash(head)
                    run = run_of(head, user=user, now_ms=self._kernel.clock.now_ms())
                    await self._call_hook(partial(hook, run, *more), hook)
            except asyncio.CancelledError:
                message = "%s: %s was cut off, because the process stops"
                _log.warning(message, head.key.log_name, name)
                raise
            except BaseException as error:
                if timeout.expired():
                    message = "%s: %s took longer than %g seconds and was cut off"
                    _log.warning(message, head.key.log_name, name, self._seconds_max)
                    return
                # Also a SystemExit: it would end the event loop, and with it all runs.
                failure = failure_of(error)
                place = innermost_place(failure.trace)
                _log.error(
                    "%s: %s failed%s: %s: %s%s",
                    head.key.log_name,
                    name,
                    f" at {place}" if place else "",
                    failure.type,
                    failure.message,
                    IndentedLines(failure.trace),
                )

    async def _call_hook(self, call: Callable[[], Any], hook: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(hook):
            await call()
            return
        if self._threads is None:
            self._threads = NodeThreads(_CONCURRENCY, name="hook")
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if inspect.isawaitable(result):
            await result
