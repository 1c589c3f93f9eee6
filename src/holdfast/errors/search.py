"""Errors about the search over segments of documents."""

from __future__ import annotations

from holdfast.errors.refusals import Refused

__all__ = ["SearchIndexDamaged", "SearchNotConfigured", "SearchUnavailable"]


class SearchNotConfigured(Refused):
    """This store has no search: pass ``Holdfast(…, search=…)``, or set HOLDFAST_SEARCH."""

    code = "search_not_configured"


class SearchUnavailable(Refused):
    """The search index does not respond now; the same call may succeed later."""

    code = "search_unavailable"
    retryable = True


class SearchIndexDamaged(Refused):
    """The search index cannot be read. It can be built again: ``holdfast documents reindex``."""

    code = "search_index_damaged"
