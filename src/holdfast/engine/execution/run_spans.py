"""The spans of one claimed run: collected while this process drives it, emitted when recorded.

A span is reported only after the record of its work is durable. So a process that is killed reports
nothing that another one does again, and an answer from a record is never a span.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, cast

import msgspec

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.visit import Visit
from holdfast.engine.kernel.telemetry import RunSpan, SpanKind, SpanValue, Telemetry
from holdfast.log_context import RUN_SCOPE, RunScope
from holdfast.records.head import ENDED

__all__ = ["AttemptSpan", "RunSpans", "agent_span", "spans_of"]

# A label with the trace of the caller that started the run.
_TRACEPARENT = "traceparent"
_CONVERSATION = "gen_ai.conversation.id"
# A run raises its epoch when it is claimed and when it is released.
_EPOCHS_PER_CLAIM = 2
_SPANS: ContextVar[RunSpans | None] = ContextVar("holdfast_spans", default=None)


class _NodeSpan(msgspec.Struct, frozen=True):
    """An attempt of a node that runs, or that ended and is not recorded yet."""

    scope: RunScope
    attempt: int
    began: tuple[int, float]


class RunSpans:
    """Collects the spans of a run from its claim until the driver stops."""

    def __init__(self, claimed: ClaimedRun, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self._claimed = claimed
        self._pending: list[RunSpan] = []
        self._epoch = claimed.head.epoch
        self._was_ended = claimed.head.status in ENDED
        # A run in memory gets its generation when it is stored, which may never happen.
        self._generation_in_memory = "" if claimed.head.generation else claimed.kernel.ids.new()
        self._began = self.now()
        self._nodes: dict[str, _NodeSpan] = {}
        self._agents: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        """How many calls this process made inside of each span."""

    def now(self) -> tuple[int, float]:
        """Return the time of the wall clock in nanoseconds, and that of the monotonic clock."""
        clock = self._claimed.kernel.clock
        return clock.now_ms() * 1_000_000, clock.monotonic()

    @property
    def segment(self) -> str:
        """The name of the span of this claim."""
        return f"segment {self._epoch}"

    def scope(self, node: str, span: str) -> RunScope:
        """Return the scope of a span of this run."""
        key = self._claimed.head.key
        return self.traced(RunScope(key.tenant, key.id, "", node, span))

    def traced(self, scope: RunScope) -> RunScope:
        """Return a scope with the generation from which the run's trace derives."""
        generation = self._claimed.head.generation or self._generation_in_memory
        if scope.generation == generation:
            return scope
        return msgspec.structs.replace(scope, generation=generation)

    # --- nodes ------------------------------------------------------------------------------------

    def enter_node(self, visit: Visit) -> AbstractContextManager[object]:
        """Begin the span of an attempt of a node, and make it the current one."""
        scope = self.traced(visit.log_scope())
        self._agents[scope.span] = 0
        self._nodes[visit.branch] = _NodeSpan(scope, visit.attempt, self.now())
        return self.telemetry.enter(scope)

    def record_node(self, branch: str, *, error: str = "") -> None:
        """Add the span of an attempt of a node: its outcome is recorded."""
        node = self._nodes.pop(branch, None)
        if node is not None:
            self.add(
                "node",
                node.scope,
                parent=self.segment,
                name=node.scope.node,
                began=node.began,
                error=error,
                attributes={"holdfast.attempt": node.attempt, "holdfast.branch": branch},
            )
        self.emit_durable()

    def next_agent(self, span: str) -> int:
        """Return the number of the next conversation inside of a span."""
        self._agents[span] += 1
        return self._agents[span]

    # --- what is collected ------------------------------------------------------------------------

    def add(
        self,
        kind: SpanKind,
        scope: RunScope,
        *,
        parent: str,
        name: str,
        began: tuple[int, float],
        error: str = "",
        attributes: dict[str, SpanValue] | None = None,
    ) -> None:
        """Add a span whose record was written or buffered."""
        session = self._claimed.head.session
        known: dict[str, SpanValue] = {} if session is None else {_CONVERSATION: session}
        self._pending.append(
            RunSpan(
                kind=kind,
                scope=scope,
                parent=parent,
                name=name,
                began_ns=began[0],
                ended_ns=began[0] + self._elapsed_ns(began),
                error=error,
                attributes=known | (attributes or {}),
            )
        )

    def emit_durable(self) -> None:
        """Emit the collected spans if all records of the run are durable."""
        writer, claim = self._claimed.journal.writer, self._claimed.claim
        if self._pending and writer is not None and not writer.has_unwritten and claim.alive():
            pending, self._pending = self._pending, []
            self._emit(pending)

    def drop(self) -> None:
        """Forget the collected spans: it is not known whether their records are durable."""
        self._pending.clear()
        self._nodes.clear()

    def end_segment(self) -> None:
        """Emit the rest, and the span of this claim; nothing if the run was lost."""
        claimed, pending = self._claimed, self._pending
        self._pending = []
        if not claimed.claim.released or self._was_ended:
            return
        writer = claimed.journal.writer
        ended_in_memory = claimed.persistence.in_memory is not None
        if writer is None or (writer.has_unwritten and not ended_in_memory):
            pending = []  # it is not known whether their records are durable
        head = claimed.head
        status = claimed.execution.ending or head.status
        attributes: dict[str, SpanValue] = {
            "holdfast.run.status": status,
            "holdfast.run.epoch": self._epoch,
            "holdfast.graph.version": head.version,
        }
        if head.reason and status not in ENDED:
            attributes["holdfast.run.reason"] = head.reason
        if head.session is not None:
            attributes[_CONVERSATION] = head.session
        failure = claimed.execution.failure if status in ("failed", "quarantined") else None
        before = self._epoch - _EPOCHS_PER_CLAIM
        segment = RunSpan(
            kind="invoke_workflow",
            scope=self.scope("", self.segment),
            parent="",
            name=head.graph,
            began_ns=self._began[0],
            ended_ns=self._began[0] + self._elapsed_ns(self._began),
            error="" if failure is None else failure.type,
            attributes=attributes,
            links=(f"segment {before}",) if before >= 0 else (),
            caller=head.labels.get(_TRACEPARENT, "") if before < 0 else "",
        )
        self._emit([*pending, segment])

    def _emit(self, spans: list[RunSpan]) -> None:
        # Spans from before the run was stored belong to the trace of its generation, too.
        self.telemetry.emit(
            [
                span
                if (scope := self.traced(span.scope)) is span.scope
                else msgspec.structs.replace(span, scope=scope)
                for span in spans
            ]
        )

    def _elapsed_ns(self, began: tuple[int, float]) -> int:
        return max(0, round((self._claimed.kernel.clock.monotonic() - began[1]) * 1e9))


