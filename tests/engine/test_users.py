"""For whom a run is: its user is part of what its id stands for, and is kept as a hash."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import re
import uuid
from hashlib import sha256
from typing import Any, TypedDict

import pytest

from holdfast import Context, Graph, Holdfast, signal
from holdfast.clock import SystemIds
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import AlreadyExists
from holdfast.records.keys import SETTINGS, RunKey, SessionQueueKey
from holdfast.records.settings import settings_of
from holdfast.storage import Put, Update
from tests.engine.support import Gate, House, chain, incompressible, store_of

ANN, BOB = "ann@example.com", "bob"
GRAPH = chain("warranty", 1, lambda number: {"secret": "of the user"})
USERS = [(ANN, BOB), (ANN, None), (None, ANN)]
# What earlier releases kept: settings with this key, and these hashes, the same in all tenants.
OLD_SETTINGS: dict[str, Any] = {
    "PK": "SETTINGS",
    "SK": "SETTINGS",
    "shards": 8,
    "list_shards": 4,
    "user_key": bytes(range(32)),
}
OLD_HASHES = {ANN: "7fd723e36b1c9108cdb7920372eed445", BOB: "928931744d17c7eea7df47260a5a0fc7"}


class Ask(TypedDict, total=False):
    """What a run in memory is given, and says."""

    text: str
    key: str


# --- ids and keys ---------------------------------------------------------------------------------


async def test_ids_and_generations_of_runs_started_together_have_nothing_in_common(
    house: House,
) -> None:
    store = store_of(house.open())
    hf = Holdfast("", store=store, clock=house.clock, ids=SystemIds(house.clock))
    runs = await asyncio.gather(*(hf.start(GRAPH, {"number": n}) for n in range(20)))
    rows = [await hf.run(run.id).get() for run in runs]
    drawn = [
        uuid.UUID(text).int & ((1 << 62) - 1) for row in rows for text in (row.id, row.generation)
    ]
    apart = [abs(one - other) for one, other in itertools.combinations(drawn, 2)]
    assert min(apart) > 1 << 32


async def test_the_key_of_a_store_is_32_random_bytes_and_is_not_shown(house: House) -> None:
    hf = house.open()
    await hf.start(GRAPH, user=ANN)
    item = await store_of(hf).table.get(SETTINGS)
    assert item is not None
    key = item["user_key"]
    assert len(key) == 32
    shown = repr(settings_of(item))
    assert "shards=8" in shown
    for form in (repr(key), repr(key)[2:-1], key.hex(), repr(list(key))):
        assert form not in shown
    kernel = Kernel(store_of(hf), house.clock, SystemIds(house.clock), b"a secret user key")
    assert "a secret user key" not in repr(kernel) + repr(hf)


# --- the same id ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), USERS)
@pytest.mark.parametrize("size", [1, 2_000], ids=["small", "large"])
async def test_the_same_id_and_input_for_another_user_is_refused(
    either: House, first: str | None, second: str | None, size: int
) -> None:
    hf, other = either.open(), either.open()
    given = {"text": incompressible(7, size)}
    async with either.worker(hf, GRAPH):
        run = await hf.start(GRAPH, given, id="x", user=first)
        assert (await run.result())["secret"] == "of the user"
        for process in (hf, other):
            with pytest.raises(AlreadyExists, match="for another user"):
                await process.start(GRAPH, given, id="x", user=second)
            again = await process.start(GRAPH, given, id="x", user=first)
            assert (await again.result())["secret"] == "of the user"
            with pytest.raises(AlreadyExists):
                await process.start(GRAPH, {"text": "other"}, id="x", user=first)


@pytest.mark.parametrize(("first", "second"), USERS)
async def test_of_two_users_that_start_one_id_at_once_one_wins(
    either: House, first: str | None, second: str | None
) -> None:
    one, other = either.open(), either.open()
    outcomes = await asyncio.gather(
        one.start(GRAPH, id="x", user=first),
        other.start(GRAPH, id="x", user=second),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadyExists", "RunHandle"]


@pytest.mark.parametrize("on_busy", ["queue", "reject", "replace", "promote"])
async def test_in_a_session_another_user_is_refused_too(house: House, on_busy: Any) -> None:
    hf = house.open()
    asked: dict[str, Any] = {"id": "x", "session": "chat", "on_busy": on_busy}
    await hf.start(GRAPH, user=ANN, **asked)
    await hf.start(GRAPH, user=ANN, **asked)
    for user in (BOB, None):
        await hf.start(GRAPH, id=f"first of {user}", session="chat", user=user)
        with pytest.raises(AlreadyExists):
            await hf.start(GRAPH, user=user, **asked)
        assert len(await hf.session_queue("chat", user=user)) == 1
    with pytest.raises(AlreadyExists):
        await hf.start(GRAPH, id="x", user=ANN)


async def test_another_user_does_not_get_what_a_run_was_promoted_into(house: House) -> None:
    graph = Graph("asking", dict)

    @graph.node
    async def ask(state: Any, ctx: Context) -> Any:
        return {"said": await ctx.wait(signal("answer"))}

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        first = await hf.start(graph, id="first", session="chat", user=ANN)
        await house.quiet(worker)
        into = await hf.start(
            graph, {"text": "mine"}, id="x", session="chat", user=ANN, on_busy="promote"
        )
        assert (into.id, first.id) == ("first", "first")
        for user in (BOB, None):
            with pytest.raises(AlreadyExists):
                await hf.start(
                    graph, {"text": "mine"}, id="x", session="chat", user=user, on_busy="promote"
                )


# --- in memory ------------------------------------------------------------------------------------


def gated(gate: Gate, *, pauses: bool) -> Graph:
    graph = Graph("gated", Ask, durability="on_pause")

    @graph.node(pausable="yes")
    async def stand(state: Ask, ctx: Context) -> Ask:
        await gate.pass_through()
        if pauses:
            await ctx.wait(signal("answer"))
        return {"key": ctx.key}

    return graph


@pytest.mark.parametrize(("first", "second"), USERS)
async def test_another_user_does_not_join_a_run_in_memory(
    house: House, first: str | None, second: str | None
) -> None:
    gate, hf = Gate(), house.open()
    graph = gated(gate, pauses=True)
    async with house.worker(hf, graph):
        starting = asyncio.ensure_future(hf.start(graph, {"text": "a"}, id="x", user=first))
        await gate.waited_at()
        joining = asyncio.ensure_future(hf.start(graph, {"text": "a"}, id="x", user=first))
        with pytest.raises(AlreadyExists, match="for another user"):
            await hf.start(graph, {"text": "a"}, id="x", user=second)
        gate.open()
        assert {(await starting).id, (await joining).id} == {"x"}
        with pytest.raises(AlreadyExists):  # it is written down now
            await hf.start(graph, {"text": "a"}, id="x", user=second)


async def test_a_run_in_memory_whose_id_another_user_takes_is_refused(house: House) -> None:
    gate, hf, other = Gate(), house.open(), house.open()
    graph = gated(gate, pauses=True)
    async with house.worker(hf, graph):
        starting = asyncio.ensure_future(hf.start(graph, {"text": "a"}, id="x", user=ANN))
        await gate.waited_at()
        await other.start(graph, {"text": "a"}, id="x", user=BOB)
        gate.open()
        with pytest.raises(AlreadyExists, match="for another user"):
            await starting


async def test_two_users_of_one_id_in_memory_have_other_keys(house: House) -> None:
    """A tool answers under a key what it answered before: nobody gets another user's answer."""
    gate, hf = Gate(), house.open()
    gate.open()
    graph = gated(gate, pauses=False)
    keys: dict[str | None, set[str]] = {}
    async with house.worker(hf, graph):
        for user in (ANN, BOB, None, ANN, BOB, None):
            run = await hf.start(graph, {"text": "a"}, id="x", user=user)
            keys.setdefault(user, set()).add((await run.result())["key"])
    assert [len(found) for found in keys.values()] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3


