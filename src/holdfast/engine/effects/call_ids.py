"""Tells the calls of one visit apart, the same way each time the node runs.

A call is known by its name and by how many of that name came before it on the same line. Every
asyncio task has a line of its own, named after the line of the task that made it and by the order
in which such tasks first asked for one. So calls side by side keep their identity, whichever of
them is faster.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token

__all__ = ["CallIds"]


class _CallScope:
    """What comes one after the other."""

    def __init__(self, call_ids: CallIds, path: str) -> None:
        self.call_ids = call_ids
        self.path = path
        self.task = asyncio.current_task()
        self.counts: dict[str, int] = {}
        self.child_count = 0


_scope_var: ContextVar[_CallScope | None] = ContextVar("holdfast_line", default=None)


class CallIds:
    """The lines of one visit."""

    def __init__(self) -> None:
        """Begin with the task that is to run the node."""
        self._root = _CallScope(self, "")
        # The calls that are being made, and who waits for all of them to end.
        self._active: set[str] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []
        _scope_var.set(self._root)

    def next_id(self, name: str) -> str:
        """Return what the next call of that name is known by."""
        scope = self._enter_task_scope()
        count = scope.counts[name] = scope.counts.get(name, 0) + 1
        return f"{scope.path}{name}#{count}"

    def enter_scope(self, call: str) -> Token[_CallScope | None]:
        """Let what is called from now on be known as part of a call, until `leave`.

        It is not called again where that call answers from its record, and so must not count.
        """
        return _scope_var.set(_CallScope(self, f"{call}>"))

    def leave_scope(self, token: Token[_CallScope | None]) -> None:
        """Let what is called be known by itself again."""
        _scope_var.reset(token)

    def is_inside(self, call: str) -> bool:
        """Return whether who asks is itself part of a call."""
        return self._current_scope().path.startswith(f"{call}>")

    def mark_active(self, call: str) -> None:
        """Let nobody let go of the run before a call is over."""
        self._active.add(call)

    async def wait_for_others(self) -> bool:
        """Return when no call is being made any more, but those that wait for this to return.

        Return whether there were any: whoever is about to let go of the run would lose what they
        come to.
        """
        # Whoever waits does not count among the tasks that asked: another time it may not wait.
        path = self._current_scope().path
        # What this is part of does not go on before it does.
        for call in [call for call in self._active if path.startswith(f"{call}>")]:
            self.mark_done(call)
        waited = bool(self._active)
        while self._active:
            idle = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(idle)
            await idle
        return waited

    def mark_done(self, call: str) -> None:
        """Hear that a call is not being made any more."""
        self._active.discard(call)
        if self._active:
            return
        waiters, self._idle_waiters = self._idle_waiters, []
        for idle in waiters:
            if not idle.done():
                idle.set_result(None)

    def _current_scope(self) -> _CallScope:
        scope = _scope_var.get()
        if scope is None or scope.call_ids is not self:  # a task of somebody else's making
            return self._root
        return scope

    def _enter_task_scope(self) -> _CallScope:
        scope = self._current_scope()
        if scope.task is not asyncio.current_task():
            scope.child_count += 1
            scope = _CallScope(self, f"{scope.path}{scope.child_count}/")
            _scope_var.set(scope)
        return scope
