"""The state of the pipeline, and what its nodes use beside it.

The state has indices, counts and addresses: some hundred bytes for each document, however large it
is. What a document says is in blobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from documents.cache import FileCache
from documents.catalogue import BlobMemory, Catalogue
from documents.prompts import Instructions
from documents.settings import Settings
from documents.shelf import Shelf
from documents.steps import Steps
from holdfast import Context, Mapped
from holdfast.documents.node_access import documents_of
from holdfast.integrations.crawling import CrawlLimits
from holdfast.integrations.reading import (
    DataAutomation,
    FileReader,
    FileType,
    OcrEngine,
    Transcriber,
)
from holdfast.model.document import StepName

__all__ = ["Desk", "Job", "Processing", "Work"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every item of a map is given: which document, and how to read it."""

    workflow: str
    document: str
    project: str
    prefix: str
    """The prefix of the document's blobs."""
    instructions: str
    """The address of the `Instructions`; a project's prompt may be long."""
    language: str
    ocr_model: str
    uri: str
    """The file, or the address of a document of the web."""
    name: str
    kind: str
    """The kind of the file, or ``web``."""
    mime: str = ""
    sha256: str = ""
    bytes: int = 0
    segments: int = 0
    """How many the file has; 0 if only a later step can tell."""
    source: str = ""
    """The catalogue that the item reads."""

    @property
    def type(self) -> FileType:
        return FileType(mime=self.mime, kind=self.kind)  # pyright: ignore[reportArgumentType]

    def as_json(self, **changes: Any) -> dict[str, Any]:
        """Return the job as JSON, for `Context.map`."""
        return {**asdict(self), **changes}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Job:
        """Return the job that a map was given."""
        return cls(**given)


@dataclass
class Processing:
    """The state of the graph. A run is started with the first field."""

    workflow: str
    job: Job | None = None
    needed: list[StepName] = field(default_factory=list[StepName])
    """The preprocessing steps that the type of the document needs."""
    parsed: str = ""
    recognized: str = ""
    automated: str = ""
    transcribed: str = ""
    crawled: str = ""
    """Catalogues of what these steps made."""
    built: str = ""
    """The catalogue of all segments."""
    segments: int = 0
    analysed: Mapped | None = None
    """The cursor on the analyses."""
    graph: str = ""
    """The address of the graph of entities."""
    summaries: str = ""
    """The address of the list of summaries that are reduced next."""
    left: int = 0
    """How many summaries that are."""
    summary: str = ""
    """The address of the summary of the document."""


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What the nodes of a process use."""

    settings: Settings
    cache: FileCache
    reader: FileReader
    recognizer: Callable[[str], OcrEngine]
    """Returns the engine for a project's ``ocr_model``."""
    transcriber: Transcriber
    automation: DataAutomation | None
    crawl_limits: CrawlLimits
    crawl_allowed: tuple[str, ...] = ()
    """Private places that may be crawled, for tests."""
    memory: BlobMemory = field(default_factory=BlobMemory)


class Work:
    """What one node or item uses for one document."""

    def __init__(self, desk: Desk, ctx: Context, job: Job) -> None:
        self._desk, self._ctx = desk, ctx
        self.job = job
        self.documents = documents_of(ctx)
        self.shelf = Shelf(
            self.documents.files, tenant=ctx.tenant, prefix=job.prefix, workflow=job.workflow
        )

    @property
    def reader(self) -> FileReader:
        return self._desk.reader

    @property
    def steps(self) -> Steps:
        return Steps(self.documents, self.job.workflow, self._ctx)

    def catalogue(self, uri: str) -> Catalogue:
        """Return the catalogue at an address."""
        return Catalogue(self.shelf, uri, self._desk.memory)

    async def instructions(self) -> Instructions:
        """Return what the project says about its documents."""
        stored = await self._desk.memory.load(self.job.instructions, self.shelf.load)
        return Instructions(**stored)

    @asynccontextmanager
    async def file(self) -> AsyncGenerator[Path]:
        """Provide the document's file on this machine, while it is used."""
        job, files = self.job, self.documents.files

        async def download(path: Path) -> None:
            await files.download(job.uri, path, tenant=self._ctx.tenant)

        # An object in a bucket of others has no digest: its address, with its size, stands for it.
        digest = job.sha256 or hashlib.sha256(f"{job.uri} {job.bytes}".encode()).hexdigest()
        async with self._desk.cache.opened(digest, job.bytes, download) as path:
            yield path
