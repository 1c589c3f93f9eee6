"""What the tests of documents share: documents to work on, and processes that die at a write."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.clock import SeededIds
from holdfast.documents.documents import Documents
from holdfast.model.document import Document, DocumentWorkflow
from holdfast.records.document_keys import (
    project_workflow_key,
    steps_key,
    workflow_key,
)
from holdfast.storage import Key, Layout, Meter, Store
from holdfast.storage.blobs import Blobs
from holdfast.storage.operations import (
    ChangePage,
    Operation,
    Reply,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.sqlite import SqliteEngine
from tests.engine.support import StepClock, store_of
from tests.simulation.blobs import MemoryBlobs

FILE: dict[str, Any] = {
    "file_uri": "s3://inbox/contract.pdf",
    "file_name": "contract.pdf",
    "file_type": "application/pdf",
}


async def added(documents: Documents, *, project: str = "p", id: str = "d") -> Document:
    """Return a document in a project, both of which are created where they are missing."""
    await documents.projects.create("Contracts", id=project)
    return await documents.add(project, id=id, **FILE)


async def begun(
    documents: Documents, *, document: str = "d", id: str = "w", segments: int | None = None
) -> DocumentWorkflow:
    """Return a workflow in progress of a new document."""
    await added(documents, id=document)
    await documents.begin(document, id=id)
    return await documents.set_status(id, "in_progress", total_segments=segments)


async def three_items(hf: Holdfast, workflow: str, document: str = "d") -> list[dict[str, Any]]:
    """Return the item of a workflow, that in the list of its project, and its steps."""
    table = store_of(hf).table
    keys = [
        workflow_key("DOC", "default", document, workflow=workflow),
        project_workflow_key("default", "p", workflow),
        steps_key("default", workflow),
    ]
    found = [await table.get(key) for key in keys]
    assert all(item is not None for item in found)
    return [item for item in found if item is not None]


async def agreed_status(hf: Holdfast, workflow: str, document: str = "d") -> str:
    """Return the status of a workflow, on which all its items and the index must agree."""
    item, entry, steps = await three_items(hf, workflow, document)
    statuses = {item["data"]["status"], entry["data"]["status"], steps["status"]}
    assert len(statuses) == 1, (item, entry, steps)
    assert len({each["revision"] for each in (item, entry, steps)}) == 1
    (status,) = statuses
    assert f"#{status}#" in steps["GSI1PK"]
    return status


class Killed(BaseException):
    """A process was killed."""


class Mortal:
    """An engine of a table whose process can be killed at a write."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self.writes_left: int | None = None
        """How many writes the process lives; None for ever."""
        self.before = False
        """Whether the last write is not carried out."""
        self.writes = 0

    @property
    def layout(self) -> Layout:
        return self._engine.layout

    @property
    def poll_seconds(self) -> float:
        return self._engine.poll_seconds

    def count_write(self) -> None:
        """Count a write before it is carried out."""
        self.writes += 1
        if self.writes_left == 0:
            raise Killed
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left == 0 and self.before:
                raise Killed

    async def perform(self, operation: Operation) -> Reply:
        is_write = isinstance(operation, WriteItem | WriteItems | TransactItems)
        if is_write:
            self.count_write()
        reply = await self._engine.perform(operation)
        if is_write and self.writes_left == 0:
            raise Killed
        return reply

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        return await self._engine.read_changes(after, limit)

    async def create(self) -> None: ...

    async def close(self) -> None:
        await self._engine.close()


class Town:
    """Processes that use one file of SQLite and the same blobs."""

    def __init__(self, path: Path, clock: StepClock) -> None:
        self.file = path / "documents.db"
        self.clock = clock
        self.blobs = MemoryBlobs()
        self._opened: list[Holdfast] = []

    def process(self) -> tuple[Holdfast, Mortal]:
        """Return a further process, and the engine at whose writes it can be killed."""
        meter = Meter()
        engine = Mortal(SqliteEngine(str(self.file), clock=self.clock))
        store = Store(engine, Blobs(self.blobs, meter), url="sqlite://", meter=meter)
        ids = SeededIds(len(self._opened) + 1, self.clock)
        hf = Holdfast("sqlite://", store=store, clock=self.clock, ids=ids)
        self._opened.append(hf)
        return hf, engine

    def stored_keys(self) -> list[Key]:
        """Return the keys of all items that are stored."""
        connection = sqlite3.connect(self.file)
        try:
            rows = connection.execute("SELECT pk, sk FROM items ORDER BY pk, sk").fetchall()
        finally:
            connection.close()
        return [Key(pk, sk) for pk, sk in rows]

    async def close(self) -> None:
        for hf in self._opened:
            await hf.close()
