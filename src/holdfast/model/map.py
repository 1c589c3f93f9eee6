"""Maps: one item function over many indices, in chunks that are runs, and lanes of chunks.

A map of ``total`` items has chunks of consecutive indices. Lane ``k`` of ``K`` takes the chunks
``k``, ``k + K``, ``k + 2K`` …, one after the other. So at most ``K`` chunks run at a time, and what
comes next follows from arithmetic. See ``engine/runs/map_lanes.py`` for the protocol.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.model.event import Failure
from holdfast.model.json_form import JsonForm

__all__ = [
    "CHUNK_ITEMS_MAX",
    "CONCURRENCY_MAX",
    "GIVEN_BYTES_MAX",
    "ITEMS_MAX",
    "NO_LANE",
    "MapChunk",
    "MapItemRetry",
    "MapLane",
    "MapPage",
    "MapProgress",
    "MapSpec",
    "MapStatus",
    "Mapped",
    "MappedItem",
    "MappedItemPage",
    "lane_after",
    "lane_count",
    "lane_of_new_round",
    "lane_with_given_away",
    "lane_with_taken",
    "new_lane",
]

ITEMS_MAX = 10_000_000
"""The maximum number of items of a map."""
CHUNK_ITEMS_MAX = 1_000
"""The maximum number of items of a chunk."""
CONCURRENCY_MAX = 10_000
"""The maximum number of items of a map that run at the same time."""
GIVEN_BYTES_MAX = 8 * 1024
"""The maximum size of what all items of a map are given."""
NO_LANE = -1
"""The lane of a chunk that retries one item: it belongs to no lane."""
_LANES_WANTED = 100
_BRANCHES_WANTED = 4

MapStatus: TypeAlias = Literal["running", "finished", "failed", "stopped"]
"""``failed``: more items failed than the map tolerates. ``stopped``: its run has ended."""


class MapChunk(JsonForm, frozen=True, kw_only=True):
    """Which part of a map a run works on."""

    map: str
    """The id of the map in its run."""
    lane: int
    """The lane that runs the chunk; -1 if it retries one item."""
    number: int
    """The number of the chunk, from 0."""
    first: int
    """The index of its first item."""
    count: int
    """The number of its items."""
    round: int = 0
    """How often the map was begun again before, because its run was retried."""
    attempt: int = 0
    """The number of the retry of one item; 0 for a chunk of a lane."""


class Mapped(JsonForm, frozen=True, kw_only=True):
    """The results of a map that has ended: a small cursor, which `Context.mapped` reads."""

    run: str
    map: str
    total: int
    succeeded: int
    failed: int
    chunk: int
    """The number of items of a chunk."""


class MappedItem(JsonForm, frozen=True):
    """The result of one item of a map, or why it failed."""

    index: int
    result: Any = None
    failure: Failure | None = None
    """Why there is no result."""

    @property
    def ok(self) -> bool:
        """Whether the item has a result."""
        return self.failure is None


class MapProgress(JsonForm, frozen=True, kw_only=True):
    """How far a map is, counted in the items of its ended chunks."""

    map: str
    """The id of the map in its run."""
    node: str
    """The node that began it."""
    item: str
    """The item function, or the graph, that it maps."""
    status: MapStatus
    total: int
    succeeded: int
    failed: int
    running: int
    """The number of items in the chunks that run now."""
    chunk: int
    """The number of items of a chunk."""
    concurrency: int
    """The maximum number of items that run at the same time."""
    tolerated: int
    """The number of items that may fail."""
    retried: int = 0
    """How many failed items have succeeded since, because a person retried them."""
    tokens: int = 0
    """The tokens that the calls of its chunks used."""
    cost_usd: float = 0.0
    """What the calls of its chunks cost."""
    started_ms: int


class MapPage(JsonForm, frozen=True):
    """The maps of a run, in the order in which they began."""

    maps: list[MapProgress]


class MappedItemPage(JsonForm, frozen=True):
    """A page of the items of a map, in the order of their index."""

    items: list[MappedItem]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""


class MapItemRetry(JsonForm, frozen=True):
    """The run that runs one item of a map again."""

    run: str


class MapSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a map does, as its item stores it. It does not change, apart from its round."""

    map: str
    item: str
    """The name of the item function, or of the graph."""
    is_graph: bool = False
    """Whether each item is a child run of a graph."""
    is_list: bool = False
    """Whether the map was given the values of its items, and not only their number."""
    values: str = ""
    """Which of the stored values it was given: a process that died may have stored others."""
    total: int
    chunk: int
    lanes: int
    concurrency: int
    tolerated: int
    given: bytes = b""
    """What all items are given, packed; empty for nothing."""
    node: str
    branch: str = ""
    visit: int = 0
    kept: str
    """The retention class of its blobs."""
    started_ms: int
    round: int = 0
    """How often it was begun again, because its run was retried."""
    retried: str = ""
    """The retry request of the run to which the round belongs."""
    epoch: int = 0
    """The epoch of the owner of the run that began the round."""
    ttl: int = 0

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return -(-self.total // self.chunk)

    def branches(self, lane: int) -> int:
        """Return how many items of a lane's chunk run at the same time."""
        share, rest = divmod(self.concurrency, max(self.lanes, 1))
        return max(1, share + (lane < rest))

    def chunk_of(self, number: int, lane: int, round: int) -> MapChunk:
        """Return one chunk of a lane."""
        first = number * self.chunk
        count = min(self.chunk, self.total - first)
        return MapChunk(
            map=self.map, lane=lane, number=number, first=first, count=count, round=round
        )


class MapLane(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a map: which chunk runs, which chunks are left, and what the ended ones did."""

    lane: int
    step: int
    """How often it was changed. Every change names the step before it."""
    round: int = 0
    at: int | None = None
    """The chunk that runs, or is about to start; None if the lane has ended."""
    last: int | None = None
    """The chunk that ended last."""
    front: int = 0
    """The position in the lane of the next chunk that never ran."""
    stop: int = 0
    """The position in the lane after its last chunk. Lanes that help lower it."""
    redo: tuple[int, ...] = ()
    """The chunks that have to run again, in the order in which they do."""
    bad: dict[int, tuple[int, int]] = {}
    """The chunks with items that failed or are missing: how many succeeded, and how many failed."""
    chunks: int = 0
    """How many chunks have ended."""
    succeeded: int = 0
    failed: int = 0
    tokens: int = 0
    nanodollars: int = 0
    stopped: str = ""
    """Why no further chunk starts: ``failed`` or ``ended``; empty while they do."""

    @property
    def left(self) -> int:
        """How many chunks have not started."""
        return len(self.redo) + self.stop - self.front


def lane_count(total: int, *, chunk: int, concurrency: int) -> int:
    """Return how many chunks of a map run at the same time.

    Branches of one chunk share the writes of its journal, and lanes share the workers: so there are
    a few of both.
    """
    branches = min(max(_BRANCHES_WANTED, -(-concurrency // _LANES_WANTED)), chunk)
    return min(-(-total // chunk), -(-concurrency // branches))


def new_lane(spec: MapSpec, lane: int) -> MapLane:
    """Return a lane that has just begun: its first chunk is the one with its own number."""
    count = len(range(lane, spec.chunks, spec.lanes))
    return MapLane(lane=lane, step=1, round=spec.round, at=lane, front=1, stop=count)


def lane_of_new_round(spec: MapSpec, lane: MapLane) -> MapLane:
    """Return a lane that begins again, with the chunks in which something is missing."""
    again = sorted({*lane.bad, *lane.redo, *(() if lane.at is None else (lane.at,))})
    counted = lane.bad.values()
    begun = msgspec.structs.replace(
        lane,
        step=lane.step + 1,
        round=spec.round,
        at=None,
        last=None,
        redo=tuple(again),
        bad={},
        chunks=lane.chunks - len(lane.bad),
        succeeded=lane.succeeded - sum(succeeded for succeeded, _ in counted),
        failed=lane.failed - sum(failed for _, failed in counted),
        stopped="",
    )
    return _with_next(begun, spec)


def lane_after(
    spec: MapSpec,
    lane: MapLane,
    *,
    succeeded: int,
    failed: int,
    complete: bool,
    tokens: int = 0,
    nanodollars: int = 0,
) -> MapLane:
    """Return a lane after the end of the chunk that it ran.

    A chunk that is not ``complete`` has items that are neither done nor failed.
    """
    assert lane.at is not None
    bad = lane.bad if complete and not failed else {**lane.bad, lane.at: (succeeded, failed)}
    ended = msgspec.structs.replace(
        lane,
        step=lane.step + 1,
        at=None,
        last=lane.at,
        bad=bad,
        chunks=lane.chunks + 1,
        succeeded=lane.succeeded + succeeded,
        failed=lane.failed + failed,
        tokens=lane.tokens + tokens,
        nanodollars=lane.nanodollars + nanodollars,
    )
    return ended if lane.stopped else _with_next(ended, spec)


def lane_with_given_away(spec: MapSpec, lane: MapLane) -> tuple[MapLane, int]:
    """Return a lane without its last chunk that has not started, and that chunk."""
    step = lane.step + 1
    if lane.stop > lane.front:
        stop = lane.stop - 1
        return msgspec.structs.replace(lane, step=step, stop=stop), _number(spec, lane.lane, stop)
    number = lane.redo[-1]
    return msgspec.structs.replace(lane, step=step, redo=lane.redo[:-1]), number


def lane_with_taken(lane: MapLane, number: int) -> MapLane:
    """Return a lane without chunks of its own after it has taken a chunk of another lane."""
    return msgspec.structs.replace(lane, at=number)


def _with_next(lane: MapLane, spec: MapSpec) -> MapLane:
    if lane.redo:
        return msgspec.structs.replace(lane, at=lane.redo[0], redo=lane.redo[1:])
    if lane.front < lane.stop:
        at = _number(spec, lane.lane, lane.front)
        return msgspec.structs.replace(lane, at=at, front=lane.front + 1)
    return lane


def _number(spec: MapSpec, lane: int, position: int) -> int:
    return lane + position * spec.lanes
