"""What is stored of each segment: its content as JSON, and a record that says where that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

__all__ = ["SegmentContent", "SegmentRecord", "Source", "is_blank"]

Source = Literal["text", "ocr", "transcript", "web", "bda"]

TEXT_CHARS_MAX = 200_000
_CELLS_MAX = 20_000
_CELL_CHARS_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class SegmentContent:
    """The raw data of a segment; its ``s3_key`` leads to it."""

    index: int
    """From 1."""
    title: str = ""
    text: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Each with ``rows``, which are lists of texts."""
    source: Source = "text"
    description: str = ""
    """What Bedrock Data Automation says about it."""
    ocr: dict[str, Any] | None = None
    """The engine and its confidence, if the text was recognized."""
    address: str = ""
    """Where a page of the web was found."""
    start_seconds: float | None = None
    end_seconds: float | None = None
    image_uri: str = ""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> SegmentContent:
        """Return the content that was stored as JSON."""
        return cls(**stored)

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON of a bounded size."""
        return asdict(
            replace(
                self,
                title=_storable(self.title)[:500],
                text=_storable(self.text)[:TEXT_CHARS_MAX],
                description=_storable(self.description)[:TEXT_CHARS_MAX],
                tables=_bounded_tables(self.tables),
            )
        )

    def prompt_text(self) -> str:
        """Return what a model is shown. The text has the tables in their places."""
        title = self.title if self.title not in self.text[:600] else ""
        parts = (title, self.text, self.description)
        return "\n\n".join(part for part in parts if part.strip())

    def search_text(self) -> str:
        """Return what a search looks at, beside the title."""
        return "\n".join(part for part in (self.text, self.description) if part)


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """Where the content of a segment is; a few hundred bytes of JSON."""

    uri: str = ""
    image_uri: str = ""
    needs_ocr: bool = False
    error: str = ""
    """Why there is no content."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> SegmentRecord:
        """Return the record that was stored as JSON."""
        return cls(**stored)

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}


def is_blank(content: SegmentContent) -> bool:
    """Return whether a segment says nothing: no model is asked about it."""
    return not any(character.isalnum() for character in content.prompt_text())


def _bounded_tables(tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows of all tables, up to a number of cells and of characters."""
    bounded: list[dict[str, Any]] = []
    cells, chars = _CELLS_MAX, TEXT_CHARS_MAX
    for table in tables:
        rows: list[list[str]] = []
        for row in table["rows"]:
            if cells <= 0 or chars <= 0:
                break
            rows.append([_storable(str(cell))[:_CELL_CHARS_MAX] for cell in row[:cells]])
            cells -= max(1, len(row))
            chars -= sum(map(len, rows[-1]))
        if rows:
            bounded.append({"rows": rows})
    return bounded


def _storable(text: str) -> str:
    """Return a text without lone surrogates, which no store takes."""
    return text.encode(errors="replace").decode()
