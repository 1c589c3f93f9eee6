"""The application with its data in a folder of the test, and a worker that runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from documents.application import Application, application
from documents.models import answer_by_rules
from documents.processing import Processing
from documents.settings import Settings
from holdfast import Holdfast, Model, Request, RunHandle
from holdfast.documents.pipelines import start_pipelines
from holdfast.integrations.offline import Offline, OfflineAnswer
from holdfast.integrations.reading import OcrLine, OcrText
from holdfast.model.document import DocumentSegment, DocumentStep, DocumentWorkflow
from holdfast.model.upload import Upload

PATIENCE_SECONDS = 60
PROJECT = "tested"
SENTENCE = "Elm Bank pays Fir Works for 1,200.00 USD on 2026-11-02, says Ana Silva."


class CountedModels:
    """The rules as models. They count what they are asked, and refuse what a test names."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.refused: list[tuple[str, Exception]] = []
        """Texts, and what is raised for prompts that have them."""

    def answer(self, request: Request) -> OfflineAnswer:
        prompt: str = request.messages[-1]["content"]
        self.asked[prompt] += 1
        for text, error in self.refused:
            if text in prompt:
                raise error
        return answer_by_rules(request)

    def models(self) -> Mapping[str, Model]:
        return {name: Offline(self.answer, name=f"counted-{name}") for name in ("small", "large")}


class KnownText:
    """An OCR engine that finds the same text in each image."""

    name = "known"

    def __init__(self, text: str = SENTENCE) -> None:
        self.text, self.images = text, 0
        self.error: Exception | None = None

    async def recognize(self, image: bytes, *, language: str = "en") -> OcrText:
        self.images += 1
        if self.error is not None:
            raise self.error
        return OcrText(self.text, (OcrLine(self.text, (0, 0, 9, 9), 0.9),))


@dataclass
class Bench:
    """An application that works, and what it has done."""

    app: Application
    hf: Holdfast

    async def add(self, path: Path, *, name: str | None = None) -> Upload:
        return await self.hf.documents.uploads.add_path(PROJECT, path, name=name)

    def run(self, added: Upload) -> RunHandle[Processing]:
        return self.hf.run(f"doc-{added.workflow}", graph=self.app.graph)

    async def ended(self, added: Upload) -> DocumentWorkflow:
        """Return the workflow when its run has ended."""
        await self.run(added).until("finished", "failed", timeout=PATIENCE_SECONDS)
        return await self.hf.documents.workflow(added.workflow)

    async def processed(self, path: Path, *, name: str | None = None) -> DocumentWorkflow:
        return await self.ended(await self.add(path, name=name))

    async def steps(self, workflow: DocumentWorkflow) -> dict[str, DocumentStep]:
        return {**await self.hf.documents.steps(workflow.id)}

    async def statuses(self, workflow: DocumentWorkflow) -> dict[str, set[str]]:
        """Return the names of the steps by their statuses."""
        found: dict[str, set[str]] = {}
        for name, step in (await self.steps(workflow)).items():
            found.setdefault(step.status, set()).add(name)
        return found

    async def segments(self, workflow: DocumentWorkflow) -> list[DocumentSegment]:
        return [*await self.hf.documents.segments(workflow.id, limit=1_000)]


@pytest.fixture
def counted() -> CountedModels:
    return CountedModels()


@pytest.fixture
def ocr() -> KnownText:
    return KnownText()


Working = Callable[..., Any]


@pytest.fixture
def working(tmp_path: Path, counted: CountedModels, ocr: KnownText) -> Working:
    """Return what opens the application; ``changes`` are those of `application`."""
    settings = Settings(
        data=tmp_path / "data", store_url=f"sqlite:///{tmp_path}/d.db", image_pixels=200_000
    )

    @asynccontextmanager
    async def open(**changes: Any) -> AsyncIterator[Bench]:
        parts = {"models": counted.models(), "recognizer": lambda _name: ocr, **changes}
        app = application(parts.pop("settings", settings), **parts)
        async with app.open() as hf:
            start_pipelines(hf, [app.graph])
            await hf.documents.projects.create("Tested", id=PROJECT)
            async with hf.worker([app.graph]):
                yield Bench(app, hf)

    return open


@pytest.fixture
async def bench(working: Working) -> AsyncIterator[Bench]:
    async with working() as bench:
        yield bench
