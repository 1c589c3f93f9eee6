"""How far something has come that takes long: values that are yielded on the way."""

from __future__ import annotations

import msgspec

__all__ = ["BulkProgress", "SweepProgress"]


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far acting on many runs has come."""

    seen: int = 0
    """How many runs of the list fitted the filter so far."""
    done: int = 0
    refused: int = 0
    """Runs that had ended, or gone on, by the time that their turn came."""
    failed: int = 0
    cursor: str | None = None
    """Pass it on to go on from here; None once everything was seen."""
    errors: tuple[str, ...] = ()
    """What went wrong with the first few that failed."""


class SweepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a sweep has come; after a dry run, what one would do."""

    blobs: int = 0
    """How many blobs were looked at."""
    kept: int = 0
    """Runs, each with all its blobs, that are still there; and shared answers."""
    young: int = 0
    """Of these, what was begun too lately to tell whether anything names its blobs."""
    freed: int = 0
    """Of these, what nothing names any more."""
    deleted: int = 0
    """How many blobs those had."""
    foreign: int = 0
    """Blobs that are neither: they are left alone."""
    leftovers: int = 0
    """Half-written files and empty folders that crashes had left behind."""
