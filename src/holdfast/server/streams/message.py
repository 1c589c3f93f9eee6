"""Messages of a stream, and their form as server-sent events and over a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "CLOSE_CODES",
    "EndReason",
    "MessageKind",
    "StreamMessage",
    "end_message",
    "event_frame",
    "socket_text",
]

MessageKind: TypeAlias = Literal[
    "snapshot",
    "event",
    "text",
    "ephemeral",
    "heartbeat",
    "end",
    "run",
    "gone",
    "workflow",
    "step",
    "segment",
]
"""What a message tells; docs/guides/streams.md and document-pages.md have tables of them."""

EndReason: TypeAlias = Literal[
    "ended", "caught_up", "shutdown", "too_slow", "deleted", "revoked", "error"
]
"""Why a stream ends. ``caught_up``: the caller asked only for what existed."""

CLOSE_CODES: dict[EndReason, int] = {
    "ended": 1000,
    "caught_up": 1000,
    "shutdown": 1012,
    "too_slow": 1013,
    "deleted": 4404,
    "revoked": 4401,
    "error": 1011,
}
"""The code with which a WebSocket is closed after an end."""

_RETRY_MS = 1000


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message: its kind, its JSON, and the id by which a follower resumes after it."""

    kind: MessageKind
    data: bytes = b"{}"
    id: str | None = None
    reason: EndReason | None = None
    """Of an end: why."""


def end_message(
    reason: EndReason, *, resume: str, status: str | None = None, code: str | None = None
) -> StreamMessage:
    """Return the last message of a stream. ``code`` names the error that ended it."""
    told: dict[str, Any] = {"reason": reason, "status": status, "resume": resume}
    if code is not None:
        told["code"] = code
    return StreamMessage("end", msgspec.json.encode(told), resume, reason)


def event_frame(message: StreamMessage) -> bytes:
    """Return a message as a server-sent event. A heartbeat is a comment."""
    if message.kind == "heartbeat":
        return b": heartbeat\n\n"
    id = b"" if message.id is None else b"id: %b\n" % message.id.encode()
    # A browser connects again after the end: it must not do so at once.
    retry = b"retry: %d\n" % _RETRY_MS if message.kind == "end" else b""
    return b"%b%bevent: %b\ndata: %b\n\n" % (id, retry, message.kind.encode(), message.data)


def socket_text(message: StreamMessage) -> str:
    """Return a message as the text of a WebSocket message."""
    id = b"null" if message.id is None else msgspec.json.encode(message.id)
    form = b'{"kind":"%b","id":%b,"data":%b}'
    return (form % (message.kind.encode(), id, message.data)).decode()
