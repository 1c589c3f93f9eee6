"""Durable functions: `workflow` makes one function a program that workers can run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar, overload

import msgspec

from holdfast.errors import HoldfastError, InvalidGraph, InvalidState
from holdfast.graph.graph import Graph
from holdfast.graph.node import Node
from holdfast.graph.program import GraphProgram
from holdfast.graph.value_codec import ValueCodec, value_faults
from holdfast.graph.workflow_drawing import drawn_steps
from holdfast.graph.workflow_signature import (
    WorkflowSignature,
    read_signature,
    resolved_types,
)
from holdfast.graph.workflow_steps import steps_of
from holdfast.model.durations import Duration
from holdfast.model.execution import Execution
from holdfast.model.function_state import INPUT, RESULT
from holdfast.model.policy import ONCE, Durability, OnStale, Pausable, Retry
from holdfast.model.signals import SignalName

__all__ = ["AnyContext", "Workflow", "WorkflowDecorator", "workflow"]


class AnyContext(Protocol):
    """The context of a workflow, as far as type checkers tell it from an input."""

    def heartbeat(self) -> None:
        """Report that the call that runs now makes progress."""
        ...

    def with_options(self, *, key: str | None = None) -> Any:
        """Return a caller with options."""
        ...


InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")
ContextT = TypeVar("ContextT", bound=AnyContext)


class Workflow(GraphProgram, Generic[InputT, ResultT]):
    """A durable function: a program with one node. `workflow` makes it.

    It is used wherever a graph is. To call it calls the function itself, without a run, for tests.
    The state of a run is ``{"input": …}`` and, after the function has returned, ``"result"``.
    """

    def __init__(
        self, function: Callable[..., Any], graph: Graph, signature: WorkflowSignature
    ) -> None:
        """Take the function, and the graph with one node that runs it."""
        super().__init__(graph._declaration)
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: nothing is recorded, unless ``ctx`` does it."""
        return self._function(*args, **kwargs)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The only node, by the name of the workflow."""
        return self._plan.wiring.nodes

    @property
    def wraps_values(self) -> bool:
        """Whether the state holds input and result as fields: always."""
        return True

    @property
    def input_type(self) -> Any:
        """The type of the input; that of None if the function takes none."""
        return self._types[0]

    @property
    def result_type(self) -> Any:
        """The type of the result."""
        return self._types[1]

    def check(self) -> Self:
        """Return the workflow if it can run.

        Raises:
            InvalidGraph: the workflow cannot run. The error lists everything that is wrong with it.
        """
        kinds = zip(("input", "result"), self._types, strict=True)
        faults = [fault for what, kind in kinds for fault in value_faults(kind, what)]
        if faults:
            raise InvalidGraph(
                f"workflow {self.name!r:.80} cannot be run: " + "; ".join(faults), faults=faults
            )
        return super().check()

    def draw(self) -> str:
        """Return a Mermaid flowchart of the steps that the code of the function shows."""
        return drawn_steps(self.name, steps_of(self._function))

    def admitted_input(self, input: Any) -> Any:
        """Return the input of a start: None is an input like any other."""
        return input

    def start(self, input: Any, seed: str) -> Execution:
        """Return the execution of a new run.

        Raises:
            InvalidInput: the input does not fit its type.
        """
        parameter = self._signature.input
        if input is None and parameter is not None and parameter.default is not parameter.empty:
            input = parameter.default
        if parameter is None and input == {}:
            input = None
        stored = self._codecs[0].stored_input(input)
        state = {} if parameter is None else {INPUT: stored}
        return msgspec.structs.replace(super().start({}, seed), state=state)

    def enter(self, execution: Execution, branch: str = "") -> Any:
        """Return the input as the function gets it; None if the function takes none.

        Raises:
            InvalidState: the stored input does not fit its type.
        """
        return self.typed_input(execution.visible_state(branch))

    def delta(self, execution: Execution, branch: str, returned: Any) -> dict[str, Any]:
        """Return the result as a change of the state.

        Raises:
            InvalidResult: the result does not fit its type, or cannot be stored.
        """
        return {RESULT: self._codecs[1].stored_result(returned)}

    def unreturned_changes(
        self, execution: Execution, branch: str, *, state: Any, returned: Any
    ) -> list[str]:
        """Return the fields of the input that the function changed in place, in vain."""
        if self._signature.input is None or returned is state:
            return []
        try:
            stored = execution.visible_state(branch)[INPUT]
            return self._codecs[0].changed_parts(state, stored)
        except HoldfastError:
            return []  # what the function did to its input cannot be stored: it does not matter

    def unreturned_text(self, node: str, fields: list[str]) -> str:
        """Return for people what becomes of changes to the input."""
        named = ", ".join(f"{field!r:.80}" for field in fields[:8] if field)
        changed = f"{named} of its input" if named else "its input"
        return (
            f"workflow {self.name!r:.80} changed {changed} in place: the run does not keep the "
            "change. Change a copy, and return what callers need"
        )

    def typed_input(self, state: dict[str, Any]) -> Any:
        """Return the input in a stored state.

        Raises:
            InvalidState: the stored input does not fit its type.
        """
        if self._signature.input is None:
            return None
        if INPUT not in state:
            raise InvalidState(
                f"the run has no input for workflow {self.name!r:.80}: another kind of program "
                "started it, or a version without an input"
            )
        return self._codecs[0].typed(state[INPUT], INPUT)

    def typed_state(self, state: dict[str, Any]) -> Any:
        """Return the input and, after the function has returned, the result of a run, by name.

        Raises:
            InvalidState: a stored value does not fit its type.
        """
        typed: dict[str, Any] = {}
        if INPUT in state:
            typed[INPUT] = self.typed_input(state)
        if RESULT in state:
            typed[RESULT] = self.result(state)
        return typed

    def result(self, state: dict[str, Any]) -> Any:
        """Return what the function of a finished run returned.

        Raises:
            InvalidState: the stored result does not fit its type.
        """
        return self._codecs[1].typed(state.get(RESULT), RESULT)

    @functools.cached_property
    def _types(self) -> tuple[Any, Any]:
        """The types of input and result, resolved late: the function may be above its types."""
        given, returned = resolved_types(self._function, self._signature)
        return type(None) if self._signature.input is None else given, returned

    @functools.cached_property
    def _codecs(self) -> tuple[ValueCodec, ValueCodec]:
        return ValueCodec(self._types[0]), ValueCodec(self._types[1])

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version}>"


class WorkflowDecorator(Protocol):
    """Makes a function a `Workflow` with the options that `workflow` was given."""

    @overload
    def __call__(
        self, function: Callable[[InputT, ContextT], Coroutine[Any, Any, ResultT]], /
    ) -> Workflow[InputT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[ContextT], Coroutine[Any, Any, ResultT]], /
    ) -> Workflow[None, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[InputT], Coroutine[Any, Any, ResultT]], /
    ) -> Workflow[InputT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, ResultT]], /
    ) -> Workflow[None, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[[InputT, ContextT], ResultT], /
    ) -> Workflow[InputT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[ContextT], ResultT], /) -> Workflow[None, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[InputT], ResultT], /) -> Workflow[InputT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[], ResultT], /) -> Workflow[None, ResultT]: ...


@overload
def workflow(
    function: Callable[[InputT, ContextT], Coroutine[Any, Any, ResultT]], /
) -> Workflow[InputT, ResultT]: ...
@overload
def workflow(
    function: Callable[[ContextT], Coroutine[Any, Any, ResultT]], /
) -> Workflow[None, ResultT]: ...
@overload
def workflow(
    function: Callable[[InputT], Coroutine[Any, Any, ResultT]], /
) -> Workflow[InputT, ResultT]: ...
@overload
def workflow(
    function: Callable[[], Coroutine[Any, Any, ResultT]], /
) -> Workflow[None, ResultT]: ...
@overload
def workflow(function: Callable[[InputT, ContextT], ResultT], /) -> Workflow[InputT, ResultT]: ...
@overload
def workflow(function: Callable[[ContextT], ResultT], /) -> Workflow[None, ResultT]: ...
@overload
def workflow(function: Callable[[InputT], ResultT], /) -> Workflow[InputT, ResultT]: ...
@overload
def workflow(function: Callable[[], ResultT], /) -> Workflow[None, ResultT]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: int = 1,
    retry: Retry = ONCE,
    timeout: Duration | None = None,
    max_pause: Duration | None = None,
    on_stale: OnStale | None = None,
    pausable: Pausable = "yes",
    durability: Durability = "every_node",
    expires: Duration | None = None,
    models: Collection[str] | None = None,
    quotas: Collection[str] | None = None,
    signals: Iterable[SignalName] | None = None,
) -> WorkflowDecorator: ...


def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    retry: Retry = ONCE,
    timeout: Duration | None = None,
    max_pause: Duration | None = None,
    on_stale: OnStale | None = None,
    pausable: Pausable = "yes",
    durability: Durability = "every_node",
    expires: Duration | None = None,
    models: Collection[str] | None = None,
    quotas: Collection[str] | None = None,
    signals: Iterable[SignalName] | None = None,
) -> Any:
    """Make a function durable: ``async def approve(order: Order, ctx: Context) -> Receipt``.

    The function takes one input and ``ctx``; both may be left out. What it returns is the result of
    the run. Input and result have any type with a durable form. A plain function runs in a thread.
    The name is that of the function. The options are those of a `Graph` and of its only node;
    ``on_stale=restart("approve")`` names the node by the name of the workflow.

    The rule: after a pause, a crash or a failed attempt the function runs again from its first
    line. What it asked of ``ctx`` before returns at once, from the record. So it must ask the same,
    in the same order: only the input, and what calls, waits and children returned, may decide that.
    Read the time, random numbers, files and other services inside ``ctx.call``. A call is known by
    the name of its function and its number among the calls of that name; ``with_options(key=…)``
    frees it from the order. If a re-run passes other arguments, the record answers and the log
    warns; with a key, the call raises `CallChanged`.

    Raises:
        InvalidGraph: the function cannot be a workflow, or an option is invalid.
        InvalidRequest: ``timeout``, ``max_pause`` or ``expires`` is not a duration.
    """

    def decorate(function: Any) -> Workflow[Any, Any]:
        named = _name_of(function) if name is None else name
        signature = read_signature(function, str(named))
        graph = Graph(
            named,
            dict,
            version=version,
            durability=durability,
            models=models,
            quotas=quotas,
            expires=expires,
            signals=signals,
        )
        graph.node(
            name=named,
            pausable=pausable,
            retry=retry,
            timeout=timeout,
            max_pause=max_pause,
            on_stale=on_stale,
            writes=(RESULT,),
        )(_node_function(function, signature))
        return Workflow(function, graph, signature)

    return decorate if function is None else decorate(function)


def _name_of(function: Any) -> str:
    found = getattr(function, "__name__", None)
    return found if isinstance(found, str) else type(function).__name__


def _node_function(function: Any, signature: WorkflowSignature) -> Callable[..., Any]:
    """Return the function of the node, which takes the input also where the user's does not."""
    if signature.input is not None:
        return function

    def call(input: None, *context: Any) -> Any:
        return function(*context)

    async def call_async(input: None, *context: Any) -> Any:
        return await function(*context)

    adapter: Any = call_async if inspect.iscoroutinefunction(function) else call
    functools.update_wrapper(adapter, function)
    count = 1 + signature.takes_context
    positional = inspect.Parameter.POSITIONAL_ONLY
    adapter.__signature__ = inspect.Signature(
        [inspect.Parameter(each, positional) for each in ("input", "context")[:count]]
    )
    return adapter
