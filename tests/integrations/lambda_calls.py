"""What Lambda passes to a handler, and a graph for the handlers to run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast import Context, Graph, signal
from holdfast.clock import SystemClock
from holdfast.integrations.aws_lambda import LambdaOptions
from holdfast.model.program import Program
from holdfast.records.index_keys import DueQueue

__all__ = ["FAST", "Document", "Invocation", "documents", "due_record", "event_named", "matches"]

EVENTS = Path(__file__).parent / "lambda_events"
FAST = LambdaOptions(idle_seconds=0.3)
APPROVED = signal("approved", bool)


@dataclass
class Document:
    uri: str
    read: bool = False
    approved: bool = False


documents = Graph("documents", Document)


@documents.node
async def read(document: Document) -> Document:
    return replace(document, read=True)


@documents.node
async def approve(document: Document, ctx: Context) -> Document:
    return replace(document, approved=await ctx.wait(APPROVED))


documents.route(read, approve)


class Invocation:
    """Lambda's context: it says how much time is left."""

    def __init__(self, seconds: float = 30.0) -> None:
        clock = self._clock = SystemClock()
        self._ends = clock.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return round((self._ends - self._clock.monotonic()) * 1000)


def event_named(name: str) -> Any:
    """Return an event as AWS documents it."""
    return json.loads((EVENTS / f"{name}.json").read_text())


def due_record(graph: Program, due_ms: int, *, pool: str | None = None) -> Any:
    """Return the record of a stream that says when a run of a graph is due."""
    event = event_named("dynamodb_stream")
    record = event["Records"][0]
    image = record["dynamodb"]["NewImage"]
    image["GSI1PK"]["S"] = DueQueue(graph.name, pool, 1).partition
    image["GSI1SK"]["S"] = f"{due_ms:013d}#default#o-1#3"
    return record


def matches(pattern: Any, value: Any) -> bool:
    """Return whether Lambda passes a value on: all fields match one of their rules."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(
            name in value and matches(rule, value[name]) for name, rule in pattern.items()
        )
    return any(
        str(value).startswith(rule["prefix"]) if isinstance(rule, dict) else value == rule
        for rule in pattern
    )