def spans_of(claimed: ClaimedRun) -> RunSpans | None:
    """Return the collector of a run's spans for its driver's task; None without telemetry."""
    telemetry = claimed.kernel.telemetry
    spans = None if telemetry is None else RunSpans(claimed, telemetry)
    _SPANS.set(spans)
    return spans


class AttemptSpan:
    """One attempt of a call: a tool that is executed, or a model that is asked."""

    def __init__(self, spans: RunSpans, node: str, span: str, *, name: str, model: str) -> None:
        around = RUN_SCOPE.get()
        self._parent = spans.segment if around is None else around.log_scope().span
        self._spans = spans
        self._name = name
        self._model = model
        self._began = spans.now()
        self._scope = spans.scope(node, span)
        self._token = RUN_SCOPE.set(self._scope)
        self._current = spans.telemetry.enter(self._scope)
        self._current.__enter__()
        self._left = False

    @classmethod
    def begin(cls, node: str, span: str, *, name: str, model: str) -> AttemptSpan | None:
        """Begin the span of an attempt; return None without telemetry."""
        spans = _SPANS.get()
        return None if spans is None else cls(spans, node, span, name=name, model=model)

    def leave(self) -> None:
        """Let the span around it be the current one again."""
        if not self._left:
            self._left = True
            self._current.__exit__(None, None, None)
            RUN_SCOPE.reset(self._token)

    def record(self, call: str, *, result: Any = None, error: str = "") -> None:
        """Add the span: the outcome of the attempt is recorded."""
        self.leave()
        spans = self._spans
        spans.calls[self._parent] += 1
        attributes: dict[str, SpanValue] = {"holdfast.call": call}
        if self._model:
            attributes["gen_ai.request.model"] = self._model
            attributes |= _usage_attributes(result)
            kind: SpanKind = "chat"
        else:
            attributes["gen_ai.tool.name"] = self._name
            attributes["gen_ai.tool.type"] = "function"
            kind = "execute_tool"
        spans.add(
            kind,
            self._scope,
            parent=self._parent,
            name=self._model or self._name,
            began=self._began,
            error=error,
            attributes=attributes,
        )
        spans.emit_durable()  # a node may make many calls


@contextmanager
def agent_span(model: str) -> Generator[None]:
    """Report a conversation with an agent as a span around its calls.

    A conversation that is answered from records alone is none: this process did nothing for it.
    """
    spans, source = _SPANS.get(), RUN_SCOPE.get()
    if spans is None or source is None:
        yield
        return
    around = spans.traced(source.log_scope())
    number = spans.next_agent(around.span)
    scope = msgspec.structs.replace(around, span=f"{around.span} agent {number}")
    began, before, error = spans.now(), spans.calls[scope.span], ""
    token = RUN_SCOPE.set(scope)
    try:
        with spans.telemetry.enter(scope):
            yield
    except Exception as raised:
        error = type(raised).__qualname__
        raise
    except BaseException:  # the run pauses or is lost: the conversation has not ended
        before = spans.calls[scope.span]
        raise
    finally:
        RUN_SCOPE.reset(token)
        if spans.calls[scope.span] > before:
            spans.add(
                "invoke_agent",
                scope,
                parent=around.span,
                name=model,
                began=began,
                error=error,
                attributes={"gen_ai.request.model": model},
            )


def _usage_attributes(result: Any) -> dict[str, SpanValue]:
    """Return what a recorded answer says about the tokens that it took."""
    if not isinstance(result, dict):
        return {}
    answer = cast(dict[str, Any], result)
    attributes: dict[str, SpanValue] = {}
    usage = cast(dict[str, Any], answer.get("usage") or {})
    for name in ("input_tokens", "output_tokens"):
        if type(tokens := usage.get(name)) is int:
            attributes[f"gen_ai.usage.{name}"] = tokens
    if isinstance(model := answer.get("model"), str) and model:
        attributes["gen_ai.response.model"] = model
    return attributes
