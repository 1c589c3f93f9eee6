"""Charge a card, wait up to three days for an approval, ship: with DBOS.

python dbos_orders.py serve            a process that runs orders, and recovers its own after a kill
python dbos_orders.py start order-42   starts the order
python dbos_orders.py approve order-42 approves it, from any process
"""

import sys
import threading

from dbos import DBOS, DBOSClient, EnqueueOptions
from shop import Order, charge, ship

DATABASE = "sqlite:///dbos.sqlite"


@DBOS.step()
def charge_card(order: Order) -> str:
    return charge(order, idempotency_key=f"charge-{order.id}")


@DBOS.step()
def ship_goods(order: Order) -> str:
    return ship(order, idempotency_key=f"ship-{order.id}")


@DBOS.workflow(name="approve")
def approve(order: Order) -> str:
    charge_card(order)
    approved = DBOS.recv("approved", timeout_seconds=3 * 24 * 3600)
    if approved is None:
        return "too late"
    return ship_goods(order) if approved else "refused"


def main(command: str, order: str = "") -> None:
    if command == "serve":
        DBOS(config={"name": "orders", "system_database_url": DATABASE})
        DBOS.launch()
        DBOS.register_queue("orders")
        threading.Event().wait()
    client = DBOSClient(system_database_url=DATABASE)
    if command == "start":
        options: EnqueueOptions = {
            "workflow_name": "approve",
            "queue_name": "orders",
            "workflow_id": order,
        }
        client.enqueue(options, Order(order, 4200))
    else:
        client.send(order, True, "approved", idempotency_key="desk")


main(*sys.argv[1:])
