"""Charge a card, wait up to three days for an approval, ship: with Holdfast.

python holdfast_orders.py serve            a worker; as many as you like
python holdfast_orders.py start order-42   starts the order
python holdfast_orders.py approve order-42 approves it, from any process
"""

import asyncio
import sys

from shop import Order, charge, ship

from holdfast import Context, Holdfast, days, signal, workflow
from holdfast.errors import WaitTimedOut

APPROVED = signal("approved", bool)


@workflow
async def approve(order: Order, ctx: Context) -> str:
    await ctx.call(charge, order)
    try:
        approved = await ctx.wait(APPROVED, max_wait=days(3))
    except WaitTimedOut:
        return "too late"
    return await ctx.call(ship, order) if approved else "refused"


async def main(command: str, order: str = "") -> None:
    async with Holdfast("sqlite:///orders.db") as hf:
        if command == "serve":
            async with hf.worker([approve], lease=5) as worker:
                await worker.serve()
        elif command == "start":
            await hf.start(approve, Order(order, 4200), id=order)
        else:
            await hf.run(order).signal("approved", True, signal_id="desk")


asyncio.run(main(*sys.argv[1:]))
