"""Runs one node of a graph without a run, a store or a worker: for tests of single nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import InvalidRequest
from holdfast.graph.node import Node, Reference
from holdfast.graph.plan import Plan
from holdfast.graph.program import GraphProgram
from holdfast.model.execution import Execution
from holdfast.model.reducers import reduced

__all__ = ["NodeContext", "run_node"]


@runtime_checkable
class NodeContext(Protocol):
    """A context that stands for a run, such as `holdfast.testing.FakeContext`."""

    def enter_node(self, program: GraphProgram, node: Node, state: Mapping[str, Any]) -> object:
        """Return the context as the node gets it; it blocks if the node is a plain function."""
        ...

    async def leave_node(self) -> None:
        """Check what the node did with the context, after the node has returned."""
        ...


async def run_node(
    program: GraphProgram, plan: Plan, node: Reference, state: Any, *, context: object
) -> Any:
    """Run one node on a state, and return the state as a run would have it after the node.

    Raises:
        InvalidRequest: the graph has no such node, or the node takes a context and got none.
        InvalidInput: the state does not fit its type.
        InvalidResult: the result does not fit the state, or has a field that the node may not
            write.
    """
    name = plan.wiring.name_of(node)
    if name is None:
        known = ", ".join(plan.wiring.nodes)
        raise InvalidRequest(
            f"node must be a node of graph {program.name!r}, got {node!r:.80}; its nodes are: "
            f"{known}",
            field="node",
        )
    node_plan = plan.node_plans[name]
    before = node_plan.codec.initial(state)
    entered = None
    if node_plan.node.takes_context and isinstance(context, NodeContext):
        entered = context.enter_node(program, node_plan.node, before)
    returned = await _call(node_plan.node, node_plan.codec.typed(before), entered or context)
    if entered is not None and isinstance(context, NodeContext):
        await context.leave_node()
    execution = Execution(state=before, seed="", node=name)
    delta = program.delta(execution, "", returned)
    return node_plan.codec.typed(reduced(before, delta, node_plan.ops))


async def _call(node: Node, state: Any, context: object) -> Any:
    arguments: tuple[Any, ...] = (state,)
    if node.takes_context:
        if context is None:
            raise InvalidRequest(
                f"node {node.name!r} takes a context: pass ctx=FakeContext(…) of holdfast.testing",
                field="ctx",
            )
        arguments = (state, context)
    if node.is_sync:
        return await asyncio.to_thread(node.function, *arguments)
    return await node.function(*arguments)
