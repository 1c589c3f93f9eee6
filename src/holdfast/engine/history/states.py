"""Reads what a run holds: its input, its state at any entry of its history, and its waits."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.engine.history.cursors import EventCursor
from holdfast.engine.history.events import read_head_with_journal, reread_head
from holdfast.engine.history.views import shown_waits
from holdfast.engine.journal.reader import (
    JournalPoint,
    load_input,
    load_journal,
    load_journal_until,
)
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.removal import is_freed_by, journal_not_kept
from holdfast.errors import InvalidQuery, JournalDamaged
from holdfast.model.execution import Execution
from holdfast.model.function_state import input_value
from holdfast.model.program import Program
from holdfast.model.run import WaitPage
from holdfast.model.signals import is_open_wait
from holdfast.model.wait import Wait
from holdfast.records.head import ROW_ABOUT_BYTES_MAX, ROW_WAITS_MAX, Head
from holdfast.records.keys import RunKey

__all__ = ["read_input", "read_state", "read_waits", "typed_state"]

_WaitOrder = tuple[int, str, int, str]
_WAIT_ORDER = msgspec.json.Decoder(_WaitOrder)


async def read_input(kernel: Kernel, run: RunKey, program: Program | None) -> Any:
    """Return the input of a run, in its stored form if the program is not known.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer stored.
        JournalDamaged: the input is missing or cannot be read.
        InvalidState: the input does not fit the program.
    """
    head = await read_head_with_journal(kernel, run)
    try:
        state = await load_input(kernel, head)
    except JournalDamaged:
        await _check_not_freed(kernel, head)
        raise
    if program is None:
        return input_value(state, wrapped=head.wrapped)
    return program.check().typed_input(state)


async def read_state(
    kernel: Kernel, run: RunKey, *, at: EventCursor | None, branch: str
) -> dict[str, Any]:
    """Return the state of a run in its stored form: the last one, or the one after an event.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer stored.
        InvalidQuery: the cursor is not one of this run, or there is no such branch then.
        JournalDamaged: a record is missing or cannot be read.
    """
    head = await read_head_with_journal(kernel, run)
    execution = await _load_execution(kernel, head, at)
    if branch and branch not in execution.branches:
        raise InvalidQuery(f"run {run.id!r} has no branch {branch!r:.80} there", field="branch")
    return execution.visible_state(branch)


async def read_waits(kernel: Kernel, run: RunKey, *, limit: int, cursor: str | None) -> WaitPage:
    """Return a page of what a paused run waits for, the longest wait first.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer stored.
        InvalidQuery: the cursor is not one of a list of waits.
        JournalDamaged: a record is missing or cannot be read.
    """
    after = None if cursor is None else _parsed_cursor(cursor)
    head = await read_head_with_journal(kernel, run)
    if not head.is_paused:
        return WaitPage([], None)
    found = list(head.waits)
    if _may_lack_waits(head):  # the journal has all of them
        execution = await _load_execution(kernel, head, None)
        found += [wait for _, strand in execution.runnable_strands() for wait in strand.waits]
        found = [wait for wait in found if is_open_wait(wait, execution)]
    # A wait may be in both the row and the journal.
    known = {_order(wait): wait for wait in found}
    waits = shown_waits([wait for _, wait in sorted(known.items())], head)
    following = [wait for wait in waits if after is None or _order(wait) > after]
    page = following[:limit]
    return WaitPage(page, _cursor(page[-1]) if len(following) > limit else None)


def _may_lack_waits(head: Head) -> bool:
    """Return whether the row may have no room for all waits, or for all that they are about."""
    said = sum(len(wait.packed_about) for wait in head.waits if wait.packed_about is not UNSET)
    # Each wait says at most half as much as the row has room for. So what is left out did not fit
    # behind more than the other half.
    return len(head.waits) >= ROW_WAITS_MAX or said > ROW_ABOUT_BYTES_MAX // 2


async def _load_execution(kernel: Kernel, head: Head, at: EventCursor | None) -> Execution:
    try:
        if at is None:
            return (await load_journal(kernel, head)).execution
        loaded = None
        if at.generation == head.generation and at.position > 0:
            loaded = await load_journal_until(kernel, head, JournalPoint(at.position, at.index))
    except JournalDamaged:
        await _check_not_freed(kernel, head)
        raise
    if loaded is None:
        raise InvalidQuery(f"the run {head.key.id!r} has no event {str(at)!r}", field="at")
    return loaded.execution


async def _check_not_freed(kernel: Kernel, head: Head) -> None:
    """Check that a run's journal was not deleted while it was read.

    Raises:
        RunNotFound: it was deleted.
    """
    current = await reread_head(kernel, head)
    if current.freed or is_freed_by(current, kernel.clock.now_ms()):
        raise journal_not_kept(current)


def _order(wait: Wait) -> _WaitOrder:
    return wait.since_ms, wait.branch, wait.visit, wait.key


def _cursor(wait: Wait) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_order(wait))).decode()


def _parsed_cursor(cursor: object) -> _WaitOrder:
    try:
        if isinstance(cursor, str):
            return _WAIT_ORDER.decode(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError:
        pass
    raise InvalidQuery(f"not a cursor of a list of waits: {cursor!r:.80}", field="cursor")


def typed_state(graph: Program | None, state: dict[str, Any]) -> Any:
    """Return a stored state in the type of the graph's state, if the graph is known."""
    return state if graph is None else graph.check().typed_state(state)
