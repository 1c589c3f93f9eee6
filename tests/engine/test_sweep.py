"""The sweep: blobs that nothing names go, and those that something names stay, whatever happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, SweepProgress, days, hours, signal
from holdfast.engine.runs import starting
from holdfast.errors import EndpointUnreachable, InvalidRequest, StoreUnavailable, StoreUnusable
from holdfast.records.blob_keys import RunBlobs, blob_prefix, run_blobs_of
from holdfast.records.keys import RunKey
from holdfast.storage import Delete, Update
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    House,
    StepClock,
    blob_keys,
    chain,
    incompressible,
    item_of_head,
    store_of,
    store_without_blobs,
    tenant_key,
    units_of,
)

DAY = 24 * 3600


async def waits(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("never"))


GRAPH = chain("g", 3, lambda n: {"blob": incompressible(n, 20_000)}, node2=waits)
BLOBS_A_RUN = 3
"""The input, and two nodes."""


async def last(steps: AsyncIterator[SweepProgress]) -> SweepProgress:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [step async for step in steps][-1]


async def started(hf: Holdfast, house: House, *ids: str, **options: Any) -> None:
    async with house.worker(hf, GRAPH) as worker:
        for id in ids:
            await hf.start(GRAPH, {"input": incompressible(9, 20_000)}, id=id, **options)
        await house.quiet(worker)


async def without_row(hf: Holdfast, id: str) -> None:
    """Delete a row as its ttl does."""
    await store_of(hf).table.write(Delete(tenant_key(id).head))


async def prefix_of(hf: Holdfast, id: str) -> str:
    head = await item_of_head(hf, id)
    return blob_prefix(head["kept"], tenant_key(id), head["generation"])


# --- what goes, and what stays --------------------------------------------------------------------


async def test_the_blobs_of_a_run_whose_row_is_gone_go(either: House) -> None:
    hf = either.open()
    await started(hf, either, "gone", "here")
    await without_row(hf, "gone")
    here = await prefix_of(hf, "here")
    either.clock.advance(3 * DAY)
    counted = await last(hf.sweep_blobs(dry_run=True))
    assert counted == SweepProgress(blobs=2 * BLOBS_A_RUN, kept=1, freed=1, deleted=BLOBS_A_RUN)
    assert len(await blob_keys(hf)) == 2 * BLOBS_A_RUN
    assert await last(hf.sweep_blobs()) == counted
    left = await blob_keys(hf)
    assert len(left) == BLOBS_A_RUN
    assert all(key.startswith(here) for key in left)
    assert (await last(hf.sweep_blobs())).deleted == 0
    assert [entry.kind for entry in (await hf.run("here").history()).entries] == ["node", "node"]


async def test_a_row_that_is_over_or_freed_or_of_another_life_keeps_nothing(
    house: House, hf: Holdfast
) -> None:
    await started(hf, house, "over", "freed", "again", "kept", expires=days(30))
    table = store_of(hf).table
    now = house.clock.now_ms() // 1000
    for id, change in {
        "over": {"ttl": now + 3 * DAY - 1},
        "freed": {"freed": True},
        "again": {"generation": "another"},
        "kept": {"ttl": now + 3 * DAY},
    }.items():
        await table.write(Update(key=tenant_key(id).head, set=change))
    house.clock.advance(3 * DAY)
    progress = await last(hf.sweep_blobs())
    assert (progress.freed, progress.kept) == (3, 1)
    assert {run_blobs_of(key).key.id for key in await blob_keys(hf)} == {"kept"}  # type: ignore[union-attr]


@pytest.mark.parametrize(("age", "verdict"), [(2 * DAY, "young"), (2 * DAY + 0.001, "freed")])
async def test_what_is_young_stays(house: House, hf: Holdfast, age: float, verdict: str) -> None:
    await started(hf, house, "gone")
    made_ms = run_blobs_of((await blob_keys(hf))[0]).made_ms  # type: ignore[union-attr]
    await without_row(hf, "gone")
    house.clock.advance(age - (house.clock.now_ms() - made_ms) / 1000)
    progress = await last(hf.sweep_blobs(older_than=days(2)))
    assert getattr(progress, verdict) == 1
    assert bool(await blob_keys(hf)) == (verdict == "young")


async def test_what_is_not_a_runs_is_left_alone(house: House, hf: Holdfast) -> None:
    generation = hf._kernel.ids.new()
    foreign = [
        "documents/a.pdf",
        "keep-10d/default/doc",
        f"keep-10d/default/doc/{generation}",
        f"keep-10d/default/doc/{generation}x/input",
        f"keep-10d/default/doc/{generation.replace('-7', '-4', 1)}/input",
        f"other/default/doc/{generation}/input",
        f"keep-10d/de#fault/doc/{generation}/input",
    ]
    assert generation.count("-7") == 1
    for key in foreign:
        await store_of(hf).blobs.put(b"x", key=key)
    house.clock.advance(100 * DAY)
    progress = await last(hf.sweep_blobs())
    assert progress == SweepProgress(blobs=len(foreign), foreign=len(foreign))
    assert await blob_keys(hf) == sorted(foreign)


def test_whose_a_blob_is_can_be_read_from_its_key() -> None:
    generation = "0199a1b2-c3d4-7abc-8def-001122334455"
    run = RunKey("acme", "doc 42.é")
    key = blob_prefix("keep-4000d", run, generation) + "00000001-1"
    owner = run_blobs_of(key)
    assert owner == RunBlobs("keep-4000d", run, generation)
    assert key.startswith(owner.prefix)
    assert owner.made_ms == 0x0199A1B2C3D4


async def test_runs_are_counted_once_however_many_pages_their_blobs_fill(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(hf, house, "a", "b", "c", "d")
    for id in ("a", "c"):
        await without_row(hf, id)
    house.clock.advance(3 * DAY)
    blobs = store_of(hf).blobs
    whole = type(blobs).list

    async def two(self: Any, prefix: str = "", *, after: str | None = None) -> Any:
        return await whole(self, prefix, after=after, limit=2)

    monkeypatch.setattr(type(blobs), "list", two)
    counted = await last(hf.sweep_blobs(dry_run=True))
    assert counted == SweepProgress(blobs=12, kept=2, freed=2, deleted=6)
    steps = [step async for step in hf.sweep_blobs()]
    assert len(steps) > 3
    assert (steps[-1].kept, steps[-1].freed, steps[-1].deleted) == (2, 2, 6)
    monkeypatch.undo()
    assert len(await blob_keys(hf)) == 6


# --- races and crashes ----------------------------------------------------------------------------


async def test_a_start_that_is_under_way_keeps_its_input(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blob stands, and the row does not yet: nothing names the blob, and it must stay."""
    hf, sweeper = house.open(), house.open()
    between, go_on = asyncio.Event(), asyncio.Event()
    settle = hf._kernel.resolve_write

    async def slow(table: Any, write: Any, **options: Any) -> Any:
        if table is hf._kernel.heads:
            between.set()
            await go_on.wait()
        return await settle(table, write, **options)

    monkeypatch.setattr(hf._kernel, "resolve_write", slow)
    starting_run = asyncio.create_task(
        hf.start(GRAPH, {"input": incompressible(9, 20_000)}, id="doc-42")
    )
    await between.wait()
    house.clock.advance(DAY)
    progress = await last(sweeper.sweep_blobs(older_than=days(1)))
    assert (progress.young, progress.freed) == (1, 0)
    go_on.set()
    await starting_run
    async with house.worker(sweeper, GRAPH) as worker:
        await house.quiet(worker)
    assert (await sweeper.run("doc-42").get()).status == "waiting"


