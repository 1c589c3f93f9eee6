"""Readers: how the text of a document is found, on this machine or with Amazon Textract."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from holdfast import Context, tool
from holdfast.clock import Clock, SystemClock
from warranty.documents import ETAG, LOCAL_BUCKET
from warranty.folder import DocumentFolder

__all__ = ["LocalReader", "Reader", "Readers", "Reading", "TextractReader", "UnreadableDocument"]

FILE_BYTES_MAX = 10 * 1024 * 1024  # as for Textract's DetectDocumentText
PAGES_MAX = 50
TEXT_CHARS_MAX = 100_000
TEXTRACT_PAGE_USD = 0.0015
"""DetectDocumentText in us-east-1, for each of the first million pages of a month; 2026-11."""

_IMAGES = frozenset({".jpeg", ".jpg", ".png"})
_SCANS = _IMAGES | {".pdf", ".tif", ".tiff"}
_TEXTS = frozenset({".md", ".text", ".txt"})
_POLL_SECONDS = 2.0


class UnreadableDocument(Exception):
    """The document has no text that can be read. Repeating does not help."""


@dataclass
class Reading:
    """The text of a document."""

    text: str
    pages: int
    by: str
    usd: float = 0.0


class Reader(Protocol):
    """Reads documents inside a node. What costs money or changes anything is a recorded call."""

    async def read(self, ctx: Context, bucket: str, key: str, version: str) -> Reading: ...


class Readers:
    """Reads local documents on this machine, and all others with Textract."""

    def __init__(self, local: Reader, textract: Reader) -> None:
        self._local, self._textract = local, textract

    async def read(self, ctx: Context, bucket: str, key: str, version: str) -> Reading:
        reader = self._local if bucket == LOCAL_BUCKET else self._textract
        return await reader.read(ctx, bucket, key, version)


class LocalReader:
    """Reads text files and PDF files with text. A scan has none: that needs Textract."""

    def __init__(self, folder: DocumentFolder, passwords: Path) -> None:
        """``passwords`` is a file with one password for locked PDFs in each line."""
        self._folder, self._passwords = folder, passwords
        self._read = tool(name="read_file")(self._read_file)

    async def read(self, ctx: Context, bucket: str, key: str, version: str) -> Reading:
        return await ctx.call(self._read, key, version)

    def _read_file(self, key: str, version: str) -> Reading:
        data = self._folder.load(key, version)
        if len(data) > FILE_BYTES_MAX:
            raise UnreadableDocument(
                f"{key!r:.200} must not have more than {FILE_BYTES_MAX:,} bytes, got {len(data):,}"
            )
        kind = PurePosixPath(key).suffix.lower()
        if kind == ".pdf":
            pages = pdf_pages(data, key=key, passwords=self._read_passwords())
        elif kind in _TEXTS:
            try:
                pages = [data.decode("utf-8-sig")]
            except UnicodeDecodeError as error:
                raise UnreadableDocument(f"{key!r:.200} must be UTF-8: {error.reason}") from None
        else:
            raise UnreadableDocument(f"{key!r:.200} must be a PDF or a text file, got {kind!r:.20}")
        return Reading(_checked_text("\n".join(pages), key), len(pages), "local")

    def _read_passwords(self) -> list[str]:
        return self._passwords.read_text().split() if self._passwords.exists() else []


def pdf_pages(data: bytes, *, key: str, passwords: list[str]) -> list[str]:
    """Return the text of each page of a PDF.

    Raises:
        UnreadableDocument: the file is damaged, has too many pages, or no password opens it.
    """
    try:
        from pypdf import PdfReader
    except ImportError:
        raise UnreadableDocument("reading a PDF needs pypdf: pip install pypdf") from None
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not any(map(reader.decrypt, ["", *passwords])):
            raise UnreadableDocument(
                f"{key!r:.200} is locked: add its password to passwords.txt, and retry the run"
            )
        if len(reader.pages) > PAGES_MAX:
            raise UnreadableDocument(
                f"{key!r:.200} must not have more than {PAGES_MAX} pages, got {len(reader.pages)}"
            )
        return [page.extract_text().strip() for page in reader.pages]
    except UnreadableDocument:
        raise
    except Exception as error:  # a damaged file makes pypdf raise nearly anything
        raise UnreadableDocument(f"{key!r:.200} is damaged: {type(error).__name__}") from error


class TextractReader:
    """Reads images and PDF files in S3 with Amazon Textract.

    An image is one call. A PDF is two: one starts a job, the other collects its pages when it has
    finished. Each is recorded, so a crash between the two does not start, or pay for, a second job.
    """

    def __init__(self, client: Callable[[], Any], *, clock: Clock | None = None) -> None:
        """``client`` returns a boto3 client for ``textract``; it is called for documents in S3."""
        self._client = client
        self._clock = clock or SystemClock()
        self._detect = tool(name="detect_text")(self._detect_text)
        self._start = tool(name="start_text_detection")(self._start_detection)
        self._collect = tool(name="collect_text", timeout="15m")(self._collect_text)

    async def read(self, ctx: Context, bucket: str, key: str, version: str) -> Reading:
        kind = PurePosixPath(key).suffix.lower()
        if kind not in _SCANS:
            raise UnreadableDocument(
                f"{key!r:.200} must be one of {', '.join(sorted(_SCANS))} for Textract"
            )
        if kind in _IMAGES:
            return await ctx.call(self._detect, bucket, key, version)
        job = await ctx.call(self._start, bucket, key, version)
        return await ctx.call(self._collect, job, key)

    def _detect_text(self, bucket: str, key: str, version: str) -> Reading:
        found = self._client().detect_document_text(Document=_s3_object(bucket, key, version))
        return _reading(found["Blocks"], key)

    def _start_detection(
        self, bucket: str, key: str, version: str, *, idempotency_key: str = ""
    ) -> str:
        # Textract starts one job for a token, however often it is asked.
        token = hashlib.sha256(idempotency_key.encode()).hexdigest()
        location = _s3_object(bucket, key, version)
        begun = self._client().start_document_text_detection(
            DocumentLocation=location, ClientRequestToken=token
        )
        job: str = begun["JobId"]
        return job

    async def _collect_text(self, job: str, key: str) -> Reading:
        blocks: list[Any] = []
        more: dict[str, str] = {}
        while True:
            found = await asyncio.to_thread(self._get_page, job, more)
            if found["JobStatus"] == "IN_PROGRESS":
                await self._clock.sleep(_POLL_SECONDS)
                continue
            if found["JobStatus"] == "FAILED":
                raise UnreadableDocument(
                    f"Textract cannot read {key!r:.200}: {found.get('StatusMessage', '')[:200]}"
                )
            blocks += found.get("Blocks", ())
            if not found.get("NextToken"):
                return _reading(blocks, key)
            more = {"NextToken": found["NextToken"]}

    def _get_page(self, job: str, more: dict[str, str]) -> Any:
        return self._client().get_document_text_detection(JobId=job, **more)


def _s3_object(bucket: str, key: str, version: str) -> dict[str, Any]:
    place = {"Bucket": bucket, "Name": key}
    # A bucket without versions has only its newest object.
    if not version.startswith(ETAG):
        place["Version"] = version
    return {"S3Object": place}


def _reading(blocks: list[Any], key: str) -> Reading:
    pages = sum(block["BlockType"] == "PAGE" for block in blocks) or 1
    lines = [block["Text"] for block in blocks if block["BlockType"] == "LINE"]
    text = _checked_text("\n".join(lines), key)
    return Reading(text, pages, "textract", round(pages * TEXTRACT_PAGE_USD, 9))


def _checked_text(text: str, key: str) -> str:
    if not text.strip():
        raise UnreadableDocument(f"{key!r:.200} has no text; a scan needs Textract")
    if len(text) > TEXT_CHARS_MAX:
        raise UnreadableDocument(
            f"{key!r:.200} must not have more than {TEXT_CHARS_MAX:,} characters of text, "
            f"got {len(text):,}"
        )
    return text.encode(errors="replace").decode()
