"""The shop of the comparison: two services that note in a file what was asked of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LEDGER = Path("ledger.txt")


@dataclass
class Order:
    id: str
    cents: int


def note(line: str) -> None:
    """Write a line that a kill does not lose."""
    with LEDGER.open("a") as file:
        print(line, file=file, flush=True)


def charge(order: Order, *, idempotency_key: str) -> str:
    """Charge the card. A real service charges once for each key."""
    note(f"charge {order.id} {order.cents} key={idempotency_key}")
    if os.environ.get("SHOP_DIES") == "charging":
        os._exit(9)  # the card is charged, and the caller never learns it
    return f"receipt of {order.id}"


def ship(order: Order, *, idempotency_key: str) -> str:
    """Send the goods."""
    note(f"ship {order.id} key={idempotency_key}")
    return f"shipped {order.id}"
