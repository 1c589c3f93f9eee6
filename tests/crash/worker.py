"""A worker as a process: ``python -m tests.crash.worker URL GRAPH OPTIONS``, options as JSON.

It says ``ready`` once it claims runs, works until SIGTERM, and then says what it did, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from holdfast import Holdfast
from holdfast.clock import SystemClock
from tests.crash import flows

_SEEN_SECONDS_MAX = 0.5


class StoppedClock(SystemClock):
    """Does not notice that the process was stopped, as on a machine that was put to sleep.

    A worker asks it many times a second; what is longer than that was no time for it.
    """

    def __init__(self) -> None:
        self._seen = 0.0
        self._last = time.monotonic()

    def monotonic(self) -> float:
        now = time.monotonic()
        self._seen += min(now - self._last, _SEEN_SECONDS_MAX)
        self._last = now
        return self._seen


async def main(url: str, graph: str, *, stopped_clock: bool = False, **options: Any) -> None:
    clock = StoppedClock() if stopped_clock else SystemClock()
    async with Holdfast(url, clock=clock) as hf, hf.worker([getattr(flows, graph)], **options) as w:
        print("ready", flush=True)
        await w.serve()
        print(json.dumps(w.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3])))