# --- the hash -------------------------------------------------------------------------------------


async def test_a_users_hash_is_another_one_in_each_tenant(house: House) -> None:
    hf = house.open()
    shown: dict[tuple[str, str], str | None] = {}
    for tenant, user in itertools.product(("a", "b"), (ANN, BOB)):
        for number in range(2):
            run = await hf.start(GRAPH, id=f"{user}-{number}", tenant=tenant, user=user)
            row = await run.get()
            assert shown.setdefault((tenant, user), row.user) == row.user
    assert len(set(shown.values())) == 4
    for kept in shown.values():
        assert kept is not None
        assert re.fullmatch("t[0-9a-f]{31}", kept)
        assert not any(old in kept for old in OLD_HASHES.values())


@pytest.mark.parametrize("made_by", ["this release", "an earlier one"])
async def test_a_session_has_one_queue_whichever_release_made_the_store(
    either: House, made_by: str
) -> None:
    """While processes of both run, a run stands in the queue that those of the earlier one see."""
    hf, table = either.open(), store_of(either.open()).table
    if made_by == "an earlier one":
        await table.write(Put(OLD_SETTINGS))
    await hf.start(GRAPH)
    settings = await table.get(SETTINGS)
    assert settings is not None
    old = hmac.new(settings["user_key"], ANN.encode(), sha256).hexdigest()[:32]
    assert old == OLD_HASHES[ANN] or made_by == "this release"
    for tenant in ("a", "b"):
        queued = await hf.start(GRAPH, id="queued", session="chat", user=ANN, tenant=tenant)
        tickets = [item async for item in table.query_all(f"LANE#{tenant}#{old}#chat")]
        assert [item.get("run") for item in tickets] == [None, "queued"]
        assert [entry.id for entry in await hf.session_queue("chat", user=ANN, tenant=tenant)] == [
            "queued"
        ]
        # What callers see is bound to the tenant nevertheless.
        free = await hf.start(GRAPH, id="free", user=ANN, tenant=tenant)
        row = await table.get(RunKey(tenant, "free").head)
        assert row is not None
        assert row["user"] == (await free.get()).user == (await queued.get()).user
    assert (await hf.run("free", tenant="a").get()).user != (
        await hf.run("free", tenant="b").get()
    ).user