async def test_the_input_of_the_loser_of_a_race_goes_and_the_winners_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_INPUT_BYTES_MAX", 0)
    first, second = house.open(), house.open()
    blob = incompressible(9, 20_000)
    get = second._kernel.heads.get

    async def too_early(*arguments: Any, **options: Any) -> Any:
        """Answer as if there were no run yet; meanwhile the other start wins."""
        monkeypatch.setattr(second._kernel.heads, "get", get)
        await first.start(GRAPH, {"input": blob}, id="doc-42")

    monkeypatch.setattr(second._kernel.heads, "get", too_early)
    await second.start(GRAPH, {"input": blob}, id="doc-42")
    assert len(await blob_keys(first)) == 2
    house.clock.advance(3 * DAY)
    progress = await last(first.sweep_blobs())
    assert (progress.kept, progress.freed) == (1, 1)
    (left,) = await blob_keys(first)
    assert left.startswith(await prefix_of(first, "doc-42"))


async def test_cut_short_in_the_middle_it_is_finished_by_the_next(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"doc-{number}" for number in range(6)]
    await started(hf, house, *ids, "kept")
    for id in ids:
        await without_row(hf, id)
    house.clock.advance(3 * DAY)
    blobs = type(store_of(hf).blobs)
    whole = blobs.delete_all
    deleted = 0

    async def dies(self: Any, prefix: str) -> int:
        """Delete one blob of the third run, and never come back."""
        nonlocal deleted
        deleted += 1
        if deleted < 3:
            return await whole(self, prefix)
        page = await self.list(prefix)
        await self.delete(page.entries[0].key)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr("holdfast.engine.client.sweep._CONCURRENT_MAX", 1)
    monkeypatch.setattr(blobs, "delete_all", dies)
    sweeping = asyncio.create_task(last(hf.sweep_blobs()))
    while len(await blob_keys(hf)) > 5 * BLOBS_A_RUN - 1:
        assert not sweeping.done()
    sweeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    monkeypatch.undo()
    progress = await last(hf.sweep_blobs())
    assert (progress.freed, progress.deleted) == (4, 4 * BLOBS_A_RUN - 1)
    assert len(await blob_keys(hf)) == BLOBS_A_RUN


