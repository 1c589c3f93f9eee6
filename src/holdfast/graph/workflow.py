"""Durable functions: `workflow` makes one function a program that workers can run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol, TypeVar, overload

from holdfast.errors import InvalidGraph
from holdfast.graph.graph import Graph
from holdfast.graph.items import ItemDecorator
from holdfast.graph.workflow_drawing import drawn_steps
from holdfast.graph.workflow_program import WorkflowProgram
from holdfast.graph.workflow_signature import WorkflowSignature, read_signature
from holdfast.graph.workflow_steps import steps_of
from holdfast.model.durations import Duration
from holdfast.model.function_state import RESULT
from holdfast.model.policy import ONCE, Durability, OnStale, Pausable, Retry
from holdfast.model.signals import SignalName
from holdfast.model.type_parameters import InputT, ResultT

__all__ = ["AnyContext", "Workflow", "WorkflowDecorator", "workflow"]


class AnyContext(Protocol):
    """The context of a workflow, as far as type checkers tell it from an input."""

    def heartbeat(self) -> None:
        """Report that the call that runs now makes progress."""
        ...

    def with_options(self, *, key: str | None = None) -> Any:
        """Return a caller with options."""
        ...


_LAMBDA = (lambda: None).__name__

ContextT = TypeVar("ContextT", bound=AnyContext)
# Of the function that becomes a workflow.
InT = TypeVar("InT")
OutT = TypeVar("OutT")


class Workflow(WorkflowProgram[InputT, ResultT]):
    """A durable function: a program with one node. `workflow` makes it.

    It is used wherever a graph is. To call it calls the function itself, without a run, for tests.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: nothing is recorded, unless ``ctx`` does it."""
        return self._function(*args, **kwargs)

    @property
    def item(self) -> ItemDecorator:
        """Registers a function that a map of the workflow calls for each item.

        See `ItemDecorator`.
        """
        return ItemDecorator(self._declaration)

    @property
    def result_type(self) -> Any:
        """The type of the result."""
        return self._types[1]

    def draw(self) -> str:
        """Return a Mermaid flowchart of the steps that the code of the function shows."""
        return drawn_steps(self.name, steps_of(self._function))

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version}>"


class WorkflowDecorator(Protocol):
    """Makes a function a `Workflow` with the options that `workflow` was given."""

    @overload
    def __call__(
        self, function: Callable[[InT, ContextT], Coroutine[Any, Any, OutT]], /
    ) -> Workflow[InT, OutT]: ...
    @overload
    def __call__(
        self, function: Callable[[ContextT], Coroutine[Any, Any, OutT]], /
    ) -> Workflow[None, OutT]: ...
    @overload
    def __call__(
        self, function: Callable[[InT], Coroutine[Any, Any, OutT]], /
    ) -> Workflow[InT, OutT]: ...
    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, OutT]], /
    ) -> Workflow[None, OutT]: ...
    @overload
    def __call__(self, function: Callable[[InT, ContextT], OutT], /) -> Workflow[InT, OutT]: ...
    @overload
    def __call__(self, function: Callable[[ContextT], OutT], /) -> Workflow[None, OutT]: ...
    @overload
    def __call__(self, function: Callable[[InT], OutT], /) -> Workflow[InT, OutT]: ...
    @overload
    def __call__(self, function: Callable[[], OutT], /) -> Workflow[None, OutT]: ...


@overload
def workflow(
    function: Callable[[InT, ContextT], Coroutine[Any, Any, OutT]], /
) -> Workflow[InT, OutT]: ...
@overload
def workflow(
    function: Callable[[ContextT], Coroutine[Any, Any, OutT]], /
) -> Workflow[None, OutT]: ...
@overload
def workflow(function: Callable[[InT], Coroutine[Any, Any, OutT]], /) -> Workflow[InT, OutT]: ...
@overload
def workflow(function: Callable[[], Coroutine[Any, Any, OutT]], /) -> Workflow[None, OutT]: ...
@overload
def workflow(function: Callable[[InT, ContextT], OutT], /) -> Workflow[InT, OutT]: ...
@overload
def workflow(function: Callable[[ContextT], OutT], /) -> Workflow[None, OutT]: ...
@overload
def workflow(function: Callable[[InT], OutT], /) -> Workflow[InT, OutT]: ...
@overload
def workflow(function: Callable[[], OutT], /) -> Workflow[None, OutT]: ...
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

    if isinstance(function, str):
        raise InvalidGraph(
            f"workflow must be given a function, or options by name, got {function!r:.80}: write "
            f"@workflow(name={function!r:.80})"
        )
    return decorate if function is None else decorate(function)


def _name_of(function: Any) -> str:
    found = getattr(function, "__name__", None)
    if found == _LAMBDA:
        raise InvalidGraph(
            "a workflow must have a name, and a lambda has none: write a function with def, or "
            'pass name="…"'
        )
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
