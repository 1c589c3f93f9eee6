"""A process that works and delivers webhooks: ``python -m tests.crash.hooked URL ALLOW``.

It says ``ready`` once it claims runs. Leases and looks are short, so that a test sees what happens
after them.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace

from holdfast import Context, Graph, Holdfast, signal
from holdfast.network.addresses import AllowList
from holdfast.webhooks import deliverer, schedule


@dataclass
class Order:
    paid: int = 0


orders = Graph("orders", Order)


@orders.node
async def pay(order: Order, ctx: Context) -> Order:
    print(await ctx.callback("payment"), flush=True)
    return replace(order, paid=await ctx.wait(signal("payment", int)))


async def main(url: str, allow: str) -> None:
    deliverer.LEASE_MS = 1_000
    schedule._FIRST_LOOK_MS = 500
    async with Holdfast(url, public_url="http://server") as hf:
        hf.webhooks.allow = AllowList([allow])
        async with hf.webhooks.deliver(), hf.worker([orders], lease=5) as worker:
            print("ready", flush=True)
            await worker.serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
