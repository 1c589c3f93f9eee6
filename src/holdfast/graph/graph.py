"""The graph that a user declares: nodes, the edges between them, and the type of their state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from holdfast.errors import InvalidGraph
from holdfast.graph.checks import declared_wiring
from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.declaration import GraphDeclaration, SubgraphDeclaration
from holdfast.graph.edge_resolution import EdgeDeclaration, ForkOptions, check_reference
from holdfast.graph.mermaid import flowchart
from holdfast.graph.node import (
    END,
    Node,
    Reference,
    is_sync_function,
    name_of,
    takes_context,
)
from holdfast.graph.program import GraphProgram
from holdfast.graph.subgraphs import passthrough_node
from holdfast.graph.writes import written_by
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.policy import ONCE, Durability, OnFailure, OnStale, Pausable, Retry
from holdfast.model.reducers import Reducer

__all__ = ["Graph"]

F = TypeVar("F", bound=Callable[..., Any])


class Graph(GraphProgram):
    """A program whose nodes are Python functions.

    A run starts at the node that was registered first, or at the node that ``start`` names. A node
    without a route, choice or fork ends the run.
    """

    def __init__(
        self,
        name: str,
        state_type: Any,
        *,
        version: int = 1,
        start: str | None = None,
        reducers: Mapping[str, Reducer] | None = None,
        durability: Durability = "every_node",
    ) -> None:
        """Make an empty graph.

        A field of the state that has a reducer is combined with what a node returns for it, instead
        of being replaced: ``reducers={"notes": "append"}``. ``durability`` says when runs of the
        graph become durable. A start can override it.

        Raises:
            InvalidGraph: ``reducers`` is not a dict.
        """
        if not isinstance(reducers, Mapping | None):
            raise InvalidGraph(
                f"reducers must be a dict of field names to reducers, got {reducers!r:.80}"
            )
        super().__init__(
            GraphDeclaration(
                name=name,
                version=version,
                state_type=state_type,
                start=start,
                reducers=dict(reducers or {}),
                durability=durability,
            )
        )

    @property
    def state_type(self) -> Any:
        """The type of the state that nodes see."""
        return self._declaration.state_type

    @property
    def reducers(self) -> Mapping[str, str]:
        """The reducers of the state, by field name."""
        return MappingProxyType(self._declaration.reducers)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name. After the check they include the nodes of included graphs."""
        plan = self._declaration.plan
        return MappingProxyType(self._declaration.nodes) if plan is None else plan.wiring.nodes

    @overload
    def node(self, function: F, /) -> F: ...

    @overload
    def node(
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
    ) -> Callable[[F], F]: ...

    def node(
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
        """Register a function as a node, and return it unchanged.

        It takes ``(state)`` or ``(state, ctx)`` and returns what it changes in the state: a dict of
        some fields, a whole state, or None. ``writes`` names the fields that it may change; it has
        to be known where the node runs beside others. Where it is left out, it is what the type
        says that the function was annotated to return, if that is not the whole state.

        Raises:
            InvalidGraph: this cannot be a node, or the graph is in use already.
            InvalidRequest: a duration is not one.
        """

        def register(function: F) -> F:
            self._declaration.add_node(
                Node(
                    name=name_of(function) if name is None else name,
                    function=function,
                    is_sync=is_sync_function(function),
                    takes_context=takes_context(function),
                    pausable=pausable,
                    retry=retry,
                    timeout_ms=_positive_ms(timeout, "timeout"),
                    max_pause_ms=_positive_ms(max_pause, "max_pause"),
                    on_stale=on_stale,
                    writes=written_by(function, writes, self._declaration.state_type),
                    writes_declared=writes is not None,
                )
            )
            return function

        return register if function is None else register(function)

    def route(self, *nodes: Reference) -> None:
        """Lead from each of these nodes to the next; the last may be END.

        Raises:
            InvalidGraph: fewer than two, something that is not a node, or the graph is in use.
        """
        self._declaration.check_mutable()
        if len(nodes) < 2:
            raise InvalidGraph("a route has at least two nodes")
        if any(node is END for node in nodes[:-1]):
            raise InvalidGraph("a route can end with END, and cannot go on from there")
        for node in nodes:
            check_reference(node)
        for source, to in itertools.pairwise(nodes):
            self._declaration.edges.append(EdgeDeclaration(source, (to,)))

    def choose(
        self, node: Reference, chooser: Chooser, *, to: Iterable[Reference] | None = None
    ) -> None:
        """Lead from a node to what the chooser returns for the state: a node, its name, or END.

        ``to`` names everything that it may return; where it is left out, that is read from the
        chooser's code as far as possible.

        Raises:
            InvalidGraph: something is not a node or not a function, or the graph is in use.
        """
        self._declaration.check_mutable()
        if not callable(chooser):
            raise InvalidGraph(f"a choice is made by a function, not by {chooser!r:.80}")
        if not is_sync_function(chooser):
            raise InvalidGraph("a choice is made by a plain function, not by a coroutine function")
        targets = None if to is None else tuple(to)
        for reference in (node, *(targets or ())):
            check_reference(reference)
        if node is END:
            raise InvalidGraph("nothing can be chosen at the END")
        self._declaration.edges.append(EdgeDeclaration(node, targets, chooser))

    def fork(
        self,
        node: Reference,
        branches: Iterable[Reference],
        *,
        join: Reference,
        on_failure: OnFailure = "cancel",
    ) -> None:
        """Lead from a node to several at once, each the first of a branch, and then to the join.

        A branch goes on by its own routes and choices, and is over where these lead to the join,
        to END, or nowhere. Each sees the state as it was before the fork, with its own changes;
        the join sees the changes of all. A branch that fails cancels the others and fails the run,
        or spares them (``on_failure="spare"``): then the join finds it in ``ctx.failures``.

        Raises:
            InvalidGraph: fewer than two branches, something is not a node, or the graph is in use.
        """
        starts = tuple(branches)
        if len(starts) < 2:
            raise InvalidGraph("a fork has at least two branches")
        self._add_fork(node, starts, ForkOptions(join=join, spares=_validated_spares(on_failure)))

    def each(
        self,
        node: Reference,
        branch: Reference,
        *,
        over: str,
        into: str,
        join: Reference,
        on_failure: OnFailure = "cancel",
        concurrency: int | None = None,
    ) -> None:
        """Lead from a node to one branch for each item of a field of the state, then to the join.

        All branches begin with the same node, which finds its item in the field ``into``. At most
        ``concurrency`` of them run at a time. For the rest see `fork`.

        Raises:
            InvalidGraph: something is not a node or not a field, or the graph is in use.
        """
        for field in (over, into):
            if not isinstance(field, str) or not field:
                raise InvalidGraph(f"over and into name fields of the state, not {field!r:.80}")
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise InvalidGraph(f"concurrency is a whole number from 1 on, not {concurrency!r:.80}")
        options = ForkOptions(
            join=join,
            over=over,
            into=into,
            spares=_validated_spares(on_failure),
            concurrency=concurrency or 0,
        )
        self._add_fork(node, (branch,), options)

    def include(
        self,
        graph: Graph,
        *,
        name: str | None = None,
        takes: Mapping[str, str] | None = None,
        gives: Mapping[str, str] | None = None,
    ) -> str:
        """Make another graph a node of this one, and return its name here.

        It has a state of its own. ``takes`` says for its fields from which of ours they are copied,
        ``gives`` for ours from which of its they are copied back; left out, fields of the same name
        are both. Its nodes are called ``name/node``.

        Raises:
            InvalidGraph: it is not a graph, there is a node of that name, or the graph is in use.
        """
        if not isinstance(graph, Graph):
            raise InvalidGraph(f"a graph can be included, not {graph!r:.80}")
        inner = graph._declaration
        if inner is self._declaration or inner.includes(self._declaration):
            raise InvalidGraph(f"graph {graph.name!r:.80} would include itself")
        name = graph.name if name is None else name
        self._declaration.add_node(passthrough_node(name))
        self._declaration.subgraphs[name] = SubgraphDeclaration(inner, takes, gives)
        return name

    def draw(self) -> str:
        """Return a Mermaid flowchart of the graph. The graph need not be complete or valid."""
        return flowchart(declared_wiring(self._declaration)[0])

    def _add_fork(
        self, node: Reference, starts: tuple[Reference, ...], options: ForkOptions
    ) -> None:
        self._declaration.check_mutable()
        for reference in (node, *starts, options.join):
            check_reference(reference)
            if reference is END:
                raise InvalidGraph("END cannot be a fork, a branch or a join: use a node")
        self._declaration.edges.append(EdgeDeclaration(node, starts, fork_options=options))


def _validated_spares(on_failure: OnFailure) -> bool:
    if on_failure not in ("cancel", "spare"):
        raise InvalidGraph(f"on_failure is 'cancel' or 'spare', not {on_failure!r:.80}")
    return on_failure == "spare"


def _positive_ms(duration: Duration | None, field: str) -> int | None:
    if duration is None:
        return None
    span_ms = milliseconds_of(duration, field)
    if span_ms == 0:
        raise InvalidGraph(f"{field} is more than 0 seconds")
    return span_ms
