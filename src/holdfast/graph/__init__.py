"""Graphs: programs whose nodes are Python functions. Pure: no input or output, no clock."""

from holdfast.graph.graph import Graph
from holdfast.graph.node import END, Node, escalate, fail, restart
from holdfast.graph.workflow import Workflow, WorkflowDecorator, workflow

__all__ = [
    "END",
    "Graph",
    "Node",
    "Workflow",
    "WorkflowDecorator",
    "escalate",
    "fail",
    "restart",
    "workflow",
]
