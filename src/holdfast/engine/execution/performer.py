"""Runs one node: enters it with the state, waits for it, and says what came of it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from holdfast.clock import Clock
from holdfast.engine.execution.claimed_run import Overtaken
from holdfast.engine.execution.context import BlockingContext, Context
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.execution.visit import Over, Paused, Visit
from holdfast.engine.kernel.kernel import Dropped
from holdfast.engine.kernel.offload import LARGE_BYTES, is_light
from holdfast.errors import NodeError, NodeTimedOut, NotPausable
from holdfast.graph import Graph, Node
from holdfast.graph.values import glimpse
from holdfast.model.decision import Raised, Returned
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of

__all__ = ["perform"]

_FEW_FIELDS = 8
_SHORT_LETTERS = 8_192
_SCALARS = frozenset({int, float, bool, type(None)})
_NOT_OF_THE_NODE = KeyboardInterrupt | SystemExit | GeneratorExit | Dropped | Overtaken


async def perform(
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
        if visit.hold.weight.bytes <= LARGE_BYTES:
            state = graph.enter(execution, visit.branch)
        else:
            state = await visit.apart(graph.enter, execution, visit.branch)
        value = await _called(node, state, visit, threads)
        visit.check()
        if visit.hold.weight.bytes <= LARGE_BYTES and _is_light(value):
            delta = graph.delta(execution, visit.branch, value)
        else:
            await visit.admit_result(value)
            delta = await visit.apart(graph.delta, execution, visit.branch, value)
        return Returned(delta, _since(began, clock))
    except BaseException as raised:
        error = raised
        try:
            try:
                visit.check()
            except NotPausable as refusal:
                error = refusal
            _raise_ours(error, visit)
            if _is_of_another(error, visit):  # ours is not: to drop the run would tell nobody why
                error = NodeError(str(error))
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, _NOT_OF_THE_NODE):
                raise
            covered = isinstance(error, Exception) and node.retry.covers(error)
            return Raised(failure_of(error), covered, _since(began, clock))
        finally:
            del error  # or it would keep alive what its traceback does, and that would keep it


def _is_light(value: Any) -> bool:
    # Most nodes return some fields with a number or a short text each: no more is spent on these.
    if type(value) is dict and len(fields := cast(dict[Any, Any], value)) <= _FEW_FIELDS:
        for each in fields.values():
            if type(each) is str:
                if len(each) > _SHORT_LETTERS:
                    break
            elif type(each) not in _SCALARS:
                break
        else:
            return True
    return is_light(glimpse(value, LARGE_BYTES))


async def _called(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    if node.timeout_ms is None:
        return await _with_others(node, state, visit, threads)
    timeout = asyncio.timeout(node.timeout_ms / 1000)
    try:
        async with timeout:
            value = await _with_others(node, state, visit, threads)
        if not timeout.expired():  # or it was cancelled, and took no notice
            return value
    except TimeoutError:
        if not timeout.expired():
            raise
    raise NodeTimedOut(f"node {node.name!r} took longer than {node.timeout_ms / 1000:g} seconds")


async def _with_others(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    """Run a node until the calls that it began and did not wait for are over, too."""
    try:
        value = await _call(node, state, visit, threads)
    except Exception:
        await visit.others_done()  # they are paid, and a further attempt needs them
        raise
    await visit.others_done()
    return value


async def _call(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    context = Context(visit)
    if not node.plain:
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


def _raise_ours(error: BaseException, visit: Visit) -> None:
    """Raise what is ours of a group, as a TaskGroup wraps it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        ours = [each for each in _each(group) if not _is_of_another(each, visit)]
        for kind in (Dropped, Overtaken, Paused):
            for each in ours:
                if isinstance(each, kind):
                    raise each


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(cast(BaseExceptionGroup[BaseException], error))
        else:
            yield error


def _is_of_another(error: BaseException, visit: Visit) -> bool:
    """Return whether a node used the context of another one, which is over."""
    return isinstance(error, Over) and error.visit is not visit


def _since(began: float, clock: Clock) -> int:
    return round((clock.monotonic() - began) * 1000)
