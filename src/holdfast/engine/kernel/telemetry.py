"""The port through which the engine reports spans: what this process did for a run and recorded.

An adapter turns them into spans of a tracing system. Ids derive from names (`derived_span_id`), so
all processes that drive a run agree on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.log_context import RunScope

__all__ = ["RunSpan", "SpanKind", "SpanValue", "Telemetry"]

SpanKind: TypeAlias = Literal["invoke_workflow", "node", "invoke_agent", "execute_tool", "chat"]
"""What was done; all but ``node`` are operations of the GenAI conventions."""

SpanValue: TypeAlias = str | int | float | bool
"""The value of an attribute of a span."""


class RunSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Something that this process did for a run, and that is recorded."""

    kind: SpanKind
    scope: RunScope
    """The run, and the name of this span in it."""
    parent: str
    """The name of the span around it; empty for a segment of the run."""
    name: str
    """The graph, the node, the tool or the model."""
    began_ns: int
    """When it began, in nanoseconds since 1970."""
    ended_ns: int
    error: str = ""
    """The type of the error with which it ended; empty without one."""
    attributes: Mapping[str, SpanValue] = {}
    links: Sequence[str] = ()
    """Names of spans of the same run that came before it."""
    caller: str = ""
    """The ``traceparent`` of the request that started the run, for the first segment."""


class Telemetry(Protocol):
    """Receives the spans of runs. Its methods must return quickly, and must not raise."""

    def emit(self, spans: Sequence[RunSpan]) -> None:
        """Take spans whose records are durable. Each is passed at most once, by one process."""
        ...

    def enter(self, scope: RunScope) -> AbstractContextManager[object]:
        """Make a span the current one, so that spans of instrumented clients become its children.

        The span itself is emitted later, when its record is durable.
        """
        ...

    def labels(self, given: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return the labels of a new run, with the trace of the caller that starts it."""
        ...
