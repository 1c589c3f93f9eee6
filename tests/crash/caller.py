"""A process that calls as often as a quota lets it: ``python -m tests.crash.caller URL PORT``.

It says ``ready``, calls until its input ends, and ends once its calls have. A call is a datagram
with its pid, and then takes a while.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

from holdfast.clock import SystemClock, SystemIds
from holdfast.engine.effects.quotas import PermitDelay, QuotaLimiter
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.quota import Quota
from holdfast.storage import open as open_store

LIMIT = 50
AT_ONCE = 40
QUOTA = Quota("callee", requests=LIMIT, per=1, concurrency=AT_ONCE)
TENANT = "acme"
LEASE_SECONDS = 2.0
CALLERS = 15
CALL_SECONDS = 0.2


async def main(url: str, port: int) -> None:
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as callee:
        callee.connect(("127.0.0.1", port))
        async with open_store(url) as store:
            desk = QuotaLimiter(Kernel(store, clock, SystemIds()), lease_seconds=LEASE_SECONDS)
            print("ready", flush=True)
            await asyncio.gather(*(calls(desk, clock, callee, stopped) for _ in range(CALLERS)))
            await desk.close()


async def calls(
    desk: QuotaLimiter, clock: SystemClock, callee: socket.socket, stopped: asyncio.Event
) -> None:
    told_ms: int | None = None
    while not stopped.is_set():
        answer = await desk.acquire(QUOTA, TENANT, retry_at_ms=told_ms)
        if isinstance(answer, PermitDelay):
            told_ms = answer.retry_at_ms
            with suppress(TimeoutError):
                seconds = max(told_ms - clock.now_ms(), 0) / 1000
                await asyncio.wait_for(stopped.wait(), seconds)
            continue
        told_ms = None
        async with answer:
            callee.send(str(os.getpid()).encode())
            await clock.sleep(CALL_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
