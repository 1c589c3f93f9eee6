"""Gives the calls of one visit their ids, the same ones each time the node runs.

The id of a call is its name and a count of the calls of that name before it in the same scope.
Every asyncio task has its own scope. The path of a scope is that of the task that created it, and
the order in which such tasks first asked for an id. So concurrent calls keep their ids, whichever
of them is faster.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

__all__ = ["CallIds"]

# Together they fit into an integer that every store can hold.
_OFFSET_BYTES = 5
_NUMBER_BITS = 16


class _CallScope:
    """The calls of one task or of one outer call, which are made one after the other."""

    def __init__(self, call_ids: CallIds, path: str) -> None:
        self.call_ids = call_ids
        self.path = path
        self.task = asyncio.current_task()
        self.counts: dict[str, int] = {}
        self.child_count = 0


_scope_var: ContextVar[_CallScope | None] = ContextVar("holdfast_line", default=None)


class CallIds:
    """The ids of the calls of one visit, and the calls that are active."""

    def __init__(self) -> None:
        """Make the current task, which runs the node, the root scope."""
        self._root = _CallScope(self, "")
        self.asked: set[str] = set()
        """The calls that the node asked for since it began to run, with their ids."""
        # The calls that are being made, and the tasks that wait for all of them to end.
        self._active: set[str] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []
        # What keeps the run from pausing before a call begins, with the task that does.
        self._kept: dict[str, asyncio.Task[Any] | None] = {}
        _scope_var.set(self._root)

    def next_id(self, name: str) -> str:
        """Return the id of the next call of that name."""
        scope = self._enter_task_scope()
        count = scope.counts[name] = scope.counts.get(name, 0) + 1
        return f"{scope.path}{name}#{count}"

    def enter_scope(self, call: str) -> Token[_CallScope | None]:
        """Count further calls as part of this call, until `leave_scope`.

        They are not made again when the call is answered from its record, so they must not count
        in the outer scope.
        """
        return _scope_var.set(_CallScope(self, f"{call}>"))

    def leave_scope(self, token: Token[_CallScope | None]) -> None:
        """Count further calls in the outer scope again."""
        _scope_var.reset(token)

    def current_path(self) -> str:
        """Return the path of the current task's scope; that of a call begins with the call."""
        return self._current_scope().path

    def number_offset(self) -> int:
        """Return where the numbers of waits and children begin: at 0 outside of calls.

        A call that is answered from its record does not wait again, and starts no child again. So
        what it waits for and starts must not be counted with what others wait for and start.
        """
        path = self._current_scope().path
        call = path[: path.rfind(">") + 1]
        if not call:
            return 0
        digest = hashlib.blake2b(call.encode(), digest_size=_OFFSET_BYTES).digest()
        return int.from_bytes(digest) << _NUMBER_BITS

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that runs the node."""
        return self._root.task

    def is_in_call(self) -> bool:
        """Return whether the current task runs inside any call."""
        return ">" in self._current_scope().path

    def is_inside(self, call: str) -> bool:
        """Return whether the current task runs inside a call."""
        return self._current_scope().path.startswith(f"{call}>")

    def mark_active(self, call: str) -> None:
        """Keep the run from being released before a call is done."""
        self._active.add(call)

    @contextmanager
    def keep_running(self) -> Generator[None]:
        """Keep other tasks of the node from pausing the run, until this one pauses it or is ready.

        The row lists all waits of a pause, and the earliest deadline wakes the run: so each wait
        that the node asks for begins before the pause. A run that has expired ends at its next
        pause: a wait that times out then comes first. And a call that is approved by now does not
        wait for the reviewers of others.
        """
        mark = self.begin_keeping(f"kept {len(self._kept)}")
        try:
            yield
        finally:
            self.mark_done(mark)

    def begin_keeping(self, mark: str) -> str:
        """Keep other tasks from pausing the run, until `mark_done` or until this task waits."""
        while mark in self._kept:
            mark += "'"
        self._kept[mark] = asyncio.current_task()
        self.mark_active(mark)
        return mark

    async def let_others_begin(self) -> None:
        """Return after each task of the node that is ready has run."""
        loop = asyncio.get_running_loop()
        begun = loop.create_future()
        loop.call_soon(begun.set_result, None)
        await begun

    async def wait_for_others(self) -> bool:
        """Wait until no other call is active; return whether there were any.

        A caller that is about to release the run would lose their results otherwise. Calls that
        contain the caller do not count: they wait for it.
        """
        # Does not enter a task scope: on the next run of the node this task may not wait.
        path = self._current_scope().path
        for call in [call for call in self._active if path.startswith(f"{call}>")]:
            self.mark_done(call)
        if self._kept:
            task = asyncio.current_task()
            for mark in [mark for mark, keeper in self._kept.items() if keeper is task]:
                self.mark_done(mark)
        waited = bool(self._active)
        while self._active:
            idle = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(idle)
            await idle
        return waited

    def mark_done(self, call: str) -> None:
        """Note that a call is not active any more."""
        self._active.discard(call)
        if self._kept:
            self._kept.pop(call, None)
        if self._active:
            return
        waiters, self._idle_waiters = self._idle_waiters, []
        for idle in waiters:
            if not idle.done():
                idle.set_result(None)

    def _current_scope(self) -> _CallScope:
        scope = _scope_var.get()
        if scope is None or scope.call_ids is not self:  # a task that was not created by the node
            return self._root
        return scope

    def _enter_task_scope(self) -> _CallScope:
        scope = self._current_scope()
        if scope.task is not asyncio.current_task():
            scope.child_count += 1
            scope = _CallScope(self, f"{scope.path}{scope.child_count}/")
            _scope_var.set(scope)
        return scope
