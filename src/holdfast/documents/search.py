"""The search over segments. The table is not for search: it only lists.

An index of a search is derived from the store. It can be lost and built again, and it is never
asked whether a document exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from holdfast.errors import SearchNotConfigured
from holdfast.model.segment_search import SegmentEntry, SegmentHit

__all__ = ["SegmentSearch", "required_search"]


@runtime_checkable
class SegmentSearch(Protocol):
    """Finds segments of documents by their words.

    All methods raise `SearchUnavailable` if the same call may succeed later, and
    `SearchIndexDamaged` if the index must be built again.
    """

    async def add(
        self,
        tenant: str,
        project: str,
        document: str,
        workflow: str,
        entries: Iterable[SegmentEntry],
    ) -> None:
        """Add segments, or replace those of the same workflow and index.

        A document is found by the segments of one workflow. The first entries of another workflow
        remove those of earlier ones.

        Raises:
            InvalidRequest: an entry or an id is not valid, or there are more than 1,000 entries.
        """
        ...

    async def remove(self, tenant: str, document: str) -> None:
        """Remove all segments of a document; do nothing where there is none."""
        ...

    async def clear(self, tenant: str) -> None:
        """Remove all segments of a tenant, before they are indexed again.

        This also repairs an index that is damaged.
        """
        ...

    async def search(
        self,
        tenant: str,
        text: str,
        *,
        project: str | None = None,
        document: str | None = None,
        limit: int = 20,
    ) -> list[SegmentHit]:
        """Return the segments that fit a question best, the best first.

        Segments with more of the words, and with rarer ones, come first. Words such as "the" are
        ignored. A phrase in quotes must occur, ``-word`` must not, and ``word*`` is the beginning
        of a word. Any text is a valid question.

        Raises:
            InvalidQuery: the text has more than 1,000 characters, or a limit that is not from 1
                to 100.
            InvalidName: an id is not valid.
        """
        ...

    async def close(self) -> None:
        """Release files and connections."""
        ...


def required_search(search: SegmentSearch | None) -> SegmentSearch:
    """Return the search of a store.

    Raises:
        SearchNotConfigured: it has none; the message says how to configure one.
    """
    if search is None:
        raise SearchNotConfigured(
            "this store has no search over segments. Set HOLDFAST_SEARCH to "
            "sqlite:///search.db (an index in a file of one machine) or to "
            "opensearch+https://HOST (an index that several machines share), or pass "
            "Holdfast(…, search=…)"
        )
    return search
