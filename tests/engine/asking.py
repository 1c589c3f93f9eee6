"""What the tests of models and budgets share: a model whose every answer costs a cent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import Answer, Graph
from holdfast.model.invocation import Emit, Request
from holdfast.model.pricing import ModelPrice, Usage

CENT = 10_000_000
"""In nanodollars."""
A_CENT = ModelPrice(input_usd=100, output_usd=100)
HINT = (
    ": 50 input tokens by bytes, 50 output tokens (max_tokens); lower max_tokens, "
    "set estimate=True, add a token counter or raise the budget"
)
"""What a run that pauses for its budget says after what it needs."""


class Cents:
    """A model that takes 100 tokens a question and asks a cent for them, unless it is told so."""

    def __init__(
        self,
        says: Callable[[Request], str] = lambda request: "yes",
        *,
        name: str = "cents",
        price: ModelPrice | None = A_CENT,
    ) -> None:
        self.asked: list[Request] = []
        self.errors: list[Exception] = []
        self.held: asyncio.Event | None = None
        self.used = Usage(50, 50)
        self.name = name
        self.price = price
        self.max_tokens = 50
        self._says = says

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return 50, 50

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        self.asked.append(request)
        if self.held is not None:
            await self.held.wait()
        if self.errors:
            raise self.errors.pop(0)
        return Answer.to(request, text=self._says(request), usage=self.used, model=self.name)

    @property
    def keys(self) -> list[str]:
        return [request.idempotency_key for request in self.asked]


def graph_of(function: Any, name: str = "g", **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph(name, dict)
    graph.node(name="node", **options)(function)
    return graph
