"""A worker for AWS Lambda: each invocation runs what is due, for as long as there is something."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Protocol

from orders import Order, graph

from holdfast import Holdfast

URL = os.environ["HOLDFAST_URL"]  # dynamodb://runs?region=eu-west-1&bucket=my-blobs
LEASE_SECONDS = 15.0  # after a killed invocation, its runs wait this long
DRAIN_SECONDS = 10.0  # nodes may take this long after the time is up
IDLE_SECONDS = 5.0  # without a run for this long, the invocation ends


class LambdaContext(Protocol):
    """The part of Lambda's context that is needed here."""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    """Start the order of the event, if it has one, and run everything that is due."""
    # Lambda kills the process at its timeout. Leave time to drain, and 5 seconds to release runs.
    seconds = context.get_remaining_time_in_millis() / 1000 - DRAIN_SECONDS - 5
    return asyncio.run(work(event, seconds))


async def work(event: dict[str, Any], seconds: float) -> dict[str, int]:
    async with (
        Holdfast(URL) as hf,
        hf.worker([graph], lease=LEASE_SECONDS, drain=DRAIN_SECONDS) as worker,
    ):
        if "order" in event:
            number = event["order"]["number"]
            await hf.start(graph, Order(number, event["order"]["cents"]), id=number)
        if "approve" in event:
            await hf.run(event["approve"]).signal("approved", True, signal_id="approval")
        clock = asyncio.get_running_loop().time
        end, idle_since = clock() + seconds, clock()
        while clock() < min(end, idle_since + IDLE_SECONDS):
            await asyncio.sleep(0.1)
            if worker.running:
                idle_since = clock()
    # Nothing is left running: Lambda freezes the process between two invocations.
    return dict(worker.counts)
