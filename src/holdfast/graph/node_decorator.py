"""The decorator ``@graph.node``: it registers a function as a node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.graph.declaration import GraphDeclaration
from holdfast.graph.node import Node, is_sync_function, name_of, takes_context
from holdfast.graph.spans import positive_ms
from holdfast.graph.writes import written_by
from holdfast.model.durations import Duration
from holdfast.model.policy import ONCE, OnStale, Pausable, Retry
from holdfast.model.type_parameters import StateT

__all__ = ["Changes", "NodeDecorator"]

P = ParamSpec("P")


class Changes(Protocol):
    """Any ``TypedDict``: the fields of the state that a node changes."""

    __required_keys__: ClassVar[frozenset[str]]
    __optional_keys__: ClassVar[frozenset[str]]


ChangesT = TypeVar("ChangesT", bound=Changes | None)


class NodeDecorator(Generic[StateT]):
    """Registers functions as nodes of one graph: ``@graph.node`` or ``@graph.node(retry=…)``."""

    def __init__(self, declaration: GraphDeclaration) -> None:
        self._declaration = declaration

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], Coroutine[Any, Any, ChangesT]], /
    ) -> Callable[Concatenate[StateT, P], Coroutine[Any, Any, ChangesT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], Coroutine[Any, Any, StateT]], /
    ) -> Callable[Concatenate[StateT, P], Coroutine[Any, Any, StateT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], Coroutine[Any, Any, StateT | ChangesT]], /
    ) -> Callable[Concatenate[StateT, P], Coroutine[Any, Any, StateT | ChangesT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], ChangesT], /
    ) -> Callable[Concatenate[StateT, P], ChangesT]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], StateT], /
    ) -> Callable[Concatenate[StateT, P], StateT]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[StateT, P], StateT | ChangesT], /
    ) -> Callable[Concatenate[StateT, P], StateT | ChangesT]: ...

    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        pausable: Pausable = "yes",
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        max_pause: Duration | None = None,
        on_stale: OnStale | None = None,
        writes: Collection[str] | None = None,
    ) -> NodeDecorator[StateT]: ...

    def __call__(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        pausable: Pausable = "yes",
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        max_pause: Duration | None = None,
        on_stale: OnStale | None = None,
        writes: Collection[str] | None = None,
    ) -> Any:
        """Register a function as a node, and return the function unchanged.

        The function takes ``(state)`` or ``(state, ctx)``. It returns what it changes in the state:
        a dict of some fields, a whole state, or None. ``writes`` names the fields that the node may
        change. Without it the fields come from the return annotation, if that is not the type of
        the whole state. A node that runs in parallel with others needs one of the two.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
            InvalidRequest: ``timeout`` or ``max_pause`` is not a duration.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self._declaration.add_node(
                Node(
                    name=name_of(function) if name is None else name,
                    function=function,
                    is_sync=is_sync_function(function),
                    takes_context=takes_context(function),
                    pausable=pausable,
                    retry=retry,
                    timeout_ms=positive_ms(timeout, "timeout"),
                    max_pause_ms=positive_ms(max_pause, "max_pause"),
                    on_stale=on_stale,
                    writes=written_by(function, writes, self._declaration.state_type),
                    writes_declared=writes is not None,
                )
            )
            return function

        return register if function is None else register(function)
