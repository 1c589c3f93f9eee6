"""A model that is paid for whenever it is reached, and what runs truly paid it.

Checked whenever it is: no run with a budget has paid more than it may, nor more than its journal
says that it may have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ModelUnavailable
from holdfast.model.budget import Budget
from holdfast.model.invocation import Answer, Emit, Request
from holdfast.model.pricing import ModelPrice, Usage
from holdfast.model.spending import NANODOLLARS, NOTHING, Spending
from holdfast.records.codec import arguments_digest
from holdfast.records.head import Head
from tests.simulation.chronicle import Broken, Chronicle

if TYPE_CHECKING:
    from tests.simulation.once import Journey
    from tests.simulation.world import World

__all__ = ["MOST_TOKENS", "NANODOLLARS_A_TOKEN", "Books", "Oracle", "asked_of", "budget_of"]

MOST_TOKENS = 100
"""What an answer takes at most."""
NANODOLLARS_A_TOKEN = 100
_BUSY = 0.05

Ask = Callable[[str, bytes, str], Coroutine[Any, Any, Any]]
"""Asks under what names the call, the digest of its arguments, and its key."""


class Oracle:
    """The model, as a process sees it. Implements `holdfast.model.invocation.Model`."""

    name = "oracle"
    max_tokens = MOST_TOKENS // 2
    price = ModelPrice(NANODOLLARS_A_TOKEN, NANODOLLARS_A_TOKEN)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def tokens_at_most(self, request: Request) -> tuple[int, int]:
        return MOST_TOKENS // 2, MOST_TOKENS // 2

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        try:
            return await self._ask(asked_of(request), _digest(request), request.idempotency_key)
        except ConnectionError as error:
            raise ModelUnavailable(str(error)) from error


class Books:
    """What each run truly paid."""

    def __init__(self, world: World, seen: Counter[str]) -> None:
        self._world = world
        self._seen = seen
        self._paid: dict[tuple[str, str], Spending] = {}
        self._may: dict[tuple[str, str], int] = {}
        """The largest budget that each run ever had, in tokens."""
        self._answers = 0

    def reached(self, journey: Journey) -> Answer | ModelUnavailable:
        """Return what the model answers, and write down what that costs."""
        draw = self._world.random.random
        if self._world.plan.effects and draw() < _BUSY:
            self._seen["model busy, unpaid"] += 1
            return ModelUnavailable("busy", unpaid=True)
        usage = Usage(*(1 + int(draw() * MOST_TOKENS / 2) for _ in range(2)))
        tokens = usage.input_tokens + usage.output_tokens
        self._pay(journey.chronicle, Spending(tokens, tokens * NANODOLLARS_A_TOKEN))
        self._answers += 1
        return Answer(text=f"oracle {self._answers}", usage=usage, model=Oracle.name)

    def _pay(self, chronicle: Chronicle, cost: Spending) -> None:
        name = (chronicle.key.pk, chronicle.generation)
        paid = self._paid[name] = self._paid.get(name, NOTHING) + cost
        self._seen["paid"] += 1
        if name not in self._may:
            return
        self._seen["paid within a budget"] += 1
        written = chronicle.execution.spent if chronicle.execution is not None else NOTHING
        if paid.tokens > self._may[name]:
            raise Broken(f"{chronicle.key.id} paid {paid}, and may only {self._may[name]} tokens")
        if paid.tokens > written.tokens or paid.nanodollars > written.nanodollars:
            raise Broken(f"{chronicle.key.id} paid {paid}, and its journal says {written}")

    def row(self, head: Head) -> None:
        """Hear of a row, which says what a run may spend."""
        if head.budget is None:
            return
        name = (head.key.pk, head.generation)
        assert head.budget.tokens is not None
        self._may[name] = max(self._may.get(name, 0), head.budget.tokens)
        if head.owner is None and any(wait.key.startswith("%budget") for wait in head.waits):
            self._seen["out of money"] += 1


def budget_of(tokens: int) -> Budget:
    """Return a budget of so many tokens, and of what they cost."""
    return Budget(tokens=tokens, usd=tokens * NANODOLLARS_A_TOKEN / NANODOLLARS)


def asked_of(request: Request) -> str:
    """Return what names the call by which something is asked."""
    return str(request.messages[0]["content"])


def _digest(request: Request) -> bytes:
    unkeyed = msgspec.structs.replace(request, idempotency_key="")
    return arguments_digest(((unkeyed,), {}))
