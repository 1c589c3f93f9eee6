"""Checks when the reviewers of a review are reminded, and when it is escalated."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidRequest
from holdfast.model.durations import duration_text

__all__ = ["check_review_times"]


def check_review_times(
    *,
    expires_ms: int | None,
    remind_after_ms: int | None,
    escalate_after_ms: int | None,
    escalate_to: Sequence[str],
) -> None:
    """Check that reviewers are reminded, and a review is escalated, before it expires.

    Raises:
        InvalidRequest: it is not; ``field`` says which argument is wrong.
    """
    if escalate_to and escalate_after_ms is None:
        raise InvalidRequest(
            "escalate_to needs escalate_after=, the time after which these people may decide",
            field="escalate_to",
        )
    if expires_ms is None:
        return
    for field, after_ms in (
        ("remind_after", remind_after_ms),
        ("escalate_after", escalate_after_ms),
    ):
        if after_ms is not None and after_ms >= expires_ms:
            raise InvalidRequest(
                f"{field} must be shorter than expires, {duration_text(expires_ms)}, "
                f"got {duration_text(after_ms)}",
                field=field,
            )
