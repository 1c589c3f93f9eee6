"""Callbacks and webhooks on a table of DynamoDB."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from holdfast import Context, Graph, Holdfast, signal
from holdfast.clock import SystemIds
from holdfast.network.addresses import AllowList
from tests.network.receiver import Receiver, receiving

ADDRESSES: list[str] = []


@dataclass
class Order:
    paid: bool = False


orders = Graph("orders", Order)


@orders.node
async def pay(order: Order, ctx: Context) -> Order:
    ADDRESSES.append(await ctx.callback("paid"))
    return replace(order, paid=await ctx.wait(signal("paid")))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


async def test_a_callback_and_its_webhooks(dynamodb_local: str, receiver: Receiver) -> None:
    url = f"dynamodb://hooks-{SystemIds().new()}?region=us-east-1&endpoint={dynamodb_local}"
    async with Holdfast(url, public_url="https://server") as hf:
        await hf.create()
        hf.webhooks.allow = AllowList([receiver.host])
        added = await hf.webhooks.add(receiver.url)
        async with hf.webhooks.deliver(), hf.worker([orders]):
            tested = await hf.webhooks.test(added.webhook.id)
            assert tested.state == "delivered"
            run = await hf.start(orders, Order(), id="o-1")
            await receiver.wait_for(3)
            await hf.callbacks.rotate_keys()
            receiver.answer = lambda _: 500 if len(receiver.requests) == 4 else 200
            await hf.callbacks.accept(ADDRESSES[0].rpartition("/")[2], True)
            assert (await run.result()).paid
            requests = await receiver.wait_for(5)
        told = [json.loads(request.body)["type"] for request in requests]
        assert told == ["webhook.test", "run.started", "run.paused", "run.finished", "run.finished"]
        assert requests[3].headers["webhook-id"] == requests[4].headers["webhook-id"]
        states = [each.state for each in await hf.webhooks.deliveries(added.webhook.id)]
        assert states == ["delivered", "delivered"]
