"""Documents in every state of their processing, for the tests of pages and streams."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from holdfast import Holdfast
from holdfast.model.document import Document, DocumentWorkflow, Project

__all__ = ["HOSTILE", "LONG_NAME", "Samples", "picture"]

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp.exe"
LONG_NAME = ("a long name with many words and averylongwordwithoutanyspacesinit " * 16)[:500]
TEXT = (
    "Dear Sir or Madam,\n\nthe boiler in the basement (serial number 4711-B) has lost pressure "
    "three times since March. Your technician replaced the valve on 3 June, and the fault came "
    "back on 9 June.\n\nYours faithfully\nJ. Tenant"
)
TABLE = [
    ["Date", "What was done", "Technician", "Parts", "Price (EUR)"],
    ["3 June", "Replaced the safety valve of the boiler", "M. Fitter", "Valve 22 mm", "180.00"],
    ["9 June", "Checked the pressure, found a leak", "M. Fitter", "", "60.00"],
]


def picture(width: int = 620, height: int = 877) -> bytes:
    """Return a PNG of a page with grey lines, as a scanner would make it."""
    rows: list[bytes] = []
    for y in range(height):
        is_line = 80 < y < height - 80 and y % 28 < 9
        inked = width - 90 - (y * 37) % 120 if is_line else 0
        row = bytes(120 if 70 < x < inked else 250 for x in range(width))
        rows.append(b"\0" + row)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


class Samples:
    """Makes documents of one tenant."""

    def __init__(self, hf: Holdfast, tenant: str = "default") -> None:
        self.hf = hf
        self.tenant = tenant

    async def project(self, name: str = "Warranty claims", **given: Any) -> Project:
        return await self.hf.documents.projects.create(name, tenant=self.tenant, **given)

    async def document(self, project: Project, name: str = "claim.pdf", **given: Any) -> Document:
        filled = {"file_uri": f"s3://inbox/{project.id}", "file_bytes": 1_480_213, **given}
        filled.setdefault("file_type", "application/pdf")
        return await self.hf.documents.add(project.id, file_name=name, tenant=self.tenant, **filled)

    async def begun(
        self, project: Project, name: str = "claim.pdf", **given: Any
    ) -> DocumentWorkflow:
        document = await self.document(project, name, **given)
        return await self.hf.documents.begin(document.id, tenant=self.tenant)

    async def running(
        self, project: Project, name: str = "claim.pdf", *, total: int = 12, done: int = 7
    ) -> DocumentWorkflow:
        """Return a document whose segments are analyzed; one of them has failed."""
        documents, tenant = self.hf.documents, self.tenant
        workflow = await self.begun(project, name)
        id = workflow.id
        await documents.set_status(id, "in_progress", execution_arn=f"doc-{id}", tenant=tenant)
        await documents.start_step(id, "segment_prep", tenant=tenant)
        await documents.update_workflow(id, total_segments=total, tenant=tenant)
        await documents.end_step(id, "segment_prep", tenant=tenant)
        for step in ("bda_processor", "transcribe", "webcrawler"):
            await documents.end_step(id, step, status="skipped", tenant=tenant)
        for step in ("format_parser", "paddleocr_processor", "segment_builder"):
            await documents.start_step(id, step, total=total, tenant=tenant)
            await documents.progress_step(id, step, done=total, tenant=tenant)
            await documents.end_step(id, step, tenant=tenant)
        await documents.start_step(id, "segment_analyzer", total=total, tenant=tenant)
        for index in range(1, done):
            await self.segment(workflow, index)
        error = "The model's answer was no JSON (3 attempts)."
        await documents.put_segment(id, done, status="failed", error=error, tenant=tenant)
        await documents.progress_step(id, "segment_analyzer", done=done, tenant=tenant)
        return await documents.workflow(id, tenant=tenant)

    async def failed(self, project: Project, name: str = "scan.pdf") -> DocumentWorkflow:
        """Return a document that could not be processed."""
        documents, tenant = self.hf.documents, self.tenant
        workflow = await self.begun(project, name)
        id, error = workflow.id, "The file is encrypted; remove the password and add it again."
        await documents.set_status(id, "in_progress", execution_arn=f"doc-{id}", tenant=tenant)
        await documents.start_step(id, "segment_prep", tenant=tenant)
        await documents.end_step(id, "segment_prep", status="failed", error=error, tenant=tenant)
        return await documents.set_status(
            id, "failed", error=f"segment_prep: {error}", tenant=tenant
        )

    async def segment(
        self,
        workflow: DocumentWorkflow,
        index: int,
        *,
        content: object = None,
        image: bytes | None = None,
        analysis: list[Any] | None = None,
    ) -> None:
        """Store a segment with its content."""
        documents, tenant = self.hf.documents, self.tenant
        if content is None:
            content = {"index": index, "title": "", "text": TEXT, "tables": [], "source": "text"}
        stored = content if isinstance(content, bytes) else json.dumps(content).encode()
        name = f"{workflow.id}/segments/{index}.json"
        s3_key = await documents.files.put_blob(
            stored, document=workflow.document, name=name, tenant=tenant
        )
        image_uri = None
        if image is not None:
            image_uri = await documents.files.put_blob(
                image,
                document=workflow.document,
                name=f"{workflow.id}/images/{index}.png",
                tenant=tenant,
            )
        await documents.put_segment(
            workflow.id,
            index,
            s3_key=s3_key,
            image_uri=image_uri,
            image_analysis=analysis or [{"kind": "summary", "text": "A letter about a boiler."}],
            tenant=tenant,
        )