async def test_a_store_that_stays_away_is_raised(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(hf, house, "gone")
    await without_row(hf, "gone")
    house.clock.advance(3 * DAY)

    async def unreachable(*arguments: Any) -> int:
        raise EndpointUnreachable

    with monkeypatch.context() as patch:
        patch.setattr(type(store_of(hf).blobs), "delete_all", unreachable)
        sweeping = asyncio.create_task(last(hf.sweep_blobs()))
        while not sweeping.done():
            await house.clock.sleep(0)
            house.clock.advance(1)
        assert isinstance(sweeping.exception(), StoreUnavailable)
    assert (await last(hf.sweep_blobs())).deleted == BLOBS_A_RUN


# --- leftovers, costs, what is refused ------------------------------------------------------------


async def test_what_crashes_left_in_a_folder_is_removed(
    house: House, hf: Holdfast, tmp_path: Path
) -> None:
    await started(hf, house, "doc-42")
    root = tmp_path / "runs.db.blobs"
    (root / "keep-10d~" / "default~" / "dead~" / "generation~").mkdir(parents=True)
    (root / ".writing" / "partial").write_bytes(b"half")
    now = house.clock.now_ms() / 1000
    for path in root.rglob("*"):
        os.utime(path, (now, now))
    assert (await last(hf.sweep_blobs())).leftovers == 0
    house.clock.advance(3 * DAY)
    assert (await last(hf.sweep_blobs(dry_run=True))).leftovers == 0
    assert (await last(hf.sweep_blobs())).leftovers == 3
    assert not (root / "keep-10d~" / "default~" / "dead~").exists()
    assert len(await blob_keys(hf)) == BLOBS_A_RUN


async def test_a_run_costs_one_read_of_its_row(house: House, hf: Holdfast) -> None:
    await started(hf, house, *(f"doc-{number}" for number in range(10)))
    await without_row(hf, "doc-3")
    house.clock.advance(3 * DAY)
    hf.meter.reset()
    await last(hf.sweep_blobs())
    units = units_of(hf, "sweep")
    assert (units.reads, units.writes) == (10, 0)
    # One list of all blobs, and one of the run that is freed.
    assert units.blob_puts == 2


@pytest.mark.parametrize("age", [hours(23), 0, DAY - 1, -1, "day", None, True], ids=repr)
async def test_less_than_a_day_is_refused(hf: Holdfast, age: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        hf.sweep_blobs(older_than=age)
    assert refused.value.field == "older_than"


async def test_a_store_without_blobs_says_so(clock: StepClock) -> None:
    async with Holdfast("", store=store_without_blobs(clock), clock=clock) as hf:
        with pytest.raises(StoreUnusable, match="no bucket"):
            await last(hf.sweep_blobs())
