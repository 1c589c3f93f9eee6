"""Processes that share a quota, some of which are killed: never too many calls, no slot leaked."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.clock import SystemClock, SystemIds
from holdfast.engine.effects.quotas import Permit, QuotaLimiter
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.quota import Quota
from holdfast.records.quota import level_of, quota_item_key
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.crash.caller import AT_ONCE, LEASE_SECONDS, LIMIT, QUOTA, TENANT
from tests.crash.processes import ended, line_of, running, until

PROCESSES = 4
KILLED = 2
CALLS = 200
DEADLINE_SECONDS = 90
SO_TIMESTAMPNS = 35
"""Of Linux: the kernel notes when a datagram arrives, however late the callee gets to read it."""


class Call(NamedTuple):
    at_ns: int
    pid: int


class Callee:
    """What all of them call. It is timed by the kernel, so that its own stalls do not count."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self.port: int = receiver.getsockname()[1]
        self.calls: list[Call] = []

    def take(self) -> None:
        while True:
            try:
                data, notes, _, _ = self._receiver.recvmsg(64, 64)
            except BlockingIOError:
                return
            ((_, _, stamp),) = notes
            seconds, nanoseconds = struct.unpack("qq", stamp)
            self.calls.append(Call(seconds * 1_000_000_000 + nanoseconds, int(data)))

    def most_in_a_second(self) -> int:
        moments = sorted(call.at_ns for call in self.calls)
        most = first = 0
        for last, at_ns in enumerate(moments):
            while moments[first] <= at_ns - 1_000_000_000:
                first += 1
            most = max(most, last - first + 1)
        return most


@contextmanager
def called() -> Iterator[Callee]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        callee = Callee(receiver)
        loop = asyncio.get_running_loop()
        loop.add_reader(receiver, callee.take)
        try:
            yield callee
        finally:
            loop.remove_reader(receiver)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux times datagrams as they arrive")
async def test_a_quota_whose_users_are_killed(tmp_path: Path) -> None:
    """Between its last look at the clock and its call a process does nothing else.

    Should it stall just there, its call is late; the rate leaves room for several such calls.
    """
    url = f"sqlite:///{tmp_path}/quota.db"
    clock = SystemClock()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        open_store(url) as store,
        AsyncExitStack() as all_,
    ):
        callee = all_.enter_context(called())
        module = ("-m", "tests.crash.caller", url, str(callee.port))
        processes = [await all_.enter_async_context(running(*module)) for _ in range(PROCESSES)]
        for process in processes:
            assert await line_of(process) == "ready"
        victims, survivors = processes[:KILLED], processes[KILLED:]
        await until(lambda: len(callee.calls) >= CALLS // 2, *processes)
        for victim in victims:
            seen = len(callee.calls)
            # It has just begun a call, so it holds a slot.
            await until(lambda v=victim, s=seen: v.pid in pids(callee, s), *survivors)
            victim.kill()
        held = await slots(store, clock)
        assert held

        async def is_free() -> bool:
            """Return whether what was held then is free: by those who live, or by its lease."""
            return not held & await slots(store, clock)

        async def are_all_free() -> bool:
            return not await slots(store, clock)

        await until(is_free, *survivors)
        await until(lambda: len(callee.calls) >= CALLS, *survivors)
        for survivor in survivors:
            assert survivor.stdin is not None
            survivor.stdin.close()
        for survivor in survivors:
            assert (await ended(survivor))[0] == 0
        print(
            f"\n{len(callee.calls)} calls of {PROCESSES} processes, {KILLED} killed with up to "
            f"{len(held)} slots: at most {callee.most_in_a_second()} of {LIMIT} in a second"
        )
        # The last to leave may have handed a slot to a caller of a process that was killed: the
        # lease frees that one, too.
        await until(are_all_free)
        assert callee.most_in_a_second() <= LIMIT
        desk = QuotaLimiter(Kernel(store, clock, SystemIds()), lease_seconds=LEASE_SECONDS)
        unpaced = Quota(QUOTA.name, concurrency=AT_ONCE)
        for _ in range(AT_ONCE):
            assert isinstance(await desk.acquire(unpaced, TENANT, retry_at_ms=None), Permit)
        await desk.close()


def pids(callee: Callee, since: int) -> set[int]:
    return {call.pid for call in callee.calls[since:]}


async def slots(store: Store, clock: SystemClock) -> set[str]:
    """Return the slots that are held."""
    level = level_of(await store.table.get(quota_item_key(QUOTA, TENANT)))
    return {token for token, slot in level.permits.items() if slot.expires_ms > clock.now_ms()}
