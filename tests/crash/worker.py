"""A worker as a process: ``python -m tests.crash.worker URL GRAPHS OPTIONS``, options as JSON.

Graphs are names in `flows`, with commas between them.

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

_STEP_SECONDS = 0.02
_SEEN_SECONDS_MAX = 0.05


class StoppedClock(SystemClock):
    """Does not notice that the process was stopped, as on a machine that was put to sleep.

    It is asked many times a second; what lies longer between two questions was no time for it.
    """

    def __init__(self) -> None:
        self._seen = 0.0
        self._last = time.monotonic()

    def monotonic(self) -> float:
        now = time.monotonic()
        self._seen += min(now - self._last, _SEEN_SECONDS_MAX)
        self._last = now
        return self._seen

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while (left := until - self.monotonic()) > 0:
            await super().sleep(min(left, _STEP_SECONDS))


async def main(url: str, graphs: str, *, stopped_clock: bool = False, **options: Any) -> None:
    clock = StoppedClock() if stopped_clock else SystemClock()
    served = [getattr(flows, name) for name in graphs.split(",")]
    async with (
        Holdfast(url, clock=clock, models=flows.MODELS) as hf,
        hf.worker(served, **options) as w,
    ):
        print("ready", flush=True)
        await w.serve()
        print(json.dumps(w.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3])))
