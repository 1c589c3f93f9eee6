"""What of a segment's content is searched: its title, its text, and the cells of its tables.

The content is the JSON that a pipeline stores at ``s3_key``: ``{"title", "text", "tables"}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.segment_search import SegmentEntry

__all__ = ["segment_entry"]


def segment_entry(index: int, content: bytes) -> SegmentEntry:
    """Return what a search index gets of a segment's content.

    Raises:
        InvalidRequest: the content is not a JSON object.
    """
    try:
        stored: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"the content of segment {index} is not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise InvalidRequest(f"the content of segment {index} must be a JSON object")
    facts = cast(dict[str, Any], stored)
    parts = [_text(facts.get("text")), *_cells(facts.get("tables"))]
    return SegmentEntry(index, "\n".join(filter(None, parts)), _text(facts.get("title")))


def _cells(tables: object) -> Iterator[str]:
    """Yield the rows of tables, with the cells of a row in one line."""
    for table in _list(tables):
        for row in _list(cast(dict[str, Any], table).get("rows") if isinstance(table, dict) else 0):
            yield " ".join(str(cell) for cell in _list(row) if isinstance(cell, str | int | float))


def _list(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
