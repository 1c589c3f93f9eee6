"""Where a log line comes from: the run, the node and the request that this code works for.

The engine sets it around each node, and the server around each request. It has ids only, and no
payload.
"""

from __future__ import annotations

import hashlib
import logging
from contextvars import Context, ContextVar, copy_context
from typing import Protocol

import msgspec

__all__ = [
    "REQUEST_SCOPE",
    "RUN_SCOPE",
    "RequestScope",
    "RunLogFilter",
    "RunScope",
    "ScopeSource",
    "context_without_run",
    "derived_span_id",
    "derived_trace_id",
    "log_fields",
]


class RunScope(msgspec.Struct, frozen=True):
    """The run and the node that code works for."""

    tenant: str
    run: str
    generation: str
    """The identity of the run: an id may be used again after a run was removed. It is empty while
    the run is only in memory."""
    node: str = ""
    span: str = ""
    """The name of the current span, unique in the run."""

    def log_scope(self) -> RunScope:
        """Return this scope."""
        return self


class ScopeSource(Protocol):
    """Code that works for a run, such as a visit of a node: it makes its scope only when asked."""

    def log_scope(self) -> RunScope:
        """Return the run and the node."""
        ...


class RequestScope(msgspec.Struct, frozen=True):
    """The request to the server that code works for."""

    id: str
    tenant: str = ""
    traceparent: str = ""
    """The trace of the caller, as the header says; empty without one."""


RUN_SCOPE: ContextVar[ScopeSource | None] = ContextVar("holdfast_run", default=None)
REQUEST_SCOPE: ContextVar[RequestScope | None] = ContextVar("holdfast_request", default=None)


def context_without_run() -> Context:
    """Return a copy of the context for a task that works for many runs, and outlives this one.

    Otherwise the task would keep the run in memory, and log under its name.
    """
    context = copy_context()
    context.run(RUN_SCOPE.set, None)
    return context


def derived_trace_id(generation: str) -> str:
    """Return the id of a run's trace, 32 hexadecimal digits: the same in every process."""
    return hashlib.blake2b(f"trace {generation}".encode(), digest_size=16).hexdigest()


def derived_span_id(generation: str, span: str) -> str:
    """Return the id of a span of a run, 16 hexadecimal digits: the same in every process."""
    return hashlib.blake2b(f"span {generation} {span}".encode(), digest_size=8).hexdigest()


def log_fields() -> dict[str, str]:
    """Return the ids of what the calling code works for: run, tenant, node, trace and request.

    Only those that are known are in it.
    """
    fields: dict[str, str] = {}
    source = RUN_SCOPE.get()
    if source is not None:
        run = source.log_scope()
        fields = {"run": run.run, "tenant": run.tenant}
        if run.node:
            fields["node"] = run.node
        if run.generation:  # a run in memory has none yet
            fields["trace_id"] = derived_trace_id(run.generation)
            if run.span:
                fields["span_id"] = derived_span_id(run.generation, run.span)
    request = REQUEST_SCOPE.get()
    if request is not None:
        fields["request"] = request.id
        if request.tenant:
            fields.setdefault("tenant", request.tenant)
    return fields


class RunLogFilter(logging.Filter):
    """Adds the attributes of `log_fields` to each record: ``handler.addFilter(RunLogFilter())``.

    A formatter can then use ``%(run)s``, ``%(tenant)s``, ``%(node)s``, ``%(trace_id)s``,
    ``%(span_id)s`` and ``%(request)s``; an id that is not known is ``-``.
    """

    _names = ("run", "tenant", "node", "trace_id", "span_id", "request")

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids to a record, and let the record pass."""
        fields = log_fields()
        for name in self._names:
            setattr(record, name, fields.get(name, "-"))
        return True
