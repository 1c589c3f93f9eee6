"""Performs one effect and reports its outcome.

There is one performer for each kind of effect. All of them use the same machinery: a visit records
calls, waits and children once, pauses the run, and finds them again after a resume.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, TypeAlias, cast

from holdfast.clock import Clock
from holdfast.engine.execution.blocking_context import BlockingContext, context_of
from holdfast.engine.execution.chunk_items import child_input, item_function, load_inputs
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.execution.unasked_calls import warn_of_unasked_calls
from holdfast.engine.execution.unreturned_changes import warn_of_unreturned_changes
from holdfast.engine.execution.visit import Paused, Visit, VisitClosed
from holdfast.engine.execution.visit_resources import await_worker_with
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.kernel.offload import LARGE_BYTES, fits_event_loop
from holdfast.engine.runs.chunk_program import ChunkProgram
from holdfast.errors import CallFailed, NodeError, NodeTimedOut, NotPausable, UnknownTask
from holdfast.graph.function_program import FunctionProgram
from holdfast.graph.node import Node
from holdfast.graph.tool import untyped
from holdfast.graph.value_sizes import estimated_size
from holdfast.model.decision import Raised, Returned
from holdfast.model.durations import duration_text
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.failure import error_names, failure_of
from holdfast.model.program import (
    Effect,
    InvokeTask,
    Proceed,
    Program,
    RunChild,
    RunItem,
    RunNode,
    WaitForToken,
    WaitUntil,
)
from holdfast.model.signals import SignalName

__all__ = ["perform", "performing_visit"]

_LIGHT_FIELDS_MAX = 8
_LIGHT_CHARS_MAX = 8_192
_SCALARS = frozenset({int, float, bool, type(None)})
_NOT_NODE_ERRORS = KeyboardInterrupt | SystemExit | GeneratorExit | ClaimLost | JournalConflict


async def perform(
    effect: Effect, program: Program, execution: Execution, visit: Visit
) -> Returned | Raised:
    """Perform an effect and return its outcome.

    Raises:
        Paused: the effect waits, or waited for too long; the visit knows what it waits for.
        ClaimLost: this worker no longer owns the run.
        JournalConflict: another process wrote into the run's journal.
        asyncio.CancelledError: the task that drives the run was cancelled.
    """
    clock = visit.claimed.kernel.clock
    began = clock.monotonic()
    task = asyncio.current_task()
    try:
        value = await _PERFORMERS[type(effect)](effect, program, execution, visit)
        return Returned(value, _elapsed_ms(began, clock))
    except BaseException as raised:
        error = raised
        try:
            try:
                visit.raise_if_paused()
            except NotPausable as refusal:
                error = refusal
            _raise_engine_error(error, visit)
            if _is_from_other_visit(error, visit):
                # This visit is open: to release the run would hide the node's mistake.
                error = NodeError(str(error))
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, _NOT_NODE_ERRORS):
                raise
            return Raised(_failure(effect, error), error, _elapsed_ms(began, clock))
        finally:
            del error  # breaks the cycle of the error, its traceback and this frame


def performing_visit(frame: FrameType | None) -> Visit | None:
    """Return the visit of the effect that a stack of frames performs; None if it performs none."""
    while frame is not None and frame.f_code is not perform.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("visit")


def _failure(effect: Effect, error: BaseException) -> Failure:
    """Return the error as the journal keeps it; of a task, the error that the task raised."""
    if isinstance(effect, InvokeTask) and isinstance(error, CallFailed):
        return Failure(error_names(error)[0], error.reason, error.trace)
    return failure_of(error)


# --- one performer for each kind of effect --------------------------------------------------------


async def _run_node(effect: Effect, program: Program, execution: Execution, visit: Visit) -> Any:
    program = cast(FunctionProgram, program)
    node = program.nodes[effect.node]
    if visit.claimed.head.budget is not None:
        await visit.external.budget_guard.check_time(visit)
    if visit.claimed.journal.memory.bytes <= LARGE_BYTES:
        state = program.enter(execution, visit.branch)
    else:
        state = await visit.run_in_thread(program.enter, execution, visit.branch)
    value = await _call_with_timeout(node, state, visit, visit.external.threads)
    visit.raise_if_paused()
    warn_of_unasked_calls(visit)
    warn_of_unreturned_changes(
        program,
        execution,
        visit.branch,
        node=effect.node,
        state=state,
        returned=value,
        bytes_held=visit.claimed.journal.memory.bytes,
        run=visit.claimed.head.key,
    )
    if visit.claimed.journal.memory.bytes <= LARGE_BYTES and _is_light(value):
        return program.delta(execution, visit.branch, value)
    await visit.check_result_size(value)
    return await visit.run_in_thread(program.delta, execution, visit.branch, value)


async def _proceed(effect: Effect, program: Program, execution: Execution, visit: Visit) -> None:
    return None


async def _invoke_task(
    effect: InvokeTask, program: Program, execution: Execution, visit: Visit
) -> Any:
    task = visit.external.resources.tasks.get(effect.task)
    needs = visit.external.needs
    if needs.complete and effect.task not in needs.tasks:
        raise UnknownTask(f"the program does not declare task {effect.task!r:.80} in its needs")
    if task is None:
        await await_worker_with(visit, "task", effect.task)
    caller = context_of(visit).with_options(
        timeout=_duration(effect.timeout_ms), heartbeat=_duration(effect.heartbeat_ms)
    )
    return await caller.call(untyped(task), *effect.args, **effect.kwargs)


async def _wait_until(
    effect: WaitUntil, program: Program, execution: Execution, visit: Visit
) -> None:
    await context_of(visit).sleep(timedelta(milliseconds=max(effect.at_ms - visit.now_ms(), 0)))


async def _wait_for_token(
    effect: WaitForToken, program: Program, execution: Execution, visit: Visit
) -> Any:
    deadline_ms = effect.deadline_ms
    left_ms = None if deadline_ms is None else max(deadline_ms - visit.now_ms(), 0)
    return await context_of(visit).wait(SignalName(effect.token), max_wait=_duration(left_ms))


async def _run_child(
    effect: RunChild, program: Program, execution: Execution, visit: Visit
) -> dict[str, Any]:
    context = context_of(visit)
    child = await context.start(effect.program, effect.input, id=effect.id)
    return await context.child(child.id).result()  # without its program: the durable form


async def _run_item(effect: RunItem, program: Program, execution: Execution, visit: Visit) -> Any:
    program = cast(ChunkProgram, program)
    if visit.claimed.head.budget is not None:
        await visit.external.budget_guard.check_time(visit)
    inputs = await load_inputs(visit)
    visit.item = inputs.facts(effect.index)
    if inputs.spec.is_graph:
        mapped = program.find_program(inputs.spec.item)
        if mapped is None:
            await await_worker_with(visit, "graph", inputs.spec.item)
        context = context_of(visit)
        child = await context.start(mapped, child_input(mapped, inputs, effect.index))
        return await context.child(child.id).result()  # without its program: the durable form
    item = item_function(program.inner, effect.node)
    value = inputs.value(effect.index)
    if inputs.values is not None:
        value = item.typed_value(value)
    returned = await _call_with_timeout(item.node, value, visit, visit.external.threads)
    visit.raise_if_paused()
    warn_of_unasked_calls(visit)
    if _is_light(returned):
        return item.stored_result(returned)
    await visit.check_result_size(returned)
    return await visit.run_in_thread(item.stored_result, returned)


_Performer: TypeAlias = Callable[[Any, Program, Execution, Visit], Coroutine[Any, Any, Any]]
_PERFORMERS: Mapping[type[Effect], _Performer] = {
    RunNode: _run_node,
    Proceed: _proceed,
    InvokeTask: _invoke_task,
    WaitUntil: _wait_until,
    WaitForToken: _wait_for_token,
    RunChild: _run_child,
    RunItem: _run_item,
}


def _duration(span_ms: int | None) -> timedelta | None:
    return None if span_ms is None else timedelta(milliseconds=span_ms)


# --- functions of nodes ---------------------------------------------------------------------------


def _is_light(value: Any) -> bool:
    # Most nodes return a few fields with numbers or short texts: these are not measured.
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
    timeout = visit.timeout = asyncio.timeout(node.timeout_ms / 1000)
    try:
        async with timeout:
            value = await _call_and_drain(node, state, visit, threads)
        if not timeout.expired():  # otherwise the node ignored its cancellation
            return value
    except TimeoutError:
        if not timeout.expired():
            raise
    raise NodeTimedOut(f"node {node.name!r} took longer than {duration_text(node.timeout_ms)}")


async def _call_and_drain(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    """Run a node, and wait for the calls that it began and did not await.

    Raises:
        NotAwaited: the node did not await something else that it asked of its context.
    """
    try:
        value = await _call(node, state, visit, threads)
    except Exception:
        await visit.wait_for_other_calls()  # the next attempt needs their records
        raise
    await visit.wait_for_other_calls()
    await visit.requests.check_finished(f"node {node.name!r:.80}")
    return value


async def _call(node: Node, state: Any, visit: Visit, threads: NodeThreads) -> Any:
    context = context_of(visit) if node.takes_context else None
    if not node.is_sync:
        return await (node.function(state) if context is None else node.function(state, context))
    loop = asyncio.get_running_loop()
    arguments = (state,) if context is None else (state, BlockingContext(context, visit))
    call = partial(contextvars.copy_context().run, node.function, *arguments)
    try:
        return await loop.run_in_executor(threads, call)
    except asyncio.CancelledError:
        # A thread cannot be stopped. It goes on, but its context refuses every request.
        visit.close()
        raise


def _raise_engine_error(error: BaseException, visit: Visit) -> None:
    """Raise the engine's own error out of an exception group, as a TaskGroup makes one."""
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
    """Return whether the node used the context of another node that has finished."""
    return isinstance(error, VisitClosed) and error.visit is not visit


def _elapsed_ms(began: float, clock: Clock) -> int:
    return round((clock.monotonic() - began) * 1000)
