"""Tells the calls of one visit apart, the same way each time the node runs.

A call is known by its name and by how many of that name came before it on the same line. Every
asyncio task has a line of its own, named after the line of the task that made it and by the order
in which such tasks first asked for one. So calls side by side keep their identity, whichever of
them is faster.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token

__all__ = ["Lines"]


class _Line:
    """What comes one after the other."""

    def __init__(self, lines: Lines, path: str) -> None:
        self.lines = lines
        self.path = path
        self.task = asyncio.current_task()
        self.counts: dict[str, int] = {}
        self.offshoots = 0


_current: ContextVar[_Line | None] = ContextVar("holdfast_line", default=None)


class Lines:
    """The lines of one visit."""

    def __init__(self) -> None:
        """Begin with the task that is to run the node."""
        self._root = _Line(self, "")
        # The calls that are being made, and who waits for all of them to end.
        self._active: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        _current.set(self._root)

    def next(self, name: str) -> str:
        """Return what the next call of that name is known by."""
        line = self._line()
        count = line.counts[name] = line.counts.get(name, 0) + 1
        return f"{line.path}{name}#{count}"

    def enter(self, call: str) -> Token[_Line | None]:
        """Let what is called from now on be known as part of a call, until `leave`.

        It is not called again where that call answers from its record, and so must not count.
        """
        return _current.set(_Line(self, f"{call}>"))

    def leave(self, token: Token[_Line | None]) -> None:
        """Let what is called be known by itself again."""
        _current.reset(token)

    def is_inside(self, call: str) -> bool:
        """Return whether who asks is itself part of a call."""
        return self._nearest().path.startswith(f"{call}>")

    def begin(self, call: str) -> None:
        """Let nobody let go of the run before a call is over."""
        self._active.add(call)

    async def others_done(self) -> bool:
        """Return when no call is being made any more, but those that wait for this to return.

        Return whether there were any: whoever is about to let go of the run would lose what they
        come to.
        """
        # Whoever waits does not count among the tasks that asked: another time it may not wait.
        path = self._nearest().path
        # What this is part of does not go on before it does.
        for call in [call for call in self._active if path.startswith(f"{call}>")]:
            self.end(call)
        waited = bool(self._active)
        while self._active:
            left = asyncio.get_running_loop().create_future()
            self._waiting.append(left)
            await left
        return waited

    def end(self, call: str) -> None:
        """Hear that a call is not being made any more."""
        self._active.discard(call)
        if self._active:
            return
        waiting, self._waiting = self._waiting, []
        for left in waiting:
            if not left.done():
                left.set_result(None)

    def _nearest(self) -> _Line:
        line = _current.get()
        if line is None or line.lines is not self:  # a task of somebody else's making
            return self._root
        return line

    def _line(self) -> _Line:
        line = self._nearest()
        if line.task is not asyncio.current_task():
            line.offshoots += 1
            line = _Line(self, f"{line.path}{line.offshoots}/")
            _current.set(line)
        return line
