"""A worker dies before or after any of its writes: the next run begins once, and in its turn.

No queued run asks by itself here: whoever comes after the dead must find everything that is owed.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.records import session_queue as queue_records
from tests.engine.staging import Side, played, staged
from tests.engine.support import House, kill, store_of

SESSION = "chat-7"
LEASE_SECONDS = 1_000
WRITES_MIN = 15


@pytest.fixture(autouse=True)
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no queued run ask by itself: it must be told."""
    monkeypatch.setattr(queue_records, "_RECHECK_MS_MIN", 10**12)
    monkeypatch.setattr(queue_records, "_RECHECK_MS_MAX", 10**12)


class Scene:
    """A session of three runs that end in different ways, and what they told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.graph = Graph("scene", dict)
        self.graph.node(name="speak")(self._speak)

    async def _speak(self, state: Any, ctx: Any) -> Any:
        self.told.append(ctx.run_id)
        if state["how"] == "failed":
            raise ValueError
        if state["how"] == "expired":
            await ctx.wait(signal("never"))

    async def start(self, hf: Holdfast) -> None:
        for id, how in (("a", "failed"), ("b", "expired"), ("c", "finished")):
            expires = 100 if how == "expired" else 1_000_000
            await hf.start(self.graph, {"how": how}, id=id, session=SESSION, expires=expires)


@pytest.mark.parametrize("side", ["before", "after"])
async def test_whenever_a_worker_dies_the_order_holds(house: House, side: Side) -> None:
    for number in itertools.count(1):
        scene = Scene()
        client = house.open(tenant=f"{side}-{number}")
        await scene.start(client)
        first, stage = staged(house)
        dying = first.worker([scene.graph], poll=0.2, lease=LEASE_SECONDS)
        stage.die_at(number, side, functools.partial(kill, dying))
        lived = await played(house, dying, (0, 101, 1))
        async with house.worker(house.open(), scene.graph) as worker:
            for seconds in (LEASE_SECONDS + 1, 1):
                await house.move(seconds, worker)
        await check(client, scene)
        if lived:
            assert number > WRITES_MIN  # it died at every one of its writes before
            stage.live_on()  # a write about the dead could be the one to die at
            await dying.stop()
            return


async def check(hf: Holdfast, scene: Scene) -> None:
    assert [(await hf.run(id).get()).status for id in "abc"] == ["failed", "expired", "finished"]
    assert [(await hf.run(id).get()).due_at for id in "abc"] == [None] * 3
    # A node that was cut short runs again, but never once the next run has begun.
    assert scene.told == sorted(scene.told)
    assert {"a", "c"} <= set(scene.told)  # the other one may have expired before its turn
    assert await hf.session_queue(SESSION) == []
    tenant = (await hf.run("a").get()).tenant
    partition = store_of(hf).table.query_all(f"LANE#{tenant}#-#{SESSION}")
    assert [item["SK"] async for item in partition] == ["LAST"]
