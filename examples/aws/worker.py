"""A worker for a container: it runs until SIGTERM, and shows that it is healthy."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from orders import graph

from holdfast import Holdfast, Worker

CONCURRENCY = 100
HEALTHY = Path(os.environ.get("HEALTHY_FILE", "/tmp/healthy"))


async def main() -> None:
    async with (
        Holdfast(os.environ["HOLDFAST_URL"]) as hf,
        hf.worker([graph], concurrency=CONCURRENCY, drain=60) as worker,
    ):
        reporting = asyncio.create_task(report(worker))
        await worker.serve()  # returns after SIGTERM and the drain
        reporting.cancel()


async def report(worker: Worker) -> None:
    """Touch a file while the worker can do its work; print a metric for CloudWatch."""
    while True:
        if worker.health.ok:
            await asyncio.to_thread(HEALTHY.touch)
        print(metric("SlotsUsed", 100 * worker.running / CONCURRENCY), flush=True)
        await asyncio.sleep(15)


def metric(name: str, percent: float) -> str:
    """Return a line of CloudWatch's embedded metric format."""
    directive = {
        "Namespace": "Holdfast",
        "Dimensions": [["graph"]],
        "Metrics": [{"Name": name, "Unit": "Percent"}],
    }
    stamped = {"Timestamp": round(time.time() * 1000), "CloudWatchMetrics": [directive]}
    return json.dumps({"_aws": stamped, "graph": graph.name, name: percent})


if __name__ == "__main__":
    asyncio.run(main())
