"""Runs a graph with telemetry, and kills itself in the middle if it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from holdfast import Context, Graph, Holdfast
from holdfast.integrations.telemetry import OpenTelemetry

URL, LOG, MODE = sys.argv[1:]


class FileExporter(SpanExporter):
    """Appends each span to a file before it returns, so that a kill loses none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(LOG, "a") as log:
            for span in spans:
                ids = {"trace": span.context.trace_id, "id": span.context.span_id}
                log.write(json.dumps({"name": span.name, **ids}) + "\n")
        return SpanExportResult.SUCCESS


@dataclass
class State:
    text: str = ""


async def fetch() -> str:
    return "fetched"


async def late() -> str:
    return "late"


graph = Graph("crash", State)


@graph.node
async def first(state: State, ctx: Context) -> State:
    return replace(state, text=await ctx.call(fetch))


@graph.node
async def second(state: State, ctx: Context) -> State:
    text = await ctx.call(late)
    if MODE == "die":  # the call is made, and its record is not durable yet
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(state, text=text)


graph.route(first, second)


async def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    telemetry = OpenTelemetry(provider)
    async with Holdfast(URL, telemetry=telemetry) as hf, hf.worker([graph], lease=2, drain=1):
        run = await hf.start(graph, State(), id="r-1")
        await run.result()


asyncio.run(main())
