"""Runs one node: enters it with the state, waits for it, and says what came of it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from holdfast.clock import Clock
from holdfast.engine.execution.context import BlockingContext, Context
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.execution.visit import Paused, Visit, VisitClosed
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.kernel.offload import LARGE_BYTES, fits_event_loop
from holdfast.errors import NodeError, NodeTimedOut, NotPausable
from holdfast.graph import Graph, Node
from holdfast.graph.value_sizes import estimated_size
from holdfast.model.decision import Raised, Returned
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of

__all__ = ["run_node"]

_LIGHT_FIELDS_MAX = 8
_LIGHT_CHARS_MAX = 8_192
_SCALARS = frozenset({int, float, bool, type(None)})
_NOT_NODE_ERRORS = KeyboardInterrupt | SystemExit | GeneratorExit | ClaimLost | JournalConflict


async def run_node(
    graph: Graph,
    execution: Execution,
    visit: Visit,
    *,
    clock: Clock,
    threads: NodeThreads,
) -> Returned | Raised:
    """Run the node at which the branch of the visit stands.

    Raises:
        Paused: it waits, or one of its waits took too long; the visit has what it waits for.
        Dropped: the run is no longer ours.
        Overtaken: somebody else wrote into its journal.
        CancelledError: whoever drives the run was cancelled.
    """
    node = graph.nodes[visit.node]
    began = clock.monotonic()
    task = asyncio.current_task()
    try:
        if visit.claimed.journal.memory.bytes <= LARGE_BYTES:
            state = graph.enter(execution, visit.branch)
        else:
            state = await visit.run_in_thread(graph.enter, execution, visit.branch)
        value = await _call_with_timeout(node, state, visit, threads)
        visit.raise_if_paused()
        if visit.claimed.journal.memory.bytes <= LARGE_BYTES and _is_light(value):
            delta = graph.delta(execution, visit.branch, value)
        else:
            await visit.check_result_size(value)
            delta = await visit.run_in_thread(graph.delta, execution, visit.branch, value)
        return Returned(delta, _elapsed_ms(began, clock))
    except BaseException as raised:
        error = raised
        try:
            try:
                visit.raise_if_paused()
            except NotPausable as refusal:
                error = refusal
            _raise_engine_error(error, visit)
            if _is_from_other_visit(
                error, visit
            ):  # ours is not: to drop the run would tell nobody why
                error = NodeError(str(error))
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, _NOT_NODE_ERRORS):
                raise
            covered = isinstance(error, Exception) and node.retry.covers(error)
            return Raised(failure_of(error), covered, _elapsed_ms(began, clock))
        finally:
            del error  # or it would keep alive what its traceback does, and that would keep it


def _is_light(value: Any) -> bool:
    # Most nodes return some fields with a number or a short text each: no more is spent on these.
    if type(value) is dict and len(fields := cast(dict[Any, Any], value)) <= _LIGHT_FIELDS_MAX:
        for each in fields.values():
            if type(each) is str:
                if len(each) > _LIGHT_CHARS_MAX:
                    break
            elif type(each) not in _SCALARS:
                break
        else:
            return True
    return fits_event_loop(estimated_size(value, LARGE_BYTES))


async def _call_with_timeout(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    if node.timeout_ms is None:
        return await _call_and_drain(node, state, visit, threads)
    timeout = asyncio.timeout(node.timeout_ms / 1000)
    try:
        async with timeout:
            value = await _call_and_drain(node, state, visit, threads)
        if not timeout.expired():  # or it was cancelled, and took no notice
            return value
    except TimeoutError:
        if not timeout.expired():
            raise
    raise NodeTimedOut(f"node {node.name!r} took longer than {node.timeout_ms / 1000:g} seconds")


async def _call_and_drain(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    """Run a node until the calls that it began and did not wait for are over, too."""
    try:
        value = await _call(node, state, visit, threads)
    except Exception:
        await visit.wait_for_other_calls()  # they are paid, and a further attempt needs them
        raise
    await visit.wait_for_other_calls()
    return value


async def _call(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    context = Context(visit)
    if not node.is_sync:
        return await (node.function(state, context) if node.takes_context else node.function(state))
    loop = asyncio.get_running_loop()
    arguments = (state, BlockingContext(context, loop, threads)) if node.takes_context else (state,)
    call = partial(contextvars.copy_context().run, node.function, *arguments)
    try:
        return await loop.run_in_executor(threads, call)
    except asyncio.CancelledError:
        # A thread cannot be stopped: it goes on, but whatever it asks of the context fails.
        visit.close()
        raise


def _raise_engine_error(error: BaseException, visit: Visit) -> None:
    """Raise what is ours of a group, as a TaskGroup wraps it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        ours = [each for each in _leaf_errors(group) if not _is_from_other_visit(each, visit)]
        for kind in (ClaimLost, JournalConflict, Paused):
            for each in ours:
                if isinstance(each, kind):
                    raise each


def _leaf_errors(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaf_errors(cast(BaseExceptionGroup[BaseException], error))
        else:
            yield error


def _is_from_other_visit(error: BaseException, visit: Visit) -> bool:
    """Return whether a node used the context of another one, which is over."""
    return isinstance(error, VisitClosed) and error.visit is not visit


def _elapsed_ms(began: float, clock: Clock) -> int:
    return round((clock.monotonic() - began) * 1000)
