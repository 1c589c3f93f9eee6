"""A document's processing in memory, as a hub reads it, with counts of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.clock import ManualClock
from holdfast.errors import DocumentWorkflowNotFound
from holdfast.model.document import (
    STEP_LABELS,
    STEPS,
    DocumentSegment,
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    StepName,
)

__all__ = ["Processing"]


class Processing:
    """One workflow, which tests change and a hub reads: a `WorkflowSource`."""

    def __init__(self, total: int | None = None, *, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.row = DocumentWorkflow(
            id="w",
            tenant="default",
            document="d",
            project="p",
            file_uri="s3://inbox/report.pdf",
            file_name="report.pdf",
            file_type="application/pdf",
            status="in_progress",
            total_segments=total,
            created_at=self.now(),
            updated_at=self.now(),
        )
        self.stored: dict[StepName, DocumentStep] = {
            name: DocumentStep(name=name, label=STEP_LABELS[name]) for name in STEPS
        }
        self.pages: dict[int, DocumentSegment] = {}
        self.connections: dict[str, Mapping[str, Any]] = {}
        self.error: Exception | None = None
        self.segments_read = 0
        self.queries = 0
        self.workflow_reads = 0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)

    def change(self, **given: Any) -> None:
        self.row = msgspec.structs.replace(self.row, **given)

    def step(self, name: StepName, **given: Any) -> None:
        self.stored[name] = msgspec.structs.replace(self.stored[name], **given)

    def put(self, *indices: int, status: Any = "completed", error: str | None = None) -> None:
        for index in indices:
            segment = DocumentSegment(workflow="w", index=index, status=status, error=error)
            self.pages[index] = segment

    def delete(self) -> None:
        self.error = DocumentWorkflowNotFound("there is no document workflow 'w'")

    async def workflow(self) -> DocumentWorkflow:
        self.workflow_reads += 1
        if self.error is not None:
            raise self.error
        return self.row

    async def steps(self) -> Mapping[StepName, DocumentStep]:
        return dict(self.stored)

    async def segments(
        self, ranges: Sequence[tuple[int, int]], *, limit: int, eventual: bool
    ) -> DocumentSegmentPage:
        found: list[DocumentSegment] = []
        for first, last in ranges:
            assert 0 < first <= last
            self.queries += 1
            for index in sorted(self.pages):
                if first <= index <= last:
                    if len(found) == limit:
                        self.segments_read += limit
                        return DocumentSegmentPage(found, found[-1].index)
                    found.append(self.pages[index])
        self.segments_read += len(found)
        return DocumentSegmentPage(found, None)

    async def connect(self, connection: str, data: Mapping[str, Any]) -> None:
        self.connections[connection] = data

    async def disconnect(self, connection: str) -> None:
        self.connections.pop(connection, None)
