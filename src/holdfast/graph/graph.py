"""A graph: nodes, the ways between them, and the type of the state that passes through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast, get_args, overload

from holdfast.errors import InvalidGraph, InvalidResult
from holdfast.graph import transitions
from holdfast.graph.chooser_targets import Chooser
from holdfast.graph.contributions import contributions
from holdfast.graph.edge_resolution import (
    EdgeDeclaration,
    ForkOptions,
    check_reference,
    resolved_wiring,
)
from holdfast.graph.function_program import FunctionProgram
from holdfast.graph.mermaid import flowchart
from holdfast.graph.node import (
    END,
    Node,
    Reference,
    function_fault,
    is_sync_function,
    name_fault,
    name_of,
    takes_context,
)
from holdfast.graph.plan import Plan, build_plan
from holdfast.graph.regions import region_faults as faults_of_regions
from holdfast.graph.regions import regions_of
from holdfast.graph.state_codec import StateCodec
from holdfast.graph.state_codec import state_faults as faults_of_state
from holdfast.graph.subgraphs import Subgraph, passthrough_node, with_subgraphs
from holdfast.graph.wiring import Wiring
from holdfast.graph.wiring import wiring_faults as faults_of_wiring
from holdfast.graph.writes import reducer_faults, written_by
from holdfast.model.decision import Decision, Outcome
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import Event
from holdfast.model.execution import Execution
from holdfast.model.policy import ONCE, Durability, OnFailure, OnStale, Pausable, Retry
from holdfast.model.program import RunNode
from holdfast.model.reducers import Reducer

__all__ = ["Graph"]

F = TypeVar("F", bound=Callable[..., Any])

_PAUSABLE = ("yes", "no", "blocking")


class Graph(FunctionProgram):
    """A program whose nodes are Python functions.

    The run begins at the node that was registered first, or at the one that ``start`` names. A node
    with neither a route nor a choice ends it.
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

        ``reducers`` says for fields of the state how what nodes return for them is brought
        together with what is there, instead of replacing it: ``{"notes": "append"}``.
        ``durability`` is when its runs become durable, unless a start says otherwise.
        """
        self._name = name
        self._version = version
        self._state_type = state_type
        self._start = start
        self._durability: Durability = durability
        if not isinstance(reducers, Mapping | None):
            raise InvalidGraph(f"reducers are a dict by field, not {reducers!r:.80}")
        self._reducers: dict[str, str] = dict(reducers or {})
        self._subgraphs: dict[str, _SubgraphDeclaration] = {}
        self._nodes: dict[str, Node] = {}
        self._declarations: list[EdgeDeclaration] = []
        self._faults: list[str] = []
        self._plan: Plan | None = None

    @property
    def name(self) -> str:
        """What the graph is called: its runs carry this name."""
        return self._name

    @property
    def version(self) -> int:
        """Which version of the graph this is."""
        return self._version

    @property
    def state_type(self) -> Any:
        """The type of the state, as its nodes see it."""
        return self._state_type

    @property
    def durability(self) -> Durability:
        """When its runs become durable, unless a start says otherwise."""
        return self._durability

    @property
    def reducers(self) -> Mapping[str, str]:
        """The reducers of fields of the state, by the names of the fields."""
        return MappingProxyType(self._reducers)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by their names, those of graphs inside this one included once it is checked."""
        return MappingProxyType(self._nodes) if self._plan is None else self._plan.wiring.nodes

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
            self._add_node(
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
                    writes=written_by(function, writes, self._state_type),
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
        self._check_mutable()
        if len(nodes) < 2:
            raise InvalidGraph("a route has at least two nodes")
        if any(node is END for node in nodes[:-1]):
            raise InvalidGraph("a route can end with END, and cannot go on from there")
        for node in nodes:
            check_reference(node)
        for source, to in itertools.pairwise(nodes):
            self._declarations.append(EdgeDeclaration(source, (to,)))

    def choose(
        self, node: Reference, chooser: Chooser, *, to: Iterable[Reference] | None = None
    ) -> None:
        """Lead from a node to what the chooser returns for the state: a node, its name, or END.

        ``to`` names everything that it may return; where it is left out, that is read from the
        chooser's code as far as possible.

        Raises:
            InvalidGraph: something is not a node or not a function, or the graph is in use.
        """
        self._check_mutable()
        if not callable(chooser):
            raise InvalidGraph(f"a choice is made by a function, not by {chooser!r:.80}")
        if not is_sync_function(chooser):
            raise InvalidGraph("a choice is made by a plain function, not by a coroutine function")
        targets = None if to is None else tuple(to)
        for reference in (node, *(targets or ())):
            check_reference(reference)
        if node is END:
            raise InvalidGraph("nothing can be chosen at the END")
        self._declarations.append(EdgeDeclaration(node, targets, chooser))

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
        at_once: int | None = None,
    ) -> None:
        """Lead from a node to one branch for each item of a field of the state, then to the join.

        All branches begin with the same node, which finds its item in the field ``into``. At most
        ``at_once`` of them run at a time. For the rest see `fork`.

        Raises:
            InvalidGraph: something is not a node or not a field, or the graph is in use.
        """
        for field in (over, into):
            if not isinstance(field, str) or not field:
                raise InvalidGraph(f"over and into name fields of the state, not {field!r:.80}")
        if at_once is not None and (type(at_once) is not int or at_once < 1):
            raise InvalidGraph(f"at_once is a whole number from 1 on, not {at_once!r:.80}")
        options = ForkOptions(
            join=join,
            over=over,
            into=into,
            spares=_validated_spares(on_failure),
            at_once=at_once or 0,
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
        if graph is self or graph._includes(self):
            raise InvalidGraph(f"graph {graph.name!r:.80} would include itself")
        name = graph.name if name is None else name
        self._add_node(passthrough_node(name))
        self._subgraphs[name] = _SubgraphDeclaration(graph, takes, gives)
        return name

    def check(self) -> Graph:
        """Return the graph if it can be run; from then on it cannot be changed.

        Raises:
            InvalidGraph: it cannot, and this is everything that is wrong with it.
        """
        if self._plan is None:
            plan, faults = self._build_plan()
            if plan is None:
                raise InvalidGraph(
                    f"graph {self._name!r:.80} cannot be run: " + "; ".join(faults), faults=faults
                )
            self._plan = plan
        return self

    def draw(self) -> str:
        """Return a Mermaid flowchart of the graph, also of one that is not finished."""
        return flowchart(self._build_wiring()[0])

    def start(self, input: Any, seed: str) -> Execution:
        """Return a new run's execution.

        Raises:
            InvalidInput: the input does not fit the state.
            InvalidGraph: the graph cannot be run.
        """
        plan = self._checked_plan()
        return Execution(state=plan.codecs[""].initial(input), seed=seed, node=plan.wiring.start)

    def step(self, execution: Execution, branch: str, outcome: Outcome, now_ms: int) -> Decision:
        """Decide what follows from what came of a branch's node.

        Raises:
            UnknownNode: it stands at a node that the graph does not have.
        """
        return transitions.step(
            execution, branch, outcome, now_ms=now_ms, plan=self._checked_plan()
        )

    def retried(
        self, execution: Execution, node: str | None, request: str, now_ms: int
    ) -> tuple[Event, ...]:
        """Decide what follows from a request to let a failed run go on, at a node perhaps."""
        return transitions.retry_events(
            execution, node, request, now_ms=now_ms, plan=self._checked_plan()
        )

    def effect(self, execution: Execution, branch: str) -> RunNode:
        """Return what is to be performed for one branch that stands at a node.

        Raises:
            UnknownNode: the graph does not have that node.
        """
        return transitions.effect_of(execution, branch, self._checked_plan())

    def retries_left(self, execution: Execution) -> int:
        """Return how many failures the run survives: the least of all nodes where it stands."""
        nodes = self.nodes
        left = [
            node.retry.attempts - 1 - strand.failed_attempts
            for _, strand in execution.runnable_strands()
            if (node := nodes.get(strand.node)) is not None
        ]
        return min(left, default=0)

    def result(self, state: dict[str, Any]) -> Any:
        """Return the final state of a run as its type has it.

        Raises:
            InvalidState: the stored state does not match the type.
        """
        return self._checked_plan().codecs[""].typed(state)

    def enter(self, execution: Execution, branch: str = "") -> Any:
        """Return the state as a branch's node sees it.

        Raises:
            InvalidState: what was kept does not match the type.
        """
        strand = execution.strand(branch)
        state = self._checked_plan().codec("" if strand is None else strand.node)
        return state.typed(execution.visible_state(branch))

    def delta(self, execution: Execution, branch: str, returned: Any) -> dict[str, Any]:
        """Return what a branch's node changed in the state, in its durable form.

        Raises:
            InvalidResult: it does not fit the type, or cannot be kept.
        """
        strand = execution.strand(branch)
        node_plan = self._checked_plan().node_plan("" if strand is None else strand.node)
        node, before = node_plan.node, execution.visible_state(branch)
        delta = node_plan.codec.delta(returned, before)
        if node_plan.ops:
            delta = contributions(returned, delta, before, node_plan.ops)
        enforced = node.writes_declared or node_plan.join is not None
        if enforced and node.writes is not None and not delta.keys() <= node.writes:
            undeclared = ", ".join(repr(name) for name in delta if name not in node.writes)
            raise InvalidResult(f"node {node.name!r} was not declared to write {undeclared}")
        return delta

    def _add_fork(
        self, node: Reference, starts: tuple[Reference, ...], options: ForkOptions
    ) -> None:
        self._check_mutable()
        for reference in (node, *starts, options.join):
            check_reference(reference)
            if reference is END:
                raise InvalidGraph("a fork, its branches and its join are nodes, and not the END")
        self._declarations.append(EdgeDeclaration(node, starts, fork_options=options))

    def _build_wiring(self) -> tuple[Wiring, list[str]]:
        wiring, faults = resolved_wiring(self._nodes, self._declarations, self._start)
        included = [
            Subgraph(name, part.graph._build_wiring()[0], *part.field_mappings(self._state_type))
            for name, part in self._subgraphs.items()
        ]
        return with_subgraphs(wiring, included), faults

    def _build_plan(self) -> tuple[Plan | None, list[str]]:
        """Return how the graph is run, or everything that is wrong with it."""
        wiring, faults = self._build_wiring()
        faults = [*self._own_faults(), *faults, *faults_of_state(self._state_type)]
        for name, part in self._subgraphs.items():
            faults += part.faults(name, self._state_type, self._reducers)
        if faults:
            return None, [*faults, *faults_of_wiring(wiring)]
        states = {"": StateCodec(self._state_type)}
        reducers = {"": self._reducers}
        for name, part in self._subgraphs.items():
            inner = part.graph._checked_plan()
            states |= {f"{name}/{scope}": state for scope, state in inner.codecs.items()}
            reducers |= {f"{name}/{scope}": ops for scope, ops in inner.reducers.items()}
        regions, faults = regions_of(wiring)
        faults += faults_of_wiring(wiring)
        fields = {scope: state.fields for scope, state in states.items()}
        faults += faults_of_regions(wiring, regions, fields, reducers)
        faults += reducer_faults(self._reducers, fields[""])
        return (None, faults) if faults else (build_plan(wiring, regions, states, reducers), [])

    def _includes(self, graph: Graph) -> bool:
        parts = [part.graph for part in self._subgraphs.values()]
        return graph in parts or any(part._includes(graph) for part in parts)

    def _checked_plan(self) -> Plan:
        plan = self._plan
        if plan is None:
            plan = cast(Plan, self.check()._plan)
        return plan

    def _check_mutable(self) -> None:
        if self._plan is not None:
            raise InvalidGraph(f"graph {self._name!r} is in use, and cannot be changed any more")

    def _add_node(self, node: Node) -> None:
        self._check_mutable()
        if node.pausable not in _PAUSABLE:
            raise InvalidGraph(f"pausable is 'yes', 'no' or 'blocking', not {node.pausable!r:.80}")
        if not isinstance(node.retry, Retry):
            raise InvalidGraph(f"retry is a Retry, not {node.retry!r:.80}")
        if not isinstance(node.on_stale, OnStale | None):
            raise InvalidGraph(
                f"on_stale is restart(node), escalate(node) or fail(), not {node.on_stale!r:.80}"
            )
        if not callable(node.function):
            raise InvalidGraph(f"a node is a function, not {node.function!r:.80}")
        if not isinstance(node.name, str):
            raise InvalidGraph(f"a node's name is text, not {node.name!r:.80}")
        if node.name in self._nodes:
            self._faults.append(f"there are two nodes of the name {node.name!r:.80}")
        else:
            self._nodes[node.name] = node

    def _own_faults(self) -> Iterator[str]:
        if fault := name_fault(self._name):
            yield f"the graph's name: {fault}"
        if type(self._version) is not int or self._version < 1:
            yield f"the version is a number from 1 on, not {self._version!r:.80}"
        if self._durability not in get_args(Durability):
            yield f"durability is 'every_node' or 'on_pause', not {self._durability!r:.80}"
        yield from self._faults
        if not self._nodes:
            yield "there are no nodes"
        for node in self._nodes.values():
            if fault := name_fault(node.name):
                yield f"a node's name: {fault}"
            if fault := function_fault(node.function):
                yield f"node {node.name!r:.80}: {fault}"


class _SubgraphDeclaration(NamedTuple):
    """A graph inside this one, as it was declared."""

    graph: Graph
    takes: Mapping[str, str] | None
    gives: Mapping[str, str] | None

    def field_mappings(self, outer: Any) -> tuple[dict[str, str], dict[str, str]]:
        """Return which fields are copied into it, and which out of it."""
        shared = _fields(outer) & _fields(self.graph.state_type)
        same = {name: name for name in sorted(shared)}
        takes = same if self.takes is None else dict(self.takes)
        return takes, same if self.gives is None else dict(self.gives)

    def faults(self, name: str, outer: Any, reducers: Mapping[str, str]) -> Iterator[str]:
        """Yield what keeps it from being a node."""
        try:
            self.graph.check()
        except InvalidGraph as invalid:
            yield from (f"in {name!r:.80}: {fault}" for fault in invalid.faults)
            return
        takes, gives = self.field_mappings(outer)
        inner_fields, outer_fields = _fields(self.graph.state_type), _fields(outer)
        copies = [*((own, there) for own, there in takes.items())]
        copies += [(own, there) for there, own in gives.items()]
        for own, there in copies:
            for fields, field in ((inner_fields, own), (outer_fields, there)):
                if fields and field not in fields:
                    yield f"{name!r:.80} takes or gives {field!r:.80}, which is no field"
        for there, own in gives.items():
            if reducers.get(there) != self.graph.reducers.get(own):
                yield (
                    f"{name!r:.80} gives {own!r:.80} to {there!r:.80}, and the two have not the "
                    "same reducer"
                )


def _fields(kind: Any) -> frozenset[str]:
    """Return the names of a type's fields, as far as they are known."""
    if any(faults_of_state(kind)):
        return frozenset()
    return StateCodec(kind).fields or frozenset()


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
