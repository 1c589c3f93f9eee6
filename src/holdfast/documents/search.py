"""What `Documents` needs of a search over segments. The table is not for search."""

from __future__ import annotations

from typing import Protocol

__all__ = ["SearchRemoval"]


class SearchRemoval(Protocol):
    """Removes documents from a search index."""

    async def remove(self, tenant: str, document: str) -> None:
        """Remove all entries of a document; do nothing where there is none."""
        ...
