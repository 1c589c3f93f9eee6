"""Charge a card, wait up to three days for an approval, ship: with LangGraph.

python langgraph_orders.py start order-42   starts the order, and runs it up to its pause
python langgraph_orders.py approve order-42 approves it, and runs the rest in this process
python langgraph_orders.py sweep            a cron job: continues killed orders, ends late ones
"""

import sqlite3
import sys
from datetime import UTC, datetime, timedelta

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt
from shop import Order, charge, ship

serde = JsonPlusSerializer(allowed_msgpack_modules=[("shop", "Order")])
saver = SqliteSaver(sqlite3.connect("langgraph.sqlite", check_same_thread=False), serde=serde)


@task
def charge_card(order: Order) -> str:
    return charge(order, idempotency_key=f"charge-{order.id}")


@task
def ship_goods(order: Order) -> str:
    return ship(order, idempotency_key=f"ship-{order.id}")


@entrypoint(checkpointer=saver)
def approve(order: Order) -> str:
    charge_card(order).result()
    answer = interrupt("approve?")
    if answer == "late":
        return "too late"
    return ship_goods(order).result() if answer == "yes" else "refused"


def thread(order: str) -> RunnableConfig:
    return {"configurable": {"thread_id": order}}


def sweep() -> None:
    """Continue killed orders, and end those without an answer after three days."""
    since = datetime.now(UTC) - timedelta(days=3)
    for order in {saved.config["configurable"]["thread_id"] for saved in saver.list(None)}:
        state = approve.get_state(thread(order))
        if not state.next:
            continue
        if not state.interrupts:
            approve.invoke(None, thread(order), durability="sync")
        elif state.created_at and datetime.fromisoformat(state.created_at) < since:
            approve.invoke(Command(resume="late"), thread(order), durability="sync")


def main(command: str, order: str = "") -> None:
    if command == "sweep":
        sweep()
    elif command == "start":
        approve.invoke(Order(order, 4200), thread(order), durability="sync")
    else:
        print(approve.invoke(Command(resume="yes"), thread(order), durability="sync"))


main(*sys.argv[1:])
