"""kill -9 of the process that works and delivers: the receiver is told every end all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.network.addresses import AllowList
from tests.crash.hooked import Order, orders
from tests.crash.processes import Process, line_of, running
from tests.network.receiver import Receiver, receiving

RUNS = 5


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running_receiver:
        yield running_receiver


@asynccontextmanager
async def hooked(url: str, allow: str) -> AsyncIterator[Process]:
    async with running("-m", "tests.crash.hooked", url, allow) as process:
        assert await line_of(process) == "ready"
        yield process


def ends(receiver: Receiver) -> set[str]:
    """Return the runs of whose end the receiver was told."""
    told = [json.loads(request.body) for request in receiver.requests]
    return {each["data"]["id"] for each in told if each["type"] == "run.finished"}


async def test_every_end_is_told_although_processes_are_killed(
    tmp_path: Path, receiver: Receiver
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url) as hf:
        hf.webhooks.allow = AllowList([receiver.host])
        await hf.webhooks.add(receiver.url, events=["run.finished"])
        names = {f"o-{number}" for number in range(RUNS)}
        for name in names:
            await hf.start(orders, Order(), id=name)
        receiver.hangs = True
        async with hooked(url, receiver.host) as process:
            for name in sorted(names):
                await hf.run(name).until("waiting")
                await hf.run(name).signal("payment", 1)
            # In the middle of a delivery, and right after the last end.
            await receiver.wait_for(1)
            for name in names:
                await hf.run(name).until("finished")
            process.kill()
            await process.wait()
        receiver.hangs = False
        before = [request.headers["webhook-id"] for request in receiver.requests]
        count = len(before)
        async with hooked(url, receiver.host):
            await receiver.wait_for(count + RUNS, seconds=60)
        assert ends(receiver) == names
        # What was under way is repeated under the same id.
        after = [request.headers["webhook-id"] for request in receiver.requests[count:]]
        assert set(before) <= set(after)


async def test_a_callback_survives_the_process_that_made_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url) as hf:
        await hf.start(orders, Order(), id="o-1")
        async with hooked(url, receiver.host) as process:
            address = await line_of(process)  # known before the run has paused
            process.kill()
            await process.wait()
        token = address.removeprefix("http://server/v1/callbacks/")
        assert not (await hf.callbacks.accept(token, 5)).repeated
        assert (await hf.callbacks.accept(token, 5)).repeated
        async with hooked(url, receiver.host):
            run = hf.run("o-1", graph=orders)
            await run.until("finished")
            assert (await run.result()).paid == 5
