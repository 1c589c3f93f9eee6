"""The graph that a user declares: nodes, the edges between them, and the type of their state."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict, Unpack, overload

from holdfast.errors import InvalidGraph
from holdfast.graph.checks import declared_wiring
from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.declaration import GraphDeclaration, SubgraphDeclaration
from holdfast.graph.edge_resolution import EdgeDeclaration, ForkOptions, check_reference
from holdfast.graph.items import ItemDecorator
from holdfast.graph.mermaid import flowchart
from holdfast.graph.needs import declared_needs
from holdfast.graph.node import (
    END,
    Node,
    Reference,
    is_sync_function,
)
from holdfast.graph.node_decorator import NodeDecorator
from holdfast.graph.node_run import run_node
from holdfast.graph.program import GraphProgram
from holdfast.graph.signal_types import declared_signals
from holdfast.graph.spans import positive_ms
from holdfast.graph.subgraphs import passthrough_node
from holdfast.model.durations import Duration
from holdfast.model.policy import Durability, OnFailure
from holdfast.model.reducers import Reducer
from holdfast.model.signals import SignalName
from holdfast.model.type_parameters import StateT

__all__ = ["Graph"]


class GraphOptions(TypedDict, total=False):
    """The options of a graph: see `Graph`."""

    version: int
    start: str | None
    reducers: Mapping[str, Reducer] | None
    durability: Durability
    models: Collection[str] | None
    quotas: Collection[str] | None
    expires: Duration | None
    signals: Iterable[SignalName[Any]] | None


class Graph(GraphProgram[StateT, StateT]):
    """A program whose nodes are Python functions; a ``Graph[Order]`` has an ``Order`` as its state.

    A run starts at the node that was registered first, or at the node that ``start`` names. A node
    without a route, choice or fork ends the run.
    """

    # A state of the type dict has no fields that a checker knows.
    @overload
    def __init__(
        self: Graph[dict[str, Any]],
        name: str,
        state_type: type[dict[Any, Any]],
        **options: Unpack[GraphOptions],
    ) -> None: ...

    @overload
    def __init__(
        self, name: str, state_type: type[StateT], **options: Unpack[GraphOptions]
    ) -> None: ...

    def __init__(
        self,
        name: str,
        state_type: Any,
        *,
        version: int = 1,
        start: str | None = None,
        reducers: Mapping[str, Reducer] | None = None,
        durability: Durability = "every_node",
        models: Collection[str] | None = None,
        quotas: Collection[str] | None = None,
        expires: Duration | None = None,
        signals: Iterable[SignalName] | None = None,
    ) -> None:
        """Make an empty graph.

        A field of the state that has a reducer is combined with what a node returns for it, instead
        of being replaced: ``reducers={"notes": "append"}``. ``durability`` says when runs of the
        graph become durable. ``expires`` is how long after their start they expire, 7 days by
        default. A start can override both. A child expires with the run that started it.

        ``models`` names the models that the nodes ask, and ``quotas`` those of them that must have
        a quota. A worker that lacks one refuses to start, and a node that asks another model fails.

        ``signals=[signal("approved", bool), …]`` declares all signals that runs of the graph take:
        a signal of another name, or with a payload of another type, is refused where it is sent.

        Raises:
            InvalidGraph: ``reducers`` is not a dict, ``expires`` is 0, ``models`` or ``quotas`` is
                not a list of names, a quota is not for one of the models, or ``signals`` is not a
                list of signals.
            InvalidRequest: ``expires`` is not a duration.
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
                needs=declared_needs(models, quotas),
                expires_in_ms=positive_ms(expires, "expires"),
                signals=None if signals is None else declared_signals(signals),
            )
        )

    @property
    def state_type(self) -> type[StateT]:
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

    @property
    def node(self) -> NodeDecorator[StateT]:
        """Registers a function as a node: ``@graph.node`` or ``@graph.node(retry=…)``.

        See `NodeDecorator`.
        """
        return NodeDecorator(self._declaration)

    @property
    def item(self) -> ItemDecorator:
        """Registers a function that a map calls for each item: ``@graph.item``.

        See `ItemDecorator`.
        """
        return ItemDecorator(self._declaration)

    def route(self, *nodes: Reference) -> None:
        """Connect each of these nodes to the next one. The last may be END.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
        """
        self._declaration.check_mutable()
        if len(nodes) < 2:
            raise InvalidGraph(f"route needs at least two nodes, got {len(nodes)}")
        if any(node is END for node in nodes[:-1]):
            raise InvalidGraph("END must be the last argument of route")
        for node in nodes:
            check_reference(node)
        for source, to in itertools.pairwise(nodes):
            self._declaration.edges.append(EdgeDeclaration(source, (to,)))

    def choose(
        self,
        node: Reference,
        chooser: Chooser[StateT],
        *,
        to: Iterable[Reference] | None = None,
    ) -> None:
        """Connect a node to the node that the chooser returns for the state.

        The chooser returns a node, the name of a node, or END. ``to`` lists everything that it may
        return. Without it the targets are read from the code of the chooser.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
        """
        self._declaration.check_mutable()
        if not callable(chooser):
            raise InvalidGraph(f"chooser must be a function, got {chooser!r:.80}")
        if not is_sync_function(chooser):
            raise InvalidGraph("chooser must be a plain function, got a coroutine function")
        targets = None if to is None else tuple(to)
        for reference in (node, *(targets or ())):
            check_reference(reference)
        if node is END:
            raise InvalidGraph("choose needs a node as its first argument, got END")
        self._declaration.edges.append(EdgeDeclaration(node, targets, chooser))

    def fork(
        self,
        node: Reference,
        branches: Iterable[Reference],
        *,
        join: Reference,
        on_failure: OnFailure = "cancel",
    ) -> None:
        """Run several branches in parallel after a node, and then the join.

        ``branches`` are the first nodes of the branches. A branch follows its own routes and
        choices, and ends where they lead to the join, to END, or nowhere. Each branch sees the
        state before the fork with its own changes. The join sees the changes of all branches. A
        branch that fails cancels the others and fails the run. With ``on_failure="spare"`` the
        others go on, and the join finds the failure in ``ctx.failures``.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
        """
        starts = tuple(branches)
        if len(starts) < 2:
            raise InvalidGraph(f"fork needs at least two branches, got {len(starts)}")
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
        """Run one branch for each item of a field after a node, and then the join.

        ``over`` names the field. All branches start with the same node, which finds its item in the
        field ``into``. At most ``concurrency`` of them run at a time. For the rest see `fork`.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
        """
        for field in (over, into):
            if not isinstance(field, str) or not field:
                raise InvalidGraph(
                    f"over and into must be names of fields of the state, got {field!r:.80}"
                )
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise InvalidGraph(f"concurrency must be an integer from 1, got {concurrency!r:.80}")
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
        graph: Graph[Any],
        *,
        name: str | None = None,
        takes: Mapping[str, str] | None = None,
        gives: Mapping[str, str] | None = None,
    ) -> str:
        """Make another graph a node of this one, and return the name of the node.

        The included graph has its own state. ``takes`` maps its fields to the fields of this graph
        that they are copied from. ``gives`` maps fields of this graph to the fields of the included
        graph that they are copied from at its end. By default fields of the same name are copied
        both ways. The nodes of the included graph are called ``name/node``.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
        """
        if not isinstance(graph, Graph):
            raise InvalidGraph(f"include needs a Graph, got {graph!r:.80}")
        inner = graph._declaration
        if inner is self._declaration or inner.includes(self._declaration):
            raise InvalidGraph(f"graph {graph.name!r:.80} must not include itself")
        own = self._declaration.merged_signals()
        for signal, kind in inner.merged_signals().items():
            if own.get(signal, kind) != kind:
                raise InvalidGraph(
                    f"signal {signal!r} must have the same type in graph {graph.name!r:.80} and in "
                    f"graph {self.name!r:.80}"
                )
        name = graph.name if name is None else name
        self._declaration.add_node(passthrough_node(name))
        self._declaration.subgraphs[name] = SubgraphDeclaration(inner, takes, gives)
        return name

    async def run_node(self, node: Reference, state: StateT, *, ctx: object = None) -> StateT:
        """Run one node on a state without a run, and return the state after it: for tests.

        The result is checked and reduced as in a run. A node that takes a context gets ``ctx``: see
        `holdfast.testing.FakeContext`. The node's retries and its timeout are left out.

        Raises:
            InvalidRequest: the graph has no such node, or the node needs a context.
            InvalidInput: the state does not fit its type.
            InvalidResult: the node returned something that a run would refuse.
        """
        return await run_node(self, self._plan, node, state, context=ctx)

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
        raise InvalidGraph(f"on_failure must be 'cancel' or 'spare', got {on_failure!r:.80}")
    return on_failure == "spare"
