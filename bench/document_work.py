"""A worker of the document pipeline as a process, whose models write down what they are asked.

``python -m bench.document_work FOLDER PLAN`` works until SIGTERM; the plan is JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documents.application import Application, application
from documents.models import models
from documents.settings import Settings
from holdfast import Answer, Emit, Model, ModelPrice, Request
from holdfast.clock import SystemClock

__all__ = ["Asked", "Plan", "asked_in", "bench_application"]

CONCURRENCY = 16


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is processed, and how."""

    pages: int
    kills: int = 0
    answer_seconds: float = 0.2
    lease_seconds: float = 6.0
    share: bool = True
    image_pixels: int = 400_000
    scans_every: int = 50


@dataclass(frozen=True)
class Asked:
    """A question that a worker asked."""

    place: int
    """How many bytes stood before it."""
    process: int
    key: str
    question: str


class WrittenModel:
    """A model that appends each question to a file before it answers."""

    def __init__(self, model: Model, path: Path, seconds: float) -> None:
        self._model, self._path, self._seconds = model, path, seconds

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
        asked = json.dumps([request.messages, request.output], sort_keys=True).encode()
        digest = hashlib.sha256(asked).hexdigest()[:24]
        line = json.dumps([os.getpid(), request.idempotency_key, f"{self.name} {digest}"])
        _append(self._path, f"{line}\n")
        await SystemClock().sleep(self._seconds)
        return await self._model.answer(request, emit)


def _append(path: Path, line: str) -> None:
    # One write of few bytes: lines of several processes do not mix, and a kill -9 tears none.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def asked_in(path: Path) -> list[Asked]:
    """Return all questions that were written down, in their order."""
    found: list[Asked] = []
    place = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        process, key, question = json.loads(line)
        found.append(Asked(place, process, key, question))
        place += len(line)
    return found


def bench_application(folder: Path, plan: Plan) -> Application:
    """Return the application in a folder, with models that write down what they are asked."""
    settings = Settings(
        data=folder,
        store_url=f"sqlite:///{folder}/documents.db",
        concurrency=CONCURRENCY,
        image_pixels=plan.image_pixels,
        share=plan.share,
    )
    written: dict[str, Any] = {
        name: WrittenModel(model, folder / "asked.jsonl", plan.answer_seconds)
        for name, model in models(settings).items()
    }
    return application(settings, models=written)


async def main(folder: str, plan: str) -> None:
    planned = Plan(**json.loads(plan))
    app = bench_application(Path(folder), planned)
    async with app.open() as hf, hf.worker([app.graph], lease=planned.lease_seconds) as worker:
        print("ready", flush=True)
        await worker.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
