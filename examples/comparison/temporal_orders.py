"""Charge a card, wait up to three days for an approval, ship: with Temporal.

It needs a server: temporal server start-dev --db-filename temporal.db

python temporal_orders.py serve            a worker; as many as you like
python temporal_orders.py start order-42   starts the order
python temporal_orders.py approve order-42 approves it, from any process
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from shop import Order, charge, ship


@activity.defn
async def charge_card(order: Order) -> str:
    return charge(order, idempotency_key=f"charge-{order.id}")


@activity.defn
async def ship_goods(order: Order) -> str:
    return ship(order, idempotency_key=f"ship-{order.id}")


@workflow.defn
class Approve:
    def __init__(self) -> None:
        self.approved: bool | None = None

    @workflow.signal
    def approve(self, approved: bool) -> None:
        self.approved = approved

    @workflow.run
    async def run(self, order: Order) -> str:
        minute = timedelta(minutes=1)
        await workflow.execute_activity(charge_card, order, start_to_close_timeout=minute)
        try:
            await workflow.wait_condition(
                lambda: self.approved is not None, timeout=timedelta(days=3)
            )
        except TimeoutError:
            return "too late"
        if not self.approved:
            return "refused"
        return await workflow.execute_activity(ship_goods, order, start_to_close_timeout=minute)


async def main(command: str, order: str = "") -> None:
    client = await Client.connect("localhost:7233")
    if command == "serve":
        await Worker(
            client,
            task_queue="orders",
            workflows=[Approve],
            activities=[charge_card, ship_goods],
        ).run()
    elif command == "start":
        await client.start_workflow(Approve.run, Order(order, 4200), id=order, task_queue="orders")
    else:
        await client.get_workflow_handle_for(Approve.run, order).signal(Approve.approve, True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
