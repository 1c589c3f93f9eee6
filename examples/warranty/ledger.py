"""A ledger of every answer that a model was paid for, across all processes of the application.

It is written beside the store and not into it: so it shows what really was paid, and not what the
workflow believes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast import Answer, Emit, Model, ModelPrice, Request
from holdfast.clock import SystemClock

__all__ = ["Ledger", "Paid", "PaidModel"]


@dataclass(frozen=True)
class Paid:
    """What was paid so far."""

    calls: int = 0
    usd: float = 0.0
    twice: int = 0
    """Calls whose question had been answered and paid before."""


class Ledger:
    """A file with one line for each answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, model: str, request: Request, usd: float) -> None:
        """Note an answer. It is on the disk when this returns."""
        asked = json.dumps([model, request.messages, request.output], sort_keys=True, default=str)
        line = json.dumps([model, sha256(asked.encode()).hexdigest(), usd])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def total(self) -> Paid:
        """Return what all processes paid so far."""
        if not self._path.exists():
            return Paid()
        lines: list[Any] = [json.loads(line) for line in self._path.read_text().splitlines()]
        counts = Counter((model, question) for model, question, _ in lines)
        return Paid(
            calls=len(lines),
            usd=sum(usd for _, _, usd in lines),
            twice=sum(count - 1 for count in counts.values()),
        )

    def models(self, models: Mapping[str, Model], *, seconds: float) -> dict[str, Model]:
        """Return these models with this ledger; each answer takes so many seconds."""
        return {name: PaidModel(model, self, seconds=seconds) for name, model in models.items()}


class PaidModel:
    """A model that notes each answer in a ledger, and takes as long as a real one."""

    def __init__(self, model: Model, ledger: Ledger, *, seconds: float) -> None:
        self._model, self._ledger, self._seconds = model, ledger, seconds

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def price(self) -> ModelPrice | None:
        return self._model.price

    @property
    def max_tokens(self) -> int:
        return self._model.max_tokens

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return self._model.tokens_max(request)

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        await SystemClock().sleep(self._seconds)
        answer = await self._model.answer(request, emit)
        price = self._model.price
        usd = 0.0 if price is None else price.cost_nanodollars(answer.usage) / 1_000_000_000
        await asyncio.to_thread(self._ledger.add, self.name, request, usd)
        return answer
