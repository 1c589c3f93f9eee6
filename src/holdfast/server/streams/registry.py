"""`Streams`: all followers of one server, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from litestar.exceptions import ServiceUnavailableException

from holdfast.errors import HoldfastError, TooManyRequests
from holdfast.handle import RunHandle
from holdfast.server.options import ServerOptions
from holdfast.server.streams.cursor import StreamCursor
from holdfast.server.streams.follower import Wanted, join_run
from holdfast.server.streams.hub import HubReplaced, RunHub
from holdfast.server.streams.message import EndReason, Message
from holdfast.server.streams.shared_reader import ReaderLimits

__all__ = ["Follower", "OpenStream", "Streams"]

# How long a hub without followers goes on reading: a follower that was cut off comes back soon.
_LINGER_SECONDS = 2.0
# How often the credentials of a follower are checked.
_CHECK_SECONDS = 2.0
# How long the end of a server waits for its followers to get their last message.
_SHUTDOWN_SECONDS = 5.0


class Follower(Protocol):
    """What a stream gets its messages from."""

    woken: asyncio.Event
    """Set when there may be something to take."""

    async def take(self) -> list[Message]:
        """Return the next messages; none if there are none yet."""
        ...

    async def ending(self) -> Message | None:
        """Return the last message, if nothing more is to come."""
        ...

    def end(self, reason: EndReason, code: str | None = None) -> Message:
        """Return the last message of a stream that ends for this reason."""
        ...

    def close(self) -> None:
        """Free what the follower uses."""
        ...


class OpenStream:
    """A stream that is checked and opened, and whose messages can be sent."""

    def __init__(
        self, streams: Streams, follower: Follower, first: Message, leave: Callable[[], None]
    ) -> None:
        self._streams = streams
        self._follower = follower
        self._first = first
        self._leave = leave
        self._is_closed = False

    async def batches(
        self, still_valid: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[list[Message], None]:
        """Yield messages as they come; the last one is an end."""
        options, follower = self._streams.options, self._follower
        time = asyncio.get_running_loop().time
        yield [self._first]
        check_at, beat_at = time() + _CHECK_SECONDS, time() + options.heartbeat_seconds
        while True:
            follower.woken.clear()
            if self._streams.is_stopping:
                yield [follower.end("shutdown")]
                return
            if time() >= check_at:
                ended = await self._check(still_valid)
                if ended is not None:
                    yield [ended]
                    return
                check_at = time() + _CHECK_SECONDS
            batch = await follower.take()
            if batch:
                yield batch
                beat_at = time() + options.heartbeat_seconds
                continue
            end = await follower.ending()
            if end is not None:
                yield [end]
                return
            if time() >= beat_at:
                yield [Message("heartbeat")]
                beat_at = time() + options.heartbeat_seconds
            await _wait(follower.woken, min(check_at, beat_at) - time())

    def close(self) -> None:
        """Free what the stream uses; to close it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._follower.close()
            self._leave()

    async def _check(self, still_valid: Callable[[], Awaitable[bool]]) -> Message | None:
        try:
            return None if await still_valid() else self._follower.end("revoked")
        except HoldfastError as error:  # nothing is known of the credentials: the stream must end
            return self._follower.end("error", error.code)


class Streams:
    """The streams of one server."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.is_stopping = False
        """Whether the server stops, so that all streams end."""
        self._limits = ReaderLimits(options.stream_messages_max, options.stream_bytes_max)
        self._hubs: dict[tuple[str, str], RunHub] = {}
        self._open: dict[OpenStream, Follower] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._all_left = asyncio.Event()

    @property
    def followers(self) -> int:
        """How many streams are open."""
        return len(self._open)

    @property
    def hubs(self) -> int:
        """How many runs are read for followers, or were until a moment ago."""
        return len(self._hubs)

    async def follow_run(
        self, run: RunHandle[Any], cursor: StreamCursor, wanted: Wanted
    ) -> OpenStream:
        """Open a stream of a run, after its cursor.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the cursor is not one of this run.
            TooManyRequests: the server has no room for another stream.
        """
        self.check_room()
        key = (run.tenant, run.id)
        while True:
            hub = self._hubs.get(key)
            if hub is None or hub.is_over:
                hub = self._hubs[key] = RunHub(run, self._limits)
            hub.joining += 1
            try:
                follower, first = await join_run(hub, cursor, wanted)
            except HubReplaced:
                if self._hubs.get(key) is hub:
                    del self._hubs[key]
                continue
            finally:
                hub.joining -= 1
                self._release(key, hub)
            return self.admit(follower, first, partial(self._release, key, hub))

    def check_room(self) -> None:
        """Check that another stream may be opened.

        Raises:
            TooManyRequests: the server has no room for another stream.
        """
        if self.is_stopping:
            raise ServiceUnavailableException("the server stops: connect again")
        if len(self._open) >= self.options.followers_max:
            raise TooManyRequests(
                f"the server has {len(self._open)} open streams and takes no more: try later"
            )

    def admit(self, follower: Follower, first: Message, leave: Callable[[], None]) -> OpenStream:
        """Return a stream of a new follower. ``leave`` is called when it is closed."""

        def left() -> None:
            del self._open[stream]
            leave()
            if not self._open:
                self._all_left.set()

        stream = OpenStream(self, follower, first, left)
        self._open[stream] = follower
        return stream

    async def shut_down(self) -> None:
        """End all streams: each tells its follower where to resume. Admit no more."""
        self.is_stopping = True
        self._all_left.clear()
        for follower in self._open.values():
            follower.woken.set()
        if self._open:
            await _wait(self._all_left, _SHUTDOWN_SECONDS)
        hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            await hub.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _release(self, key: tuple[str, str], hub: RunHub) -> None:
        """Close a hub that has no followers, now or soon."""
        if hub.is_used:
            return
        if hub.is_over or hub.events.main is None or self.is_stopping:
            self._close(key, hub)
        else:
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._close_unused, key, hub)

    def _close_unused(self, key: tuple[str, str], hub: RunHub) -> None:
        if not hub.is_used:
            self._close(key, hub)

    def _close(self, key: tuple[str, str], hub: RunHub) -> None:
        if self._hubs.get(key) is hub:
            del self._hubs[key]
        task = asyncio.create_task(hub.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or the time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
