"""Reviews of a server: the verbs, types and errors of the library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import Client
from holdfast.client.responses import error_of
from holdfast.errors import (
    AlreadyVoted,
    Forbidden,
    InvalidRequest,
    NotAssigned,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
    ReviewNotFound,
    ServerUnavailable,
)
from holdfast.model.api_key import KeyRole
from holdfast.model.review import ReviewDecision
from holdfast.server import ServerApp, ServerOptions, asgi
from tests.client.wire import Wire
from tests.server.graphs import GRAPHS, Sale, Warranty, reviewed


@pytest.fixture
async def app(hf: Holdfast) -> AsyncIterator[ServerApp]:
    hf.callbacks.set_public_url("https://runs.example.com")
    app = asgi(hf, GRAPHS, options=ServerOptions(authentication=True, key_rate=None))
    async with app.lifespan():
        yield app


async def client_of(
    hf: Holdfast, app: ServerApp, name: str, role: KeyRole = "reviewer", **given: Any
) -> Client:
    key = await hf.keys.create(name, tenant="default", role=role)
    transport = given.pop("transport", None) or Wire(httpx.ASGITransport(app))
    return Client("http://localhost", key=key.secret, transport=transport, **given)


async def asked(hf: Holdfast, id: str = "sale-1", **given: Any) -> str:
    await hf.start(reviewed, Sale("lamp", **given), id=id)
    await hf.run(id).until("waiting", timeout=20)
    review = (await hf.reviews.list(run=id)).reviews[0].id
    async with asyncio.timeout(20):  # its trail has the notice: then only people change it
        while not (await hf.reviews.get(review)).trail:
            continue
    return review


async def test_a_review_is_that_of_the_library(hf: Holdfast, app: ServerApp) -> None:
    id = await asked(hf)
    async with await client_of(hf, app, "ana") as client:
        assert await client.reviews.get(id) == await hf.reviews.get(id)
        assert await client.reviews.list() == await hf.reviews.list()
        assert (await client.reviews.list(status="decided")).reviews == []
        decided = await client.reviews.approve(
            id, comment="fine", values=Warranty(months=12), seen=(await hf.reviews.get(id)).rendered
        )
        assert decided == await hf.reviews.get(id)
        assert decided.decision is not None
        assert (decided.decision.by, decided.decision.approved) == ("ana", True)
    assert (await hf.run("sale-1", graph=reviewed).result(timeout=20)).months == 12


async def test_errors_have_what_those_of_the_library_have(hf: Holdfast, app: ServerApp) -> None:
    id, other = await asked(hf), await asked(hf, "sale-2", quorum=2, assignees=["ana", "cem"])
    async with (
        await client_of(hf, app, "ana") as ana,
        await client_of(hf, app, "bob") as bob,
        await client_of(hf, app, "ops", "operator") as ops,
    ):
        seen = (await ana.reviews.get(id)).rendered
        await ana.reviews.claim(id)
        with pytest.raises(ReviewClaimed) as claimed:
            await bob.reviews.reject(id)
        assert claimed.value.by == "ana"
        await bob.reviews.claim(id, take_over=True)
        await bob.reviews.edit(id, values=Warranty(months=1))
        await bob.reviews.release(id)
        with pytest.raises(ReviewChanged) as changed:
            await ana.reviews.approve(id, seen=seen)
        assert changed.value.review == await hf.reviews.get(id)
        assert any("months" in line for line in changed.value.difference)
        assert isinstance(changed.value.difference, tuple)
        with pytest.raises(InvalidRequest):
            await ana.reviews.approve(id, values={"months": "many"})
        await bob.reviews.reject(id, comment="no")
        with pytest.raises(ReviewDecided) as decided:
            await ana.reviews.approve(id)
        found = decided.value.decision
        assert isinstance(found, ReviewDecision)
        assert (found.by, found.status, found.comment) == ("bob", "rejected", "no")
        assert found == (await hf.reviews.get(id)).decision
        with pytest.raises(NotAssigned):
            await bob.reviews.approve(other)
        await ana.reviews.approve(other)
        with pytest.raises(AlreadyVoted):
            await ana.reviews.approve(other)
        for wrong in (bob.reviews.withdraw(other), bob.reviews.link(other, reviewer="ana")):
            with pytest.raises(Forbidden):
                await wrong
        with pytest.raises(Forbidden):
            await bob.reviews.approve(other, by="cem")
        assert (await ops.reviews.approve(other, by="cem")).status == "approved"
        with pytest.raises(ReviewNotFound):
            await ana.reviews.get("sale-1~0123456789abcdef")
        for key in ("", "a b", "ä", "x" * 256, 5):
            with pytest.raises(InvalidRequest, match="key must be 1 to 255"):
                await ana.reviews.approve(id, key=key)  # pyright: ignore[reportArgumentType]
        for id in ("", "x" * 200, 5):
            with pytest.raises(InvalidRequest, match="id must be the id of a review"):
                await ana.reviews.get(id)  # pyright: ignore[reportArgumentType]


async def test_other_actions(hf: Holdfast, app: ServerApp) -> None:
    id = await asked(hf, assignees=["ana"])
    async with (
        await client_of(hf, app, "ana") as ana,
        await client_of(hf, app, "ops", "operator") as ops,
    ):
        assert [each.id for each in (await ana.reviews.list(mine=True)).reviews] == [id]
        assert (await ops.reviews.list(mine=True)).reviews == []
        await ana.reviews.comment(id, text="hm")
        await ops.reviews.comment(id, text="please hurry", force=True)
        assert (await ops.reviews.reassign(id, to=["bob"], force=True)).assignees == ("bob",)
        assert (await ana.reviews.link(id)).startswith("https://runs.example.com/r/")
        assert (await ops.reviews.withdraw(id, comment="late")).status == "withdrawn"


class Losing(httpx.AsyncBaseTransport):
    """Loses the first response to each kind of request, after the server has acted."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._lost: set[str] = set()
        self.sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        self.sent += 1
        if request.url.path not in self._lost:
            self._lost.add(request.url.path)
            raise httpx.ReadError("cut")
        return response


async def test_a_lost_response_does_not_act_twice(hf: Holdfast, app: ServerApp) -> None:
    id, other = await asked(hf), await asked(hf, "sale-2", quorum=2)
    losing = Losing(httpx.ASGITransport(app))
    async with await client_of(hf, app, "ana", transport=losing) as ana:
        changed = await ana.reviews.comment(id, text="hm")
        assert [each.kind for each in changed.trail if each.by == "ana"] == ["commented"]
        await ana.reviews.edit(id, values=Warranty(months=3))
        assert (await ana.reviews.approve(id)).status == "approved"
        assert len((await ana.reviews.approve(other)).votes) == 1
    assert losing.sent == 8


async def test_a_problem_of_a_newer_server_can_be_read(hf: Holdfast) -> None:
    problem = {"code": "review_decided", "detail": "gone", "decision": {"status": 5}, "new": 1}
    request = httpx.Request("POST", "http://localhost/v1/reviews/a/approve")
    error = error_of(httpx.Response(409, json=problem, request=request))
    assert isinstance(error, ReviewDecided)
    assert error.decision is None
    lost = error_of(httpx.Response(502, text="bad", request=request))
    assert isinstance(lost, ServerUnavailable)
