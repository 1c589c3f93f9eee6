"""Follows a stream of a server: reconnects where it was cut, and ends where the server says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.client.connection import Backoff, ServerConnection
from holdfast.client.sse import ServerSentEvent, SseParser
from holdfast.errors import (
    HoldfastError,
    InvalidResponse,
    RunNotFound,
    ServerUnavailable,
    TooManyRequests,
    Unauthenticated,
)
from holdfast.errors.registry import error_class

__all__ = ["ReceivedMessage", "follow"]

HEARTBEAT_SECONDS = 15.0
"""How often a server sends a heartbeat, by default."""
_SILENT_BEATS = 2.5
# Heartbeats, and kinds of a newer server, are not for callers.
_KINDS = frozenset({"snapshot", "event", "text", "ephemeral"})
# Each connection begins with it, also one that then fails: it is no progress.
_FIRST = "snapshot"
# The server tells where to resume, and goes on elsewhere or soon again.
_RESUMED = frozenset({"shutdown", "too_slow", "error"})


class ReceivedMessage(NamedTuple):
    """A message of a stream: its kind and its JSON."""

    kind: str
    value: Any


async def follow(
    connection: ServerConnection,
    run: str,
    *,
    tenant: str | None,
    query: Mapping[str, Any],
    after: str | None,
) -> AsyncGenerator[ReceivedMessage | None, None]:
    """Yield None when the stream is open, then its messages; the last one is its end.

    A stream that is cut, or silent for longer than two heartbeats, is opened again after the last
    id that it had, so that each recorded message arrives once and in order.

    Raises:
        RunNotFound: there is no such run, or it was deleted.
        Unauthenticated: the credentials are not valid, or no longer.
        ServerUnavailable: the server did not answer for the whole time limit of the client.
    """
    place = _Place(after)
    backoff = connection.backoff()
    is_open = False
    while True:
        was_open = False
        try:
            async with connection.open_stream(
                "stream",
                query=query,
                last_id=place.id,
                tenant=tenant,
                silence_seconds=HEARTBEAT_SECONDS * _SILENT_BEATS,
                names={"id": run},
            ) as response:
                was_open = True
                if not is_open:
                    is_open = True
                    yield None
                parser = SseParser()
                async for chunk in response.aiter_bytes():
                    for message in parser.feed(chunk):
                        if place.take(message):
                            if message.name != _FIRST:
                                place.note_progress()
                                backoff.reset()
                            yield ReceivedMessage(message.name, _decoded(message))
                        if place.end is not None:
                            break
                    if place.end is not None:
                        break
        except HoldfastError as error:
            place.failed = error
        if (end := place.ending(run)) is not None:
            yield ReceivedMessage("end", end)
            return
        if was_open and not place.fails_again:
            backoff.renew()
        await _wait(backoff, place)


class _Place:
    """How far a stream was read, and why its last connection ended."""

    def __init__(self, after: str | None) -> None:
        self.id = after
        self.end: dict[str, Any] | None = None
        self.failed: HoldfastError | None = None
        self.retry_seconds: float | None = None
        self.fails_again = False
        """Whether the server ended this connection and the one before with an error."""
        self._has_failed = False

    def note_progress(self) -> None:
        """Forget that earlier connections failed."""
        self._has_failed = False

    def take(self, message: ServerSentEvent) -> bool:
        """Note a message; return whether it is one for the caller."""
        if message.retry_ms is not None:
            self.retry_seconds = message.retry_ms / 1000
        if message.name == "end":
            ending: object = _decoded(message)
            self.end = cast(dict[str, Any], ending) if isinstance(ending, dict) else {}
            resume = self.end.get("resume")
            self.id = resume if isinstance(resume, str) else message.id or self.id
            return False
        self.id = message.id or self.id
        return message.name in _KINDS

    def ending(self, run: str) -> dict[str, Any] | None:
        """Return what the server said if the stream has ended for good; otherwise None.

        Raises:
            RunNotFound: the run was deleted.
            Unauthenticated: the credentials were revoked.
            HoldfastError: the server refused the stream.
        """
        end, self.end = self.end, None
        has_failed = end is not None and end.get("reason") == "error"
        self.fails_again, self._has_failed = has_failed and self._has_failed, has_failed
        if self.failed is not None and not self.failed.retryable:
            raise self.failed
        if end is None:
            return None
        reason = end.get("reason")
        if reason == "deleted":
            raise RunNotFound(f"run {run!r} was deleted while it was followed")
        if reason == "revoked":
            raise Unauthenticated("the credentials were revoked while a run was followed")
        if reason == "error":
            failed = error_class(str(end.get("code")))
            if failed is not None and not failed.retryable:
                raise failed
        return None if reason in _RESUMED else end


async def _wait(backoff: Backoff, place: _Place) -> None:
    failed, place.failed = place.failed, None
    at_least, place.retry_seconds = place.retry_seconds, None
    if isinstance(failed, TooManyRequests):
        at_least = max(at_least or 0.0, failed.retry_after_seconds)
    if not await backoff.wait(at_least):
        raise failed or ServerUnavailable("the server ends the stream again and again")


def _decoded(message: ServerSentEvent) -> Any:
    try:
        return msgspec.json.decode(message.data)
    except msgspec.MsgspecError:
        raise InvalidResponse(f"a message {message.name!r:.40} of the stream is not JSON") from None
