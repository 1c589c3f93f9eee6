"""Holdfast runs agent workflows that can stop at any moment and go on at the exact node."""

# Before everything else: it mends the import path of python -m holdfast.
from holdfast import import_path as _import_path  # noqa: F401  # pyright: ignore[reportUnusedImport]
from holdfast.app import Holdfast
from holdfast.engine.effects.savings import Saved
from holdfast.engine.execution.agents import Agent, Conversation, agent
from holdfast.engine.execution.context import Context
from holdfast.engine.history.run_stream import RunStream
from holdfast.engine.worker.health import WorkerHealth
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.graph import END, Graph, Node, escalate, fail, restart
from holdfast.graph.tool import UNKNOWN, VOID, Tool, done, tool
from holdfast.handle import RunHandle
from holdfast.model.budget import Budget
from holdfast.model.conditions import WaitAnswer, timer
from holdfast.model.durations import days, hours, minutes, seconds
from holdfast.model.hooks import AttemptFailure, Hooks
from holdfast.model.invocation import Answer, Model
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Retry
from holdfast.model.pricing import ModelPrice
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.quota import Quota
from holdfast.model.run import (
    AmbiguousCall,
    HistoryEntry,
    HistoryPage,
    Run,
    RunEntry,
    RunPage,
    SessionQueueEntry,
    SetAsideSignal,
    SignalReceipt,
    TextPiece,
    WaitPage,
)
from holdfast.model.signals import signal
from holdfast.model.spending import Spending
from holdfast.records.run_filter import RunFilter

__all__ = [
    "END",
    "UNKNOWN",
    "VOID",
    "Agent",
    "AmbiguousCall",
    "Answer",
    "AttemptFailure",
    "Budget",
    "BulkProgress",
    "Context",
    "Conversation",
    "Graph",
    "HistoryEntry",
    "HistoryPage",
    "Holdfast",
    "Hooks",
    "Model",
    "ModelPrice",
    "Node",
    "PayloadLimits",
    "Quota",
    "Retry",
    "Run",
    "RunEntry",
    "RunFilter",
    "RunHandle",
    "RunPage",
    "RunStream",
    "Saved",
    "SessionQueueEntry",
    "SetAsideSignal",
    "SignalReceipt",
    "Spending",
    "SweepProgress",
    "TextPiece",
    "Tool",
    "WaitAnswer",
    "WaitPage",
    "Worker",
    "WorkerHealth",
    "WorkerOptions",
    "agent",
    "days",
    "done",
    "escalate",
    "fail",
    "hours",
    "minutes",
    "restart",
    "seconds",
    "signal",
    "timer",
    "tool",
]
