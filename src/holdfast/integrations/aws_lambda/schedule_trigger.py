"""`schedule_trigger`: runs what became due by itself: timers, backoffs, runs of dead workers."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.app import Holdfast
from holdfast.integrations.aws_lambda.due_runs import LambdaOptions, run_due
from holdfast.integrations.aws_lambda.invocation import (
    Event,
    Handler,
    LambdaContext,
    run_in_loop,
    seconds_left,
)
from holdfast.model.program import Program

__all__ = ["schedule_trigger"]


def schedule_trigger(
    hf: Holdfast, graphs: Iterable[Program], *, options: LambdaOptions | None = None
) -> Handler:
    """Return a handler that runs what is due, whatever its event is.

    Let a schedule of EventBridge invoke it once a minute. No event tells that a timer or a backoff
    has ended, or that an invocation was killed. It returns what the worker counted.
    """
    served = tuple(graphs)

    def handle(event: Event, context: LambdaContext) -> dict[str, int]:
        seconds = seconds_left(context)
        return run_in_loop(lambda: run_due(hf, served, seconds=seconds, options=options))

    return handle
