"""Progress reports of long operations."""

from __future__ import annotations

from holdfast.model.json_form import JsonForm

__all__ = ["BulkProgress", "SweepProgress"]


class BulkProgress(JsonForm, frozen=True, kw_only=True):
    """The progress of a bulk action on runs."""

    seen: int = 0
    """How many runs matched the filter so far."""
    done: int = 0
    refused: int = 0
    """Runs that had changed, so that the action no longer applied."""
    failed: int = 0
    cursor: str | None = None
    """Pass it to continue from here; None at the end."""
    errors: tuple[str, ...] = ()
    """The errors of the first few runs that failed."""


class SweepProgress(JsonForm, frozen=True, kw_only=True):
    """The progress of a sweep; in a dry run, what a sweep would do."""

    blobs: int = 0
    """How many blobs were checked."""
    kept: int = 0
    """Runs and shared answers with blobs that still exist."""
    young: int = 0
    """Runs and shared answers that are too young to decide."""
    freed: int = 0
    """Runs and shared answers that no longer exist."""
    deleted: int = 0
    """How many of their blobs were deleted."""
    foreign: int = 0
    """Blobs of neither kind. They are left alone."""
    leftovers: int = 0
    """Partial files and empty folders left behind by crashes."""
