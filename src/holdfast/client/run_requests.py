"""The requests about one run: calls of its routes, its streams, and waits for a status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import page_of, read
from holdfast.client.snapshots import ended_entry, snapshot_entry, started_entry
from holdfast.client.streams import ReceivedMessage
from holdfast.client.streams import follow as follow_run
from holdfast.engine.journal.endings import RunOutcome, result_of
from holdfast.errors import RunEnded, Unsuccessful
from holdfast.model.awaited_status import AwaitedStatus
from holdfast.model.durations import duration_text
from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm
from holdfast.model.run import HistoryEntry, Run, TextPiece
from holdfast.model.standing import standing

__all__ = ["RunRequests", "has_ended"]

F = TypeVar("F", bound=JsonForm)

# Often at first, then less often: as a caller in another process than the worker reads the row.
_POLL_FIRST_SECONDS = 0.05
_POLL_SECONDS_MAX = 1.0
# An id in a stream is the cursor of the last event, this, and the cursor of the last text.
_SEPARATOR = "~"
_OPEN = frozenset({"ready", "running", "waiting", "closing"})


def has_ended(row: Run) -> bool:
    """Return whether a run has ended, in whatever way."""
    return row.status not in _OPEN


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
        **names: str,
    ) -> Any:
        """Call a route of the run, and return its answer."""
        return await self.connection.call(
            verb, query=query, body=body, tenant=self.tenant, names={"id": self.id, **names}
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

    async def read_result(self, row: Run) -> dict[str, Any]:
        """Return what the server says about the result of a run that has ended.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended without a result.
        """
        try:
            return await self.call("result")
        except Unsuccessful as error:
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
                yield snapshot_entry(row, at_ms=self.connection.clock.now_ms())
                if is_new:
                    yield started_entry(row)
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

    async def wait_for(
        self,
        is_met: Callable[[Run], bool],
        wanted: AwaitedStatus | None,
        seconds: float | None,
    ) -> Run:
        """Read the row until it is as the caller wants it; ``wanted`` None is the run's end.

        Raises:
            RunEnded, RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended otherwise.
            TimeoutError: it was not so in that time.
        """
        clock = self.connection.clock
        ends = None if seconds is None else clock.monotonic() + seconds
        pause = _POLL_FIRST_SECONDS
        while True:
            row = read(Run, await self.call("get"))
            if is_met(row):
                return row
            if wanted is not None:
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
        if has_ended(row):
            result_of(self.id, RunOutcome(row.status, {}, row.failure, row.node), None)

    def _late(self, row: Run, wanted: AwaitedStatus | None, seconds: float) -> str:
        missed = "has not ended" if wanted is None else f"was not {wanted}"
        why = standing(row, now_ms=self.connection.clock.now_ms())
        return f"run {self.id!r} {missed} within {duration_text(round(1000 * seconds))}: {why}"
