"""The requests about one run: calls of its routes, its streams, and waits for a status."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import member_of, page_of, read
from holdfast.client.streams import ReceivedMessage
from holdfast.client.streams import follow as follow_run
from holdfast.engine.journal.endings import RunOutcome, result_of
from holdfast.errors import InvalidResponse, RunEnded, Unsuccessful
from holdfast.model.awaited_status import AwaitedStatus
from holdfast.model.durations import duration_text
from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm
from holdfast.model.run import HistoryEntry, Run, TextPiece
from holdfast.model.standing import standing
from holdfast.records.row_events import ended_entry, snapshot_entry, started_entry

__all__ = ["RunRequests"]

F = TypeVar("F", bound=JsonForm)

# Often at first, then less often: as a caller in another process than the worker reads the row.
_POLL_FIRST_SECONDS = 0.05
_POLL_SECONDS_MAX = 1.0
# How long the server waits for the end of a run; load balancers cut silent connections after 60 s.
_WAIT_SECONDS_MAX = 25.0
# An id in a stream is the cursor of the last event, this, and the cursor of the last text.
_SEPARATOR = "~"
_OPEN = frozenset({"ready", "running", "waiting", "closing"})


class RunRequests:
    """Sends what concerns one run."""

    def __init__(self, connection: ServerConnection, id: str, tenant: str | None) -> None:
        self.connection = connection
        self.id = id
        self.tenant = tenant

    async def call(
        self,
        verb: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        wait_seconds: int = 0,
        **names: str,
    ) -> Any:
        """Call a route of the run, and return its answer, for which the server may wait so long."""
        return await self.connection.call(
            verb,
            query=query,
            body=body,
            tenant=self.tenant,
            names={"id": self.id, **names},
            wait_seconds=wait_seconds,
        )

    async def all_of(self, kind: type[F], verb: str, member: str) -> AsyncGenerator[F, None]:
        """Yield the items of all pages of a list of the run."""
        cursor: str | None = None
        while True:
            shown = await self.call(verb, query={"cursor": cursor})
            items, cursor = page_of(kind, shown, member)
            for each in items:
                yield each
            if cursor is None:
                return

    async def wait_for_result(self, seconds: float | None) -> Any:
        """Return the result of the run as JSON has it, as soon as the run has ended.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended without a result.
            TimeoutError: it did not end in that time.
        """
        clock = self.connection.clock
        asked_at = clock.monotonic()
        ends = math.inf if seconds is None else asked_at + seconds
        pause = _POLL_FIRST_SECONDS
        while True:
            # Not as long as the call may take: the answer has to arrive, too.
            left = min(_WAIT_SECONDS_MAX, self.connection.seconds / 2, ends - asked_at)
            shown = await self._read_result(wait_seconds=max(0, math.floor(left)))
            with suppress(InvalidResponse):  # it is the row of a run that goes on
                return member_of(shown, "result")
            row, now = read(Run, shown), clock.monotonic()
            if now >= ends:
                raise TimeoutError(self._late(row, None, seconds or 0.0))
            if now - asked_at < left / 2:  # the server did not wait: it shuts down, for example
                await clock.sleep(min(pause, ends - now))
                pause = min(pause * 2, _POLL_SECONDS_MAX)
            asked_at = clock.monotonic()

    async def _read_result(self, *, wait_seconds: int) -> Any:
        try:
            return await self.call("result", wait_seconds=wait_seconds)
        except Unsuccessful as error:
            row = read(Run, await self.call("get"))
            while row.into is not None:
                row = read(Run, await self.call("get", id=row.into))
            failure = row.failure or Failure()
            error.kind, error.reason, error.node = failure.type, failure.message, row.node
            error.trace = failure.trace
            raise

    async def events(
        self, after: str | None, *, follow: bool, ephemeral: bool
    ) -> AsyncGenerator[HistoryEntry | None, None]:
        """Yield None when the stream is open, then the entries."""
        kinds = {"events": "true", "text": "false", "ephemeral": "true" if ephemeral else "false"}
        cursor = None if after is None else f"{after}{_SEPARATOR}"
        is_new = after is None
        async for message in self._messages(kinds, cursor, follow=follow):
            if message is None:
                yield None
            elif message.kind in ("event", "ephemeral"):
                yield read(HistoryEntry, message.value)
            elif ephemeral and message.kind == "snapshot":
                row = read(Run, message.value)
                now_ms = self.connection.clock.now_ms()
                yield snapshot_entry(row, at_ms=now_ms, node=row.node)
                if is_new:
                    yield started_entry(row, node=None)
                is_new = False
            elif ephemeral and message.value.get("reason") == "ended":
                yield ended_entry(read(Run, await self.call("get")))

    async def tokens(
        self, after: str | None, *, follow: bool
    ) -> AsyncGenerator[TextPiece | None, None]:
        """Yield None when the stream is open, then the pieces of text."""
        kinds = {"events": "false", "text": "true", "ephemeral": "false"}
        cursor = None if after is None else f"{_SEPARATOR}{after}"
        async for message in self._messages(kinds, cursor, follow=follow):
            if message is None:
                yield None
            elif message.kind == "text":
                yield read(TextPiece, message.value)

    def _messages(
        self, kinds: Mapping[str, str], after: str | None, *, follow: bool
    ) -> AsyncGenerator[ReceivedMessage | None, None]:
        query = {**kinds, "follow": "true" if follow else "false"}
        return follow_run(self.connection, self.id, tenant=self.tenant, query=query, after=after)

    async def wait_for(self, wanted: AwaitedStatus, seconds: float | None) -> Run:
        """Read the row until it has a status that the caller wants.

        Raises:
            RunEnded, RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended otherwise.
            TimeoutError: it was not so in that time.
        """
        clock = self.connection.clock
        ends = None if seconds is None else clock.monotonic() + seconds
        pause = _POLL_FIRST_SECONDS
        while True:
            row = read(Run, await self.call("get"))
            if wanted.is_met_by(row):
                return row
            self._check_may_still_be(row, wanted)
            left = None if ends is None else ends - clock.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(self._late(row, wanted, seconds or 0.0))
            await clock.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 2, _POLL_SECONDS_MAX)

    def _check_may_still_be(self, row: Run, wanted: AwaitedStatus) -> None:
        if row.status in ("finished", "promoted"):
            into = "" if row.into is None else f": its input went into run {row.into!r}"
            raise RunEnded(
                f"run {self.id!r} is {row.status}{into}; it will not be {wanted}",
                status=row.status,
            )
        if row.status not in _OPEN:
            result_of(self.id, RunOutcome(row.status, {}, row.failure, row.node), None)

    def _late(self, row: Run, wanted: AwaitedStatus | None, seconds: float) -> str:
        missed = "has not ended" if wanted is None else f"was not {wanted}"
        why = standing(row, now_ms=self.connection.clock.now_ms())
        return f"run {self.id!r} {missed} within {duration_text(round(1000 * seconds))}: {why}"
