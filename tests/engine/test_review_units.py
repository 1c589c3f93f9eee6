"""What a review costs: to ask, to decide, and to take the decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import Graph, Holdfast, hours
from holdfast.storage.prices import PRICES
from tests.engine.reviewers import Terms, reviewing, work
from tests.engine.support import House, calls_of, reached, units_of

GUIDE = Path(__file__).parents[2] / "docs/guides/reviews.md"
PURPOSES = ("review", "inbox", "list")


def spent(hf: Holdfast) -> tuple[float, float]:
    """Return the units that this process read and wrote for reviews and their decisions."""
    units = units_of(hf, *PURPOSES)
    return units.reads, units.writes


async def test_a_review_is_asked_decided_and_taken(either: House) -> None:
    graph = reviewing(
        show={"risk": "high"}, form=Terms, values=Terms(24), assignees=["ana"], expires=hours(1)
    )
    starter, asker, decider, taker = (either.open() for _ in range(4))
    await starter.start(graph, {}, id="r")
    async with either.worker(asker, graph) as worker:
        await either.quiet(worker)
    await reached(starter, "r", "waiting")
    (entry,) = (await starter.reviews.list(run="r")).reviews
    await decider.reviews.approve(entry.id, by="ana")
    async with either.worker(taker, graph) as worker:
        await either.quiet(worker)
    assert (await starter.run("r").result())["status"] == "approved"
    # What was shown: 1. The entry: 1, and 1 for each of the two indexes.
    assert spent(asker) == (0, 4)
    assert calls_of(asker, *PURPOSES) == {("review", "write"): 2}
    # The decision: 1. The trail: 1. The entry: 1, 2 to move it in one index, 1 to leave the other.
    assert spent(decider) == (2, 6)
    assert calls_of(decider, *PURPOSES) == {
        ("inbox", "get"): 1, ("inbox", "write"): 1, ("review", "query"): 1, ("review", "write"): 2,
    }  # fmt: skip
    # The worker looks whether the entry has followed.
    assert spent(taker) == (1, 0)
    assert calls_of(taker, *PURPOSES) == {("review", "get"): 1}
    reads, writes = map(sum, zip(*map(spent, (asker, decider, taker)), strict=True))
    dollars = reads * PRICES.read_units_million_usd + writes * PRICES.write_units_million_usd
    assert f"asked, decided and taken cost ${dollars + 1e-9:.2f}: " in GUIDE.read_text()


async def test_a_vote_is_one_write(either: House) -> None:
    graph = reviewing(quorum=2)
    starter, voter = either.open(), either.open()
    await starter.start(graph, {}, id="r")
    await work(either, graph)
    (entry,) = (await starter.reviews.list(run="r")).reviews
    await voter.reviews.approve(entry.id, by="ana")
    assert spent(voter) == (3, 1)


async def test_a_run_without_a_review_costs_nothing_for_it(either: House) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def go_on(state: Any, ctx: Any) -> Any:
        if state["risk"] == "high":
            await ctx.review("Approve?")
        return {}

    starter, worker = either.open(), either.open()
    run = await starter.start(graph, {"risk": "medium"}, id="r")
    async with either.worker(worker, graph) as working:
        await either.quiet(working)
    assert await run.result() == {"risk": "medium"}
    assert calls_of(worker, *PURPOSES) == {}


async def test_an_edit_or_a_reassignment_costs_one_unit_for_its_fence(either: House) -> None:
    graph = reviewing(form=Terms, values=Terms(24), assignees=["ana", "bob"])
    starter, decider = either.open(), either.open()
    await starter.start(graph, {}, id="r")
    await work(either, graph)
    (entry,) = (await starter.reviews.list(run="r")).reviews
    editor, assigner = either.open(), either.open()
    await editor.reviews.edit(entry.id, by="ana", values={"months": 12, "note": ""})
    # The trail: 1. The fence: 1. The entry: 1, and 1 for the index that shows its position.
    assert spent(editor) == (2, 4)
    assert calls_of(editor, *PURPOSES) == {
        ("inbox", "get"): 1, ("inbox", "write"): 1, ("review", "query"): 1, ("review", "write"): 2,
    }  # fmt: skip
    await assigner.reviews.reassign(entry.id, by="ana", to=["ana", "cleo"])
    assert calls_of(assigner, *PURPOSES) == calls_of(editor, *PURPOSES)
    assert units_of(assigner, "inbox").writes == 1
    # A fence costs the decision nothing.
    await decider.reviews.approve(entry.id, by="cleo")
    assert spent(decider) == (2, 6)
