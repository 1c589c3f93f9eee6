"""Spans of runs for OpenTelemetry, by its conventions for generative AI. Needs holdfast[telemetry].

One run is one trace. Its id and the ids of its spans derive from the run, so every process that
drives the run adds to the same trace, also after a pause of days. Each claim of the run is a span
(``invoke_workflow``), linked to the claim before. Inside are its nodes, its agents
(``invoke_agent``), its calls (``execute_tool``) and its questions to models (``chat``). No span has
prompts, answers, arguments or results.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.display import get_logger
from holdfast.engine.kernel.telemetry import RunSpan, SpanValue
from holdfast.errors import InvalidRequest
from holdfast.log_context import REQUEST_SCOPE, RunScope, derived_span_id, derived_trace_id
from holdfast.model.names import LABELS_MAX

__all__ = ["OpenTelemetry"]

_log = get_logger("holdfast.telemetry")

_TRACEPARENT = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()
_SPAN_KINDS = {"chat": SpanKind.CLIENT}


class OpenTelemetry:
    """Emits the spans of runs: ``Holdfast(url, telemetry=OpenTelemetry(provider))``.

    A span is emitted once, by the process that did the work, after its record is durable. An
    answer from a record is no span. Without a provider, the global one is used.

    Raises:
        InvalidRequest: the provider is none of opentelemetry-sdk.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        provider = tracer_provider or trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            raise InvalidRequest(
                "tracer_provider must be a TracerProvider of opentelemetry-sdk, got "
                f"{provider!r:.80}: pass one, or set the global one first",
                field="tracer_provider",
            )
        self._sampler = provider.sampler
        self._ids = _GivenIds()
        self._lock = threading.Lock()
        tracer = provider.get_tracer("holdfast")
        # None if OTEL_SDK_DISABLED is set. The tracer is our own: other ones keep their ids.
        self._tracer = tracer if isinstance(tracer, Tracer) else None
        if self._tracer is not None:
            self._tracer.id_generator = self._ids

    def emit(self, spans: Sequence[RunSpan]) -> None:
        """Hand finished spans to the provider."""
        for span in spans:
            try:
                self._emit(span)
            except Exception:  # an exporter's mistake must not end a run
                _log.exception("the span of %s %s was lost", span.kind, span.name)

    @contextmanager
    def enter(self, scope: RunScope) -> Generator[None]:
        """Make a span of a run the current one, for spans of instrumented clients."""
        current = trace.set_span_in_context(NonRecordingSpan(self._context_of(scope, scope.span)))
        token = otel_context.attach(current)
        try:
            yield
        finally:
            otel_context.detach(token)

    def labels(self, given: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return the labels of a new run, with the caller's ``traceparent`` if there is one.

        A run that has no room for another label keeps its own: telemetry never fails a start.
        """
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        request = REQUEST_SCOPE.get()
        if not carrier and request is not None and request.traceparent:
            carrier = {_TRACEPARENT: request.traceparent}
        labels: Mapping[str, str] = {} if given is None else given
        if _TRACEPARENT not in carrier or not isinstance(labels, Mapping):
            return given  # what is no mapping is refused with the other arguments
        # The pool becomes a label, too.
        if _TRACEPARENT in labels or len(labels) + 1 >= LABELS_MAX:
            return given
        return {**labels, _TRACEPARENT: carrier[_TRACEPARENT]}

    def _emit(self, span: RunSpan) -> None:
        if self._tracer is None:
            return
        parent = Context()
        if span.parent:
            around = NonRecordingSpan(self._context_of(span.scope, span.parent))
            parent = trace.set_span_in_context(around, parent)
        links = [Link(self._context_of(span.scope, name)) for name in span.links]
        if span.caller:
            extracted = _PROPAGATOR.extract({_TRACEPARENT: span.caller}, Context())
            caller = trace.get_current_span(extracted).get_span_context()
            if caller.is_valid:
                links.append(Link(caller))
        with self._lock:
            self._ids.trace_id = int(derived_trace_id(span.scope.generation), 16)
            self._ids.span_id = int(derived_span_id(span.scope.generation, span.scope.span), 16)
            begun = self._tracer.start_span(
                f"{span.kind} {span.name}",
                parent,
                _SPAN_KINDS.get(span.kind, SpanKind.INTERNAL),
                _attributes(span),
                links,
                start_time=span.began_ns,
            )
        if span.error:
            begun.set_status(Status(StatusCode.ERROR, span.error))
        begun.end(end_time=span.ended_ns)

    def _context_of(self, scope: RunScope, span: str) -> SpanContext:
        """Return the context of a span of a run, sampled as the whole trace is."""
        trace_id = int(derived_trace_id(scope.generation), 16)
        sampled = self._sampler.should_sample(None, trace_id, "invoke_workflow").decision
        return SpanContext(
            trace_id,
            int(derived_span_id(scope.generation, span), 16),
            is_remote=True,
            trace_flags=TraceFlags(
                TraceFlags.SAMPLED if sampled.is_sampled() else TraceFlags.DEFAULT
            ),
        )


class _GivenIds(IdGenerator):
    """The ids of the span that is made next."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def _attributes(span: RunSpan) -> dict[str, SpanValue]:
    attributes: dict[str, SpanValue] = {
        "holdfast.run.id": span.scope.run,
        "holdfast.tenant": span.scope.tenant,
    }
    if span.scope.node:
        attributes["holdfast.node"] = span.scope.node
    if span.kind != "node":
        attributes["gen_ai.operation.name"] = span.kind
    if span.kind == "invoke_workflow":
        attributes["gen_ai.workflow.name"] = span.name
    if span.error:
        attributes["error.type"] = span.error
    return attributes | dict(span.attributes)
