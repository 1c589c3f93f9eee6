"""What a search over segments takes and returns."""

from __future__ import annotations

from holdfast.errors import InvalidQuery, InvalidRequest
from holdfast.model.json_form import JsonForm
from holdfast.model.names import validated_name, validated_tenant

__all__ = [
    "ENTRIES_MAX",
    "HITS_MAX",
    "QUERY_LETTERS_MAX",
    "SegmentEntry",
    "SegmentHit",
    "validated_entry",
    "validated_hits",
    "validated_query",
    "validated_scope",
]

ENTRIES_MAX = 1_000
"""How many entries one call may add."""
HITS_MAX = 100
"""How many hits one search may return."""
QUERY_LETTERS_MAX = 1_000
_INDEX_MAX = 9_999_999
_TEXT_LETTERS_MAX = 200_000
_TITLE_LETTERS_MAX = 1_000
_BLANKS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


class SegmentEntry(JsonForm, frozen=True):
    """A segment of a document, as a search index gets it."""

    index: int
    """The number of the segment, from 1."""
    text: str
    """What is searched; what follows after 200,000 characters is not."""
    title: str = ""


class SegmentHit(JsonForm, frozen=True):
    """A segment that a search found.

    The title and the snippet are plain text of a document, which can contain anything: escape them
    before you show them.
    """

    document: str
    project: str
    workflow: str
    index: int
    """The number of the segment, from 1; for a document with pages, the page."""
    title: str
    snippet: str
    """One line of the segment's text, around the words that were found."""
    marks: list[tuple[int, int]]
    """Where the words that were found begin and end in the snippet, in ascending order."""
    score: float
    """How well the segment fits. Compare it only with other hits of the same search."""

    def parts(self) -> list[tuple[str, bool]]:
        """Return the snippet in parts: each text, and whether it is a word that was found."""
        parts: list[tuple[str, bool]] = []
        shown_to = 0
        for start, end in self.marks:
            parts += [(self.snippet[shown_to:start], False), (self.snippet[start:end], True)]
            shown_to = end
        parts.append((self.snippet[shown_to:], False))
        return [(text, is_found) for text, is_found in parts if text]


def validated_query(text: str) -> str:
    """Return the text of a search.

    Raises:
        InvalidQuery: it is not text, or too long.
    """
    if not isinstance(text, str):
        raise InvalidQuery(f"the text of a search must be text, got {text!r:.80}", field="text")
    if len(text) > QUERY_LETTERS_MAX:
        raise InvalidQuery(
            f"the text of a search must have at most {QUERY_LETTERS_MAX:,} characters, got "
            f"{len(text):,}",
            field="text",
        )
    return text


def validated_scope(tenant: str, **ids: str | None) -> None:
    """Check the names of a tenant, and of what is not None of its project, document and workflow.

    Raises:
        InvalidName: one of them cannot be a name.
    """
    validated_tenant(tenant)
    for what, id in ids.items():
        if id is not None:
            validated_name(id, what)


def validated_hits(limit: int) -> int:
    """Return how many hits a search may return.

    Raises:
        InvalidQuery: it is not an integer from 1 to 100.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= HITS_MAX:
        raise InvalidQuery(
            f"limit must be an integer from 1 to {HITS_MAX}, got {limit!r:.80}", field="limit"
        )
    return limit


def validated_entry(entry: SegmentEntry) -> SegmentEntry:
    """Return an entry without what is too long, and without what no index can store.

    Raises:
        InvalidRequest: it is no entry, or its index is not that of a segment.
    """
    if not isinstance(entry, SegmentEntry):
        raise InvalidRequest(
            f"entries must contain only SegmentEntry, got {entry!r:.80}", field="entries"
        )
    index = entry.index
    if not isinstance(index, int) or isinstance(index, bool) or not 1 <= index <= _INDEX_MAX:
        raise InvalidRequest(
            f"the index of an entry must be an integer from 1 to {_INDEX_MAX:,}, got {index!r:.80}",
            field="entries",
        )
    for name, value in (("text", entry.text), ("title", entry.title)):
        if not isinstance(value, str):
            raise InvalidRequest(
                f"the {name} of entry {index} must be text, got {value!r:.80}", field="entries"
            )
    return SegmentEntry(
        index, _stored(entry.text, _TEXT_LETTERS_MAX), _stored(entry.title, _TITLE_LETTERS_MAX)
    )


def _stored(text: str, letters_max: int) -> str:
    """Return text in one line, without half characters and control characters."""
    text = text[:letters_max].encode("utf-8", "replace").decode()
    return " ".join(text.translate(_BLANKS).split())
