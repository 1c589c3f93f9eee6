"""Which search an open store has, unless its caller names one."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.clock import Clock, Ids
from holdfast.documents.search import SegmentSearch
from holdfast.documents.search_file import MEMORY
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.errors import InvalidRequest, InvalidUrl
from holdfast.storage.open import is_in_memory, sqlite_paths

__all__ = ["SEARCH_SUFFIX", "SearchChoice", "chosen_search", "search_beside"]

SearchChoice: TypeAlias = SegmentSearch | Literal["default"] | None
"""A search; ``"default"``, which is the one beside the store; or None, no search."""

SEARCH_SUFFIX = ".search"
"""What follows the name of a store's file in the name of its search index."""


def chosen_search(
    search: SearchChoice, url: str, *, clock: Clock | None = None, ids: Ids | None = None
) -> SegmentSearch | None:
    """Return the search that a caller chose for the store at an address.

    Raises:
        InvalidRequest: it is no search.
    """
    if search == "default":
        return search_beside(url, clock=clock, ids=ids)
    if search is not None and not isinstance(search, SegmentSearch):
        raise InvalidRequest(
            f"search must be a SegmentSearch, 'default' or None, got {search!r:.80}; "
            "holdfast.integrations.search_address.open_search returns one for an address",
            field="search",
        )
    return search


def search_beside(
    url: str, *, clock: Clock | None = None, ids: Ids | None = None
) -> SegmentSearch | None:
    """Return the search of a store in a file or in memory; None for a table of DynamoDB.

    Nothing is opened before the first use.
    """
    try:
        path = MEMORY if is_in_memory(url) else f"{sqlite_paths(url)[0]}{SEARCH_SUFFIX}"
    except InvalidUrl:
        return None
    return SqliteSegmentSearch(path, clock=clock, ids=ids)