async def test_a_row_of_an_earlier_release_belongs_to_its_user(house: House) -> None:
    hf, table = house.open(), store_of(house.open()).table
    await table.write(Put(OLD_SETTINGS))
    await hf.start(GRAPH, id="new", user=ANN)
    await hf.start(GRAPH, id="old", user=ANN)
    await table.write(
        Update(key=RunKey("default", "old").head, set={"user": OLD_HASHES[ANN]}, token="t")
    )
    shown = await hf.run("old").get()
    assert shown.user == (await hf.run("new").get()).user
    await hf.start(GRAPH, id="old", user=ANN)
    for user in (BOB, None):
        with pytest.raises(AlreadyExists):
            await hf.start(GRAPH, id="old", user=user)


async def test_a_session_of_an_earlier_release_goes_on_in_its_order(house: House) -> None:
    hf, table = house.open(), store_of(house.open()).table
    await table.write(Put(OLD_SETTINGS))
    asking = Graph("asking", dict)

    @asking.node
    async def ask(state: Any, ctx: Context) -> None:
        await ctx.wait(signal("go"))

    async with house.worker(hf, asking) as worker:
        for id in ("one", "two"):
            await hf.start(asking, id=id, session="chat", user=ANN)
        await house.quiet(worker)
        assert [(await hf.run(id).get()).reason for id in ("one", "two")] == ["signal", "queued"]
        await hf.run("one").signal("go")
        await house.quiet(worker)
        assert [(await hf.run(id).get()).status for id in ("one", "two")] == ["finished", "waiting"]
        await hf.run("two").signal("go")
        await house.quiet(worker)
    left = SessionQueueKey("default", OLD_HASHES[ANN], "chat")
    assert [item["SK"] async for item in table.query_all(left.pk)] == ["LAST"]
    assert await hf.session_queue("chat", user=ANN) == []


async def test_a_child_has_the_user_of_its_parent(house: House) -> None:
    parent = Graph("parent", dict)

    @parent.node
    async def raise_child(state: Any, ctx: Context) -> None:
        await ctx.run(GRAPH, {}, id="child")

    hf = house.open()
    async with house.worker(hf, parent, GRAPH):
        await (await hf.start(parent, id="parent", user=ANN)).result()
        assert (await hf.run("child").get()).user == (await hf.run("parent").get()).user
        await hf.start(GRAPH, id="child", user=ANN)
        with pytest.raises(AlreadyExists):
            await hf.start(GRAPH, id="child", user=BOB)
