"""An agent that is killed in the middle of a refund, and pays nothing twice: `make demo`.

A model looks up an order, refunds it and answers. The process is killed with -9 after the bank has
paid, and before the workflow has recorded it. Another process goes on: it does not repeat the
questions to the model, and asks the bank what became of the refund. The model needs no network.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from holdfast import (
    UNKNOWN,
    Budget,
    Context,
    Holdfast,
    ModelPrice,
    Request,
    ToolCall,
    Workflow,
    agent,
    done,
    tool,
    workflow,
)
from holdfast.integrations.offline import Offline, OfflineAnswer

QUESTION = "Where is my order 42?"
# Other workers take over the runs of a dead one after its lease. It is a minute unless you say
# otherwise; here it is short, so that the demo ends soon.
LEASE_SECONDS = 2
PRICE = ModelPrice(input_usd=3, output_usd=15)


@dataclass
class Order:
    number: int
    item: str
    status: str
    price_usd: int


@dataclass
class Reply:
    text: str
    turns: int


class Shop:
    """The outside world: a model, orders and a bank. Each writes down what it did."""

    def __init__(self, folder: Path, *, stuck: bool = False) -> None:
        self._folder = folder
        self._stuck = stuck

    def noted(self, what: str) -> list[str]:
        """Return what the shop wrote down, in both processes together."""
        file = self._folder / what
        return file.read_text().splitlines() if file.exists() else []

    def _note(self, what: str, line: str) -> None:
        with (self._folder / what).open("a") as file:
            file.write(line + "\n")

    def model(self) -> Offline:
        """Return a model that knows what to do next."""
        steps: list[OfflineAnswer] = [
            ToolCall("1", "look_up", {"order": 42}),
            ToolCall("2", "refund", {"order": 42, "amount": 60}),
            "The carrier has lost your dress. The 60 dollars are on their way back to you.",
        ]

        def answer(request: Request) -> OfflineAnswer:
            results = [each for each in request.messages if each["role"] == "tool"]
            self._note("questions", f"question {len(results) + 1}")
            return steps[len(results)]

        return Offline(answer, price=PRICE)

    async def look_up(self, order: int) -> Order:
        """Look up an order."""
        self._note("lookups", str(order))
        return Order(order, "a dress", "lost by the carrier", price_usd=60)

    async def pay(self, order: int, amount: int, *, idempotency_key: str) -> str:
        """Refund an order."""
        self._note("payments", f"{idempotency_key} {amount}")
        if self._stuck:
            os.write(1, b"paid\n")  # the parent process reads this and kills us
            await asyncio.Event().wait()
        return f"refunded {amount} dollars"

    async def was_paid(self, key: str) -> object:
        """Say what became of a payment."""
        for line in self.noted("payments"):
            if line.startswith(key):
                return done(f"refunded {line.split()[1]} dollars")
        return UNKNOWN


def support_workflow(shop: Shop) -> Workflow[str, Reply]:
    """Return a workflow in which a model calls tools until it has an answer."""
    look_up = tool(name="look_up")(shop.look_up)
    refund = tool(name="refund", at_most_once=True, probe=shop.was_paid)(shop.pay)
    assistant = agent("small", [look_up, refund], system="Be kind.")

    @workflow
    async def support(question: str, ctx: Context) -> Reply:
        conversation = await assistant(ctx, question)
        return Reply(conversation.text, conversation.turns)

    return support


async def work_until_killed(url: str, folder: Path) -> NoReturn:
    """Start the run and drive it into the refund."""
    shop = Shop(folder, stuck=True)
    support = support_workflow(shop)
    async with (
        Holdfast(url, models={"small": shop.model()}) as hf,
        hf.worker([support], lease=LEASE_SECONDS),
    ):
        await hf.start(support, QUESTION, id="mail-7", budget=Budget(usd=0.1))
        await asyncio.Event().wait()
    raise AssertionError("the process was not killed")


def start_and_kill(url: str, folder: Path) -> None:
    command = [sys.executable, __file__, url, str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.stdout.close()
    if child.wait() != -signal.SIGKILL or said != "paid\n":
        sys.exit(f"the worker ended by itself, with {child.returncode}")


async def go_on(url: str, folder: Path) -> None:
    shop = Shop(folder)
    asked, support = len(shop.noted("questions")), support_workflow(shop)
    print(f"1. A process asked the model {asked} times, and was killed (-9) inside the refund.")
    print("   The bank has paid; the workflow does not know it.")
    async with (
        Holdfast(url, models={"small": shop.model()}) as hf,
        hf.worker([support], lease=4 * LEASE_SECONDS),
    ):
        run = hf.run("mail-7", graph=support)
        reply = await run.result(timeout="1m")
        asked = len(shop.noted("questions")) - asked
        print(f"2. Another one went on: it asked the model {asked} time, and the bank what became")
        print(f"   of the refund. {hf.saved.calls} calls were answered from the journal.")
        print(f"3. The answer, after {reply.turns} turns: {reply.text}")
        print("4. What happened:\n")
        for entry in (await run.history()).entries:
            if entry.kind in ("call", "intent", "fence"):
                by = f"  by its {entry.details['by']}" if entry.details.get("by") else ""
                print(f"   {entry.kind:<8}{entry.details.get('call', '')}{by}")
        print(f"\n5. The run cost ${(await run.get()).cost_usd:.6f}, of a budget of $0.10.")
    for what in ("questions", "lookups", "payments"):
        print(f"   {what}: {len(shop.noted(what))}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/agent.db"
        start_and_kill(url, Path(folder))
        asyncio.run(go_on(url, Path(folder)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work_until_killed(sys.argv[1], Path(sys.argv[2])))
    else:
        main()
