"""`stream_trigger`: runs what became due just now, because the table's stream says so.

A row that is due has a key in the due index: ``DUE#{graph}#{shard}`` and a time. The handler looks
at nothing else of an item, and what it gets wrong is harmless: a worker claims with conditional
writes, and the schedule finds what the stream did not tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, cast

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
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import HEAD

__all__ = ["STREAM_FILTER", "due_ms_of", "stream_trigger"]

_PATTERN = {
    "eventName": ["INSERT", "MODIFY"],
    "dynamodb": {"NewImage": {"GSI1PK": {"S": [{"prefix": "DUE#"}]}}},
}
STREAM_FILTER: Final = {"Filters": [{"Pattern": json.dumps(_PATTERN)}]}
"""The ``FilterCriteria`` of an event source mapping: Lambda then passes on only rows of runs that
can be claimed, now or later, and invokes the function for nothing else."""

# A run that is due within so many seconds is waited for.
_AHEAD_MS = 5_000
# At least as long as a store waits between two polls.
_POLL_SECONDS = 1.0


def stream_trigger(
    hf: Holdfast, graphs: Iterable[Program], *, options: LambdaOptions | None = None
) -> Handler:
    """Return a handler of the table's stream: it runs what is due if a run became due.

    The stream must have new images; with keys only, each change of a run's row counts. Pass
    `STREAM_FILTER` to the event source mapping. The handler reports no failed records: a record is
    only a hint, and what is due stays due until a worker takes it.
    """
    served = tuple(graphs)
    asked = options or LambdaOptions()
    kinds = {(graph.name, pool) for graph in served for pool in asked.worker.pools}

    def handle(event: Event, context: LambdaContext) -> dict[str, list[Any]]:
        now_ms = hf.clock.now_ms()
        times = [due_ms_of(record, kinds) for record in _records_of(event)]
        wait_ms = [each - now_ms for each in times if each is not None]
        soon_ms = [each for each in wait_ms if each <= _AHEAD_MS]
        if soon_ms:
            chosen = replace(asked, idle_seconds=_idle_seconds(max(soon_ms), asked))
            seconds = seconds_left(context)
            run_in_loop(lambda: run_due(hf, served, seconds=seconds, options=chosen))
        return {"batchItemFailures": []}

    return handle


def _idle_seconds(due_in_ms: int, options: LambdaOptions) -> float:
    """Return how long the worker waits for a run that is due now, or in a moment."""
    if due_in_ms <= 0:
        return options.idle_seconds
    # A poll must follow the time at which the run is due.
    return due_in_ms / 1000 + options.idle_seconds + (options.worker.poll_seconds or _POLL_SECONDS)


def due_ms_of(record: Any, kinds: Iterable[tuple[str, str | None]]) -> int | None:
    """Return when the run of a stream record is due; None if it has none of these graphs and pools.

    It is 0 for a record with keys only, which does not say when the run is due.
    """
    match record:
        case {"eventName": "INSERT" | "MODIFY", "dynamodb": {"NewImage": new, **rest}}:
            key = _index_key(new)
            if key is None or key == _index_key(rest.get("OldImage")):
                return None
            try:
                queue, due_ms = key.due_queue(), key.due_parts()[0]
            except ValueError:  # not a run to claim
                return None
            return due_ms if (queue.graph, queue.pool) in kinds else None
        case {"eventName": "INSERT" | "MODIFY", "dynamodb": {"Keys": {"SK": {"S": sk}}}}:
            return 0 if sk == HEAD else None
        case _:
            return None


def _index_key(image: object) -> IndexKey | None:
    match image:
        case {"GSI1PK": {"S": str(pk)}, "GSI1SK": {"S": str(sk)}} if pk.startswith("DUE#"):
            return IndexKey(pk, sk)
        case _:
            return None


def _records_of(event: Event) -> list[Any]:
    match event:
        case {"Records": list()}:
            return cast("list[Any]", event["Records"])
        case _:
            return []
