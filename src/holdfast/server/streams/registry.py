"""`Streams`: all followers of one server, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, ServerStopping, TooManyRequests
from holdfast.handle import RunHandle
from holdfast.model.run import RunPage
from holdfast.server.options import ServerOptions
from holdfast.server.streams.cursor import StreamCursor
from holdfast.server.streams.follower import Wanted, join_run
from holdfast.server.streams.hub import HubReplaced, RunHub
from holdfast.server.streams.list_poller import ListCursor, ListPoller, join_list
from holdfast.server.streams.message import EndReason, StreamMessage
from holdfast.server.streams.shared_reader import ReaderLimits
from holdfast.server.streams.view_poller import ViewPoller
from holdfast.server.streams.waiting import wait_at_most
from holdfast.server.streams.workflow_follower import join_workflow
from holdfast.server.streams.workflow_hub import WorkflowCursor, WorkflowHub, WorkflowSource

__all__ = ["Follower", "OpenStream", "Streams"]

# How long a hub without followers goes on reading: a follower that was cut off comes back soon.
_LINGER_SECONDS = 2.0
# How often the credentials of a follower are checked.
_CHECK_SECONDS = 2.0
# How long the end of a server waits for its followers to get their last message.
_SHUTDOWN_SECONDS = 5.0
# Each list and each document workflow that is followed costs reads all the time.
_POLLERS_MAX = 1000

_Key: TypeAlias = tuple[str, ...]


class Follower(Protocol):
    """What a stream gets its messages from."""

    woken: asyncio.Event
    """Set when there may be something to take."""

    async def take(self) -> list[StreamMessage]:
        """Return the next messages; none if there are none yet."""
        ...

    async def ending(self) -> StreamMessage | None:
        """Return the last message, if nothing more is to come."""
        ...

    def end(self, reason: EndReason, code: str | None = None) -> StreamMessage:
        """Return the last message of a stream that ends for this reason."""
        ...

    def close(self) -> None:
        """Free what the follower uses."""
        ...


class _Hub(Protocol):
    """What several followers share."""

    joining: int

    @property
    def is_over(self) -> bool: ...

    @property
    def is_used(self) -> bool: ...

    @property
    def is_worth_keeping(self) -> bool: ...

    async def close(self) -> None: ...


H = TypeVar("H", bound=_Hub)


class OpenStream:
    """A stream that is checked and opened, and whose messages can be sent."""

    def __init__(
        self, streams: Streams, follower: Follower, first: StreamMessage, leave: Callable[[], None]
    ) -> None:
        self._streams = streams
        self._follower = follower
        self._first = first
        self._leave = leave
        self._is_closed = False

    async def batches(
        self, still_valid: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[list[StreamMessage], None]:
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
                yield [StreamMessage("heartbeat")]
                beat_at = time() + options.heartbeat_seconds
            await wait_at_most(follower.woken, min(check_at, beat_at) - time())

    def close(self) -> None:
        """Free what the stream uses; to close it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._follower.close()
            self._leave()

    async def _check(self, still_valid: Callable[[], Awaitable[bool]]) -> StreamMessage | None:
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
        self._hubs: dict[_Key, _Hub] = {}
        self._open: dict[OpenStream, Follower] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._all_left = asyncio.Event()

    @property
    def followers(self) -> int:
        """How many streams are open."""
        return len(self._open)

    @property
    def hubs(self) -> int:
        """How many runs, lists and document workflows are read, or were until a moment ago."""
        return len(self._hubs)

    async def follow_run(
        self, run: RunHandle[Any], cursor: StreamCursor, wanted: Wanted
    ) -> OpenStream:
        """Open a stream of a run, after its cursor.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the cursor is not one of this run.
            TooManyRequests: the server has no room for another stream.
            ServerStopping: the server stops.
        """
        key = ("run", run.tenant, run.id)

        def make() -> RunHub:
            return RunHub(run, self._limits)

        return await self._follow(key, make, lambda hub: join_run(hub, cursor, wanted))

    async def follow_list(
        self, key: str, read: Callable[[], Awaitable[RunPage]], after: ListCursor | None
    ) -> OpenStream:
        """Open a stream of a list of runs. ``key`` names what ``read`` reads.

        Raises:
            TooManyRequests: the server has no room for another stream or list.
            ServerStopping: the server stops.
        """

        def make() -> ListPoller:
            self._check_pollers()
            return ListPoller(read, poll_seconds=self.options.list_poll_seconds)

        return await self._follow(("list", key), make, lambda poller: join_list(poller, after))

    async def follow_workflow(
        self,
        key: tuple[str, str],
        source: WorkflowSource,
        after: WorkflowCursor | None,
        *,
        clock: Clock,
        follow: bool,
        data: Mapping[str, Any],
    ) -> OpenStream:
        """Open a stream of the processing of a document. ``key`` has the tenant and the id.

        ``data`` is stored with the connection.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
            TooManyRequests: the server has no room for another stream or workflow.
            ServerStopping: the server stops.
        """

        def make() -> WorkflowHub:
            self._check_pollers()
            seconds = self.options.list_poll_seconds
            return WorkflowHub(source, clock=clock, limits=self._limits, poll_seconds=seconds)

        return await self._follow(
            ("workflow", *key),
            make,
            lambda hub: join_workflow(hub, after, follow=follow, data=data),
        )

    async def _follow(
        self,
        key: _Key,
        make: Callable[[], H],
        join: Callable[[H], Awaitable[tuple[Follower, StreamMessage]]],
    ) -> OpenStream:
        while True:
            self._check_room()
            hub = cast("H | None", self._hubs.get(key))
            if hub is None or hub.is_over:
                hub = self._hubs[key] = make()
            hub.joining += 1
            try:
                follower, first = await join(hub)
            except HubReplaced:
                if self._hubs.get(key) is hub:
                    del self._hubs[key]
                continue
            finally:
                hub.joining -= 1
                self._release(key, hub)
            return self._admit(follower, first, partial(self._release, key, hub))

    def _check_pollers(self) -> None:
        if sum(isinstance(hub, ViewPoller) for hub in self._hubs.values()) >= _POLLERS_MAX:
            raise TooManyRequests(
                f"the server follows {_POLLERS_MAX} lists and document workflows: try later"
            )

    def _check_room(self) -> None:
        if self.is_stopping:
            raise ServerStopping
        if len(self._open) >= self.options.followers_max:
            raise TooManyRequests(
                f"the server has {len(self._open)} open streams and takes no more: try later"
            )

    def _admit(
        self, follower: Follower, first: StreamMessage, leave: Callable[[], None]
    ) -> OpenStream:

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
            await wait_at_most(self._all_left, _SHUTDOWN_SECONDS)
        hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            await hub.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _release(self, key: _Key, hub: _Hub) -> None:
        """Close a hub that has no followers, now or soon."""
        if hub.is_used:
            return
        if not hub.is_worth_keeping or self.is_stopping:
            self._close(key, hub)
        else:
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._close_unused, key, hub)

    def _close_unused(self, key: _Key, hub: _Hub) -> None:
        if not hub.is_used:
            self._close(key, hub)

    def _close(self, key: _Key, hub: _Hub) -> None:
        if self._hubs.get(key) is hub:
            del self._hubs[key]
        task = asyncio.create_task(hub.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
