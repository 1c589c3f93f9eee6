"""A graph: nodes, the ways between them, and the type of the state that passes through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, overload

from holdfast.errors import InvalidGraph
from holdfast.graph import program
from holdfast.graph.choice import Chooser
from holdfast.graph.draft import Exit, check_reference, wired
from holdfast.graph.drawing import drawn
from holdfast.graph.node import (
    END,
    Node,
    Reference,
    fault_of_function,
    fault_of_name,
    is_plain,
    name_of,
    takes_context,
)
from holdfast.graph.state import State
from holdfast.graph.state import faults_of as faults_of_state
from holdfast.graph.wiring import Wiring
from holdfast.graph.wiring import faults_of as faults_of_wiring
from holdfast.model.decision import Decision, Outcome, RunNode
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.execution import Execution
from holdfast.model.policy import ONCE, OnStale, Pausable, Retry

__all__ = ["Graph"]

F = TypeVar("F", bound=Callable[..., Any])

_PAUSABLE = ("yes", "no", "blocking")


class Graph:
    """A program whose nodes are Python functions.

    The run begins at the node that was registered first, or at the one that ``start`` names. A node
    with neither a route nor a choice ends it.
    """

    def __init__(
        self, name: str, state_type: Any, *, version: int = 1, start: str | None = None
    ) -> None:
        self._name = name
        self._version = version
        self._state_type = state_type
        self._start = start
        self._nodes: dict[str, Node] = {}
        self._exits: list[Exit] = []
        self._faults: list[str] = []
        self._checked: tuple[Wiring, State] | None = None

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
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by their names, in the order in which they were registered."""
        return MappingProxyType(self._nodes)

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
    ) -> Any:
        """Register a function as a node, and return it unchanged.

        It takes ``(state)`` or ``(state, ctx)`` and returns what it changes in the state: a dict of
        some fields, a whole state, or None.

        Raises:
            InvalidGraph: this cannot be a node, or the graph is in use already.
            InvalidRequest: a duration is not one.
        """

        def register(function: F) -> F:
            self._add(
                Node(
                    name=name_of(function) if name is None else name,
                    function=function,
                    plain=is_plain(function),
                    takes_context=takes_context(function),
                    pausable=pausable,
                    retry=retry,
                    timeout_ms=_positive_ms(timeout, "timeout"),
                    max_pause_ms=_positive_ms(max_pause, "max_pause"),
                    on_stale=on_stale,
                )
            )
            return function

        return register if function is None else register(function)

    def route(self, *nodes: Reference) -> None:
        """Lead from each of these nodes to the next; the last may be END.

        Raises:
            InvalidGraph: fewer than two, something that is not a node, or the graph is in use.
        """
        self._not_in_use()
        if len(nodes) < 2:
            raise InvalidGraph("a route has at least two nodes")
        if any(node is END for node in nodes[:-1]):
            raise InvalidGraph("a route can end with END, and cannot go on from there")
        for node in nodes:
            check_reference(node)
        for source, to in itertools.pairwise(nodes):
            self._exits.append(Exit(source, (to,)))

    def choose(
        self, node: Reference, chooser: Chooser, *, to: Iterable[Reference] | None = None
    ) -> None:
        """Lead from a node to what the chooser returns for the state: a node, its name, or END.

        ``to`` names everything that it may return; where it is left out, that is read from the
        chooser's code as far as possible.

        Raises:
            InvalidGraph: something is not a node or not a function, or the graph is in use.
        """
        self._not_in_use()
        if not callable(chooser):
            raise InvalidGraph(f"a choice is made by a function, not by {chooser!r:.80}")
        if not is_plain(chooser):
            raise InvalidGraph("a choice is made by a plain function, not by a coroutine function")
        targets = None if to is None else tuple(to)
        for reference in (node, *(targets or ())):
            check_reference(reference)
        if node is END:
            raise InvalidGraph("nothing can be chosen at the END")
        self._exits.append(Exit(node, targets, chooser))

    def check(self) -> Graph:
        """Return the graph if it can be run; from then on it cannot be changed.

        Raises:
            InvalidGraph: it cannot, and this is everything that is wrong with it.
        """
        if self._checked is None:
            wiring, faults = wired(self._nodes, self._exits, self._start)
            every = [*self._own_faults(), *faults, *faults_of_wiring(wiring)]
            every += faults_of_state(self._state_type)
            if every:
                raise InvalidGraph(
                    f"graph {self._name!r:.80} cannot be run: " + "; ".join(every), faults=every
                )
            self._checked = wiring, State(self._state_type)
        return self

    def draw(self) -> str:
        """Return a Mermaid flowchart of the graph, also of one that is not finished."""
        return drawn(wired(self._nodes, self._exits, self._start)[0])

    def start(self, input: Any, seed: str) -> Execution:
        """Return a new run's execution.

        Raises:
            InvalidInput: the input does not fit the state.
            InvalidGraph: the graph cannot be run.
        """
        wiring, state = self._parts()
        return Execution(state=state.initial(input), seed=seed, node=wiring.start)

    def step(self, execution: Execution, outcome: Outcome, now_ms: int) -> Decision:
        """Decide what follows from the outcome.

        Raises:
            UnknownNode: the run stands at a node that the graph does not have.
        """
        wiring, state = self._parts()
        return program.step(execution, outcome, now_ms=now_ms, wiring=wiring, state=state)

    def outstanding(self, execution: Execution) -> tuple[RunNode, ...]:
        """Return what is to be performed, also after a resume; nothing where the run has ended.

        Raises:
            UnknownNode: the run stands at a node that the graph does not have.
        """
        return program.outstanding(execution, self._parts()[0])

    def enter(self, execution: Execution) -> Any:
        """Return the state as a node sees it.

        Raises:
            InvalidState: what was kept does not match the type.
        """
        return self._parts()[1].entered(execution.state)

    def delta(self, execution: Execution, returned: Any) -> dict[str, Any]:
        """Return what a node changed in the state, in its durable form.

        Raises:
            InvalidResult: it does not fit the type, or cannot be kept.
        """
        return self._parts()[1].delta(returned, execution.state)

    def _parts(self) -> tuple[Wiring, State]:
        if self._checked is None:
            self.check()
        return cast(tuple[Wiring, State], self._checked)

    def _not_in_use(self) -> None:
        if self._checked is not None:
            raise InvalidGraph(f"graph {self._name!r} is in use, and cannot be changed any more")

    def _add(self, node: Node) -> None:
        self._not_in_use()
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
        if fault := fault_of_name(self._name):
            yield f"the graph's name: {fault}"
        if type(self._version) is not int or self._version < 1:
            yield f"the version is a number from 1 on, not {self._version!r:.80}"
        yield from self._faults
        if not self._nodes:
            yield "there are no nodes"
        for node in self._nodes.values():
            if fault := fault_of_name(node.name):
                yield f"a node's name: {fault}"
            if fault := fault_of_function(node.function):
                yield f"node {node.name!r:.80}: {fault}"


def _positive_ms(duration: Duration | None, field: str) -> int | None:
    if duration is None:
        return None
    span_ms = milliseconds_of(duration, field)
    if span_ms == 0:
        raise InvalidGraph(f"{field} is more than 0 seconds")
    return span_ms
