"""What runs cost, in write units with all indexes counted, to the unit.

A row that is made costs 3: itself, its entry in the due index, its line in the list. One that is
claimed costs 3: itself, and the entry of the due index that is deleted and put. One that pauses or
is nudged costs 4, since its line in the list shows another status besides. One that ends costs 3:
itself, the entry that is deleted, the line. A record costs 1 for each KB, and so does a signal.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from holdfast import Graph, Holdfast, signal
from holdfast.storage import Units
from tests.engine.support import (
    RUN_PURPOSES,
    Gate,
    House,
    calls_of,
    chain,
    incompressible,
    kill,
    run_units,
    units_of,
)

TEXT = (
    "the warranty of this compressor covers parts and labour for twenty-four months from the date "
    "of delivery provided that the unit was installed by a certified technician and that the "
    "maintenance intervals given in the manual were kept; wear parts such as seals and filters "
    "are excluded"
)


WORDS = TEXT.split()


def ordinary(number: int) -> dict[str, Any]:
    """Return 1 KB of what a pipeline writes: JSON text with the names and words of its trade."""
    clauses: list[dict[str, Any]] = []
    while len(json.dumps({f"step{number}": clauses})) < 1024:
        start = (number * 7 + len(clauses) * 11) % len(WORDS)
        clauses.append(
            {
                "clause": f"{number}.{len(clauses)}",
                "text": " ".join((WORDS * 2)[start : start + 9]),
                "risk": ("low", "medium", "high")[(number + len(clauses)) % 3],
                "page": number * 3 + len(clauses),
            }
        )
    return {f"step{number}": clauses}


def ordinary_state() -> dict[str, Any]:
    return {name: value for number in range(10) for name, value in ordinary(number).items()}


def noise(number: int) -> dict[str, Any]:
    """Return 1 KB of text that nothing makes smaller."""
    return {f"step{number}": base64.b85encode(incompressible(number, 820)).decode()}


async def review(state: Any, ctx: Any) -> Any:
    return {**ordinary(4), "approved": await ctx.wait(signal("decision"))}


TEN = chain("ten", 10, ordinary)
TEN_OF_NOISE = chain("noise", 10, noise)
TEN_WITH_A_PAUSE = chain("paused", 10, ordinary, node4=review)
INPUT = {"uri": "s3://scans/2026/11/doc-42.pdf"}


def test_the_deltas_are_those_of_the_promise() -> None:
    for number in range(10):
        assert 1024 <= len(json.dumps(ordinary(number))) <= 1200
        assert 1024 <= len(json.dumps(noise(number))) <= 1200


async def test_ten_nodes_started_and_finished_by_one_worker_cost_16_units(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, TEN) as worker:
        hf.meter.reset()
        run = await hf.start(TEN, INPUT, id="doc-42")
        await either.quiet(worker)
    # made 3, ten records 10, ended 3
    assert run_units(hf) == 16
    assert run_units(hf) <= 18
    assert calls_of(hf, *RUN_PURPOSES) == {("head", "write"): 2, ("journal", "write"): 10}
    assert await run.result(timeout=60) == INPUT | ordinary_state()


async def test_ten_nodes_whose_deltas_do_not_compress_cost_26_units(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, TEN_OF_NOISE) as worker:
        hf.meter.reset()
        run = await hf.start(TEN_OF_NOISE, INPUT, id="doc-42")
        await either.quiet(worker)
    # made 3, ten records of 2 KB begun 20, ended 3
    assert run_units(hf) == 26
    assert run_units(hf) <= 28
    assert (await run.get()).status == "finished"


async def test_a_run_started_by_a_client_and_claimed_costs_19_units(either: House) -> None:
    client, server = either.open(), either.open()
    run = await client.start(TEN, INPUT, id="doc-42")
    async with either.worker(server, TEN) as worker:
        await either.quiet(worker)
    # made 3, claimed 3, ten records 10, ended 3
    assert run_units(client, server) == 19
    assert run_units(client, server) <= 22
    assert (await run.get()).status == "finished"


async def test_a_run_with_a_human_pause_costs_25_units(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, TEN_WITH_A_PAUSE) as worker:
        hf.meter.reset()
        run = await hf.start(TEN_WITH_A_PAUSE, INPUT, id="doc-42")
        await either.quiet(worker)
        assert (await run.get()).reason == "signal"
        await run.signal("decision", True)
        assert (await run.result(timeout=60))["approved"] is True
    # made 3, paused 4, the signal 1, nudged into our own worker 4, ten records 10, ended 3: that
    # the signal was taken stands in its node's record
    assert run_units(hf) == 25
    assert run_units(hf) <= 34


async def test_a_run_of_a_client_with_a_human_pause_costs_31_units(either: House) -> None:
    client, server = either.open(), either.open()
    run = await client.start(TEN_WITH_A_PAUSE, INPUT, id="doc-42")
    async with either.worker(server, TEN_WITH_A_PAUSE) as worker:
        await either.quiet(worker)
        await run.signal("decision", True)
        await either.move(1, worker)
    # the same as above; besides claimed 3, both at first and after the signal
    assert run_units(client, server) == 31
    assert run_units(client, server) <= 34
    assert (await run.get()).status == "finished"


async def test_to_resume_costs_the_claim_and_one_query(either: House) -> None:
    client, server = either.open(), either.open()
    run = await client.start(TEN_WITH_A_PAUSE, INPUT, id="doc-42")
    async with either.worker(server, TEN_WITH_A_PAUSE) as worker:
        await either.quiet(worker)
        server.meter.reset()
        await run.signal("decision", True)
        await either.move(1, worker)
    assert calls_of(server, *RUN_PURPOSES) == {
        ("head", "write"): 2,  # the claim, and at last the end
        ("journal", "query"): 1,  # which brings the signal too
        ("journal", "write"): 6,  # a node each, the first with the signal that it took
    }
    assert (await run.get()).status == "finished"


async def test_a_takeover_from_a_dead_worker_costs_seven_units_more(either: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()
        return ordinary(4)

    graph = chain("taken", 10, ordinary, node4=blocked)
    first, second = either.open(), either.open()
    lost = first.worker([graph])
    await lost.start()
    await first.start(graph, INPUT, id="doc-42")
    await gate.waited_at()
    kill(lost)
    gate.open()
    either.clock.advance(61)
    async with second.worker([graph]) as worker:
        await either.quiet(worker)
        assert worker.counts["taken over"] == 1
    # as above 16; besides made due again 3, claimed 3, the fence 1
    assert run_units(first, second) == 16 + 7
    assert (await second.run("doc-42").get()).status == "finished"


async def test_a_run_that_waits_costs_nothing_while_it_waits(either: House) -> None:
    hf = either.open()
    async with hf.worker([TEN_WITH_A_PAUSE]) as worker:
        run = await hf.start(TEN_WITH_A_PAUSE, INPUT, id="doc-42")
        await either.quiet(worker)
        assert (await run.get()).status == "waiting"
        hf.meter.reset()
        for _ in range(360):
            await either.move(10, worker)
    assert calls_of(hf, *RUN_PURPOSES) == {}
    assert units_of(hf, "due").writes == 0
    # One beat every two moves of ten seconds, since it is due after 15, and the farewell.
    assert calls_of(hf, "worker") == {("worker", "write"): 180 + 1}


async def test_a_thousand_claimed_runs_cost_one_write_a_heartbeat(house: House) -> None:
    gate = Gate()
    graph = Graph("busy", dict)

    @graph.node
    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    hf = house.open()
    # One tenant gets seven eighths of the slots.
    async with hf.worker([graph], concurrency=1_200) as worker:
        runs = await asyncio.gather(*(hf.start(graph, {"n": n}) for n in range(1_000)))
        await gate.waited_at(1_000)
        await house.clock.asleep(3)
        hf.meter.reset()
        for beat in range(1, 9):
            house.clock.advance(15)
            await house.clock.asleep(3)
            # the row 1, and its entry among the leases that moves 2
            assert calls_of(hf, "worker") == {("worker", "write"): beat}
            assert units_of(hf, "worker").writes == 3 * beat
        assert calls_of(hf, *RUN_PURPOSES) == {}
        gate.open()
        await asyncio.gather(*(run.result(timeout=60) for run in runs))
        assert worker.counts["finished"] == 1_000


# --- sessions -------------------------------------------------------------------------------------
# On SQLite alone: DynamoDB Local does not price transactions as AWS does.


async def test_a_run_of_an_idle_session_costs_six_units_more(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, TEN) as worker:
        for id in ("first", "second"):
            hf.meter.reset()
            await hf.start(TEN, INPUT, id=id, session="chat-7")
            await house.quiet(worker)
            # as above 16; besides the row once more, since it is made in a transaction, 1; the
            # ticket and the last number, each twice, 4; at last the ticket, which is deleted, 1
            assert run_units(hf) + session_units(hf).writes == 16 + 6
            # the session queue before and after
            assert session_units(hf).reads == 2


async def test_a_run_of_a_busy_session_costs_four_units_more_than_an_idle_one(house: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("blocked", 1, lambda number: {}, node0=blocked)
    hf = house.open()
    async with house.worker(hf, graph, TEN) as worker:
        await hf.start(graph, id="front", session="chat-7")
        await gate.waited_at()
        hf.meter.reset()
        await hf.start(TEN, INPUT, id="next", session="chat-7")
        # the row 4, the ticket 2, the last number 2
        assert run_units(hf) + session_units(hf).writes == 8
        gate.open()
        await house.quiet(worker)
    # the front: its node 1, its ticket 1, its row 3; the next one: woken into our own worker 4,
    # ten records 10, its ticket 1, its row 3
    assert run_units(hf) + session_units(hf).writes == 8 + 5 + 18


async def test_a_queued_run_that_asks_again_costs_six_units(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, TEN_WITH_A_PAUSE, TEN) as worker:
        await hf.start(TEN_WITH_A_PAUSE, INPUT, id="front", session="chat-7")
        await house.quiet(worker)
        await hf.start(TEN, INPUT, id="next", session="chat-7")
        hf.meter.reset()
        await house.move(60, worker)
        assert worker.counts["claimed"] == 1
    # claimed 3, and due at another time 3
    assert run_units(hf) + session_units(hf).writes == 6
    # what is written of it, the session queue, and the front's row
    assert units_of(hf, "session", "head", "journal").reads == 3


async def test_to_promote_costs_ten_units(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, TEN_WITH_A_PAUSE) as worker:
        await hf.start(TEN_WITH_A_PAUSE, INPUT, id="front", session="chat-7")
        await house.quiet(worker)
    hf.meter.reset()
    await hf.start(TEN, INPUT, id="next", session="chat-7", on_busy="promote")
    # the pointer 3, the signal 2, the front's row 5
    assert run_units(hf) + session_units(hf).writes == 10


def session_units(hf: Holdfast) -> Units:
    return units_of(hf, "session")
