"""How far a node has come, as the node itself says."""

from __future__ import annotations

import math

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["NodeProgress", "validated_progress"]

MESSAGE_BYTES_MAX = 1_024


class NodeProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a node, when it last reported any."""

    at_ms: int
    node: str
    branch: str = ""
    fraction: float | None = None
    """From 0 to 1; None if the node does not know."""
    message: str = ""


def validated_progress(fraction: object, message: object) -> tuple[float | None, str]:
    """Return the fraction and the message of a report.

    Raises:
        InvalidRequest: the fraction is not from 0 to 1, or the message is no text or too long.
    """
    if fraction is not None and (
        isinstance(fraction, bool)
        or not isinstance(fraction, int | float)
        or not math.isfinite(fraction)
        or not 0 <= fraction <= 1
    ):
        raise InvalidRequest(
            f"fraction must be a number from 0 to 1 or None, got {fraction!r:.80}",
            field="fraction",
        )
    if not isinstance(message, str):
        raise InvalidRequest(f"message must be a string, got {message!r:.80}", field="message")
    encoded = message.encode("utf-8", "replace")  # half a surrogate pair cannot be stored
    size = len(encoded)
    if size > MESSAGE_BYTES_MAX:
        raise InvalidRequest(
            f"message must have at most {MESSAGE_BYTES_MAX:,} bytes, got {size:,}; "
            "keep long texts in the state",
            field="message",
        )
    return None if fraction is None else float(fraction), encoded.decode()
