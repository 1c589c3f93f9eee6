"""Shards: a tenant's runs stand in two of them, and their count grows while everything runs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, signal
from holdfast.engine.kernel import kernel as engine_kernel
from holdfast.errors import InvalidRequest, Throttled
from holdfast.records.keys import SETTINGS
from holdfast.storage import Update
from tests.engine.support import House, calls_of, chain, item_of_head, store_of, units_of

GRAPH = chain("g", 1, lambda number: {})


async def ask(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("go"))


ASKING = chain("asking", 1, lambda number: {}, node0=ask)


async def shards_of(hf: Holdfast) -> int:
    item = await store_of(hf).table.get(SETTINGS)
    assert item is not None
    return item["shards"]


async def used_shards(hf: Holdfast, prefix: str, count: int) -> set[int]:
    """Start so many runs, and return the shards in which they stand."""
    used: set[int] = set()
    for number in range(count):
        await hf.start(GRAPH, id=f"{prefix}-{number}")
        item = await item_of_head(hf, f"{prefix}-{number}")
        assert item["GSI1PK"] == f"DUE#g#{item.get('shard', 0):03d}"
        used.add(item.get("shard", 0))
    return used


async def test_a_tenants_runs_stand_in_two_shards_of_eight(hf: Holdfast) -> None:
    used = await used_shards(hf, "doc", 30)
    assert await shards_of(hf) == 8
    assert len(used) == 2


async def test_shards_grow_while_everything_runs(either: House) -> None:
    client, other, hf = (either.open() for _ in range(3))
    async with hf.worker([GRAPH], poll=0.2) as worker:
        await either.quiet(worker)
        await other.start(GRAPH, id="before")
        await client.grow_shards(64)
        assert await shards_of(client) == 64
        used = await used_shards(client, "new", 12)
        assert used - set(range(8)), "some are in shards of which the worker has not heard"
        # The other client still goes by the old count: its runs are found, too.
        assert await used_shards(other, "old", 12) <= set(range(8))
        await either.move(15, worker)  # a quarter of the lease
        await either.move(1, worker)
        for number in range(12):
            for prefix in ("new", "old"):
                assert (await client.run(f"{prefix}-{number}").get()).status == "finished"
        await either.move(15, worker)
        await either.move(15, worker)
        await either.move(15, worker)
        assert await used_shards(other, "later", 12) - set(range(8)), "a minute is over"


async def test_old_runs_stay_in_their_shard(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, ASKING) as worker:
        for number in range(8):
            await hf.start(ASKING, id=f"doc-{number}")
        await house.quiet(worker)
        before = [(await item_of_head(hf, f"doc-{number}")).get("shard", 0) for number in range(8)]
        await hf.grow_shards(256)
        for number in range(8):
            await hf.run(f"doc-{number}").signal("go")
        await house.quiet(worker)
        for number in range(8):
            item = await item_of_head(hf, f"doc-{number}")
            assert (item["status"], item.get("shard", 0)) == ("finished", before[number])


async def test_to_grow_is_one_write_and_to_repeat_it_none(either: House) -> None:
    hf, other = either.open(), either.open()
    await hf.start(GRAPH)
    await other.start(GRAPH)
    hf.meter.reset()
    await hf.grow_shards(16)
    assert calls_of(hf, "settings") == {("settings", "write"): 1}
    assert units_of(hf, "settings").writes == 1
    await hf.grow_shards(16)
    await other.grow_shards(16)  # which does not know of it yet
    assert calls_of(hf, "settings") == {("settings", "write"): 1}
    assert await shards_of(hf) == 16


@pytest.mark.parametrize("shards", [0, -1, 257, 16.0, True, "16", None])
async def test_a_count_that_makes_no_sense_is_refused_before_anything_is_written(
    hf: Holdfast, shards: Any
) -> None:
    with pytest.raises(InvalidRequest, match="from 1 to 256") as refused:
        await hf.grow_shards(shards)
    assert (refused.value.field, refused.value.limit) == ("shards", 256)
    assert hf.meter.report().calls == 0


async def test_shards_never_become_fewer(house: House) -> None:
    hf, other = house.open(), house.open()
    await other.start(GRAPH)
    await hf.grow_shards(32)
    for unaware in (hf, other):
        with pytest.raises(InvalidRequest, match="shards must be at least the current 32"):
            await unaware.grow_shards(16)
    assert await shards_of(hf) == 32


async def test_a_store_nobody_has_used_can_grow(hf: Holdfast) -> None:
    await hf.grow_shards(9)
    assert await shards_of(hf) == 9


async def test_a_worker_asks_for_the_count_four_times_a_lease(either: House) -> None:
    hf = either.open()
    async with hf.worker([GRAPH]) as worker:
        await either.quiet(worker)
        hf.meter.reset()
        for _ in range(60):
            await either.move(2, worker)
        # every 16 of 120 seconds, since it looks every two; half a unit each
        assert calls_of(hf, "settings") == {("settings", "get"): 7}
        assert units_of(hf, "settings").reads == 7 * 0.5


async def test_what_an_old_read_shows_does_not_undo_what_is_known(house: House) -> None:
    hf = house.open()
    await hf.grow_shards(16)
    old = Update(key=SETTINGS, set={"shards": 8})  # as an eventual read would still show it
    await store_of(hf).table.write(old)
    house.clock.advance(engine_kernel._SETTINGS_AGE_SECONDS_MAX)
    assert (await hf._kernel.get_settings()).shards == 16


async def test_a_store_that_does_not_answer_leaves_the_count_as_it_is_known(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open()
    await hf.start(GRAPH)

    async def busy(*arguments: Any, **options: Any) -> Any:
        raise Throttled

    monkeypatch.setattr(hf._kernel.settings_table, "get", busy)
    house.clock.advance(engine_kernel._SETTINGS_AGE_SECONDS_MAX)
    await hf.start(GRAPH, id="later")
    assert (await hf.run("later").get()).status == "ready"
