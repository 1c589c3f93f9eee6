"""One reader for all followers of a document's processing, and what it reads."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DocumentWorkflowNotFound, InvalidQuery, StoreUnavailable
from holdfast.server import ServerOptions
from holdfast.server.streams.index_ranges import gaps, joined, ranges_of, rotated
from holdfast.server.streams.message import StreamMessage
from holdfast.server.streams.registry import OpenStream, Streams
from holdfast.server.streams.segment_board import SegmentBoard
from holdfast.server.streams.shared_reader import ReaderLimits
from holdfast.server.streams.workflow_follower import WorkflowFollower, join_workflow
from holdfast.server.streams.workflow_hub import (
    WorkflowCursor,
    WorkflowHub,
    parse_workflow_cursor,
)
from tests.server.document_progress import Processing
from tests.server.streaming import SECONDS_MAX, messages_of

INDICES = st.sets(st.integers(1, 60))
FAST = ServerOptions(list_poll_seconds=0.01)


def hub_of(processing: Processing, *, messages_max: int = 4096) -> WorkflowHub:
    """Return a hub that reads only when a test says so."""
    limits = ReaderLimits(messages_max, 4 * 1024**2)
    return WorkflowHub(
        processing, clock=processing.clock, limits=limits, poll_seconds=SECONDS_MAX * 10
    )


async def joined_to(
    hub: WorkflowHub, after: str | None = None, *, follow: bool = True
) -> tuple[WorkflowFollower, dict[str, Any]]:
    cursor = parse_workflow_cursor(after, field="after")
    follower, first = await join_workflow(hub, cursor, follow=follow, data={})
    assert first.kind == "snapshot"
    return follower, json.loads(first.data)


def told(messages: list[StreamMessage]) -> list[tuple[str, Any]]:
    """Return the messages in short: kinds, and what they are about."""
    keys = {"segment": "index", "step": "name", "workflow": "status", "snapshot": "segments"}
    return [(each.kind, json.loads(each.data)[keys[each.kind]]) for each in messages]


async def follow(
    streams: Streams, processing: Processing, after: WorkflowCursor | None = None, **given: Any
) -> OpenStream:
    return await streams.follow_workflow(
        ("default", "w"),
        processing,
        after,
        clock=processing.clock,
        **{"follow": True, "data": {}, **given},
    )


@given(INDICES, st.integers(0, 70))
def test_gaps_are_all_that_is_not_known(known: set[int], last: int) -> None:
    missing = gaps(ranges_of(sorted(known)), last)
    found = [index for begin, end in missing for index in range(begin, end + 1)]
    assert found == [index for index in range(1, last + 1) if index not in known]


@given(INDICES, st.integers(0, 5))
def test_joined_ranges_have_everything_and_little_else(known: set[int], apart: int) -> None:
    merged = joined(ranges_of(sorted(known)), apart_max=apart)
    found = {index for begin, end in merged for index in range(begin, end + 1)}
    assert known <= found
    assert all(b[0] - a[1] - 1 > apart for a, b in pairwise(merged))


@given(INDICES, st.integers(0, 70))
def test_rotated_ranges_have_the_same_indices_each_once(known: set[int], after: int) -> None:
    turned = rotated(ranges_of(sorted(known)), after=after)
    found = [index for begin, end in turned for index in range(begin, end + 1)]
    assert sorted(found) == sorted(known)
    assert found == sorted(found, key=lambda index: (index <= after, index))


@given(st.text(max_size=60))
def test_any_other_text_is_no_cursor(text: str) -> None:
    try:
        cursor = parse_workflow_cursor(text, field="after")
    except InvalidQuery:
        return
    assert str(cursor or "") == text


async def test_the_first_message_tells_everything() -> None:
    processing = Processing(10)
    processing.put(1, 2, 4)
    processing.put(5, status="failed", error="too dark")
    processing.step("segment_prep", status="completed", done=10, total=10)
    follower, first = await joined_to(hub_of(processing))
    assert first["workflow"]["status"] == "in_progress"
    assert first["workflow"]["counts"] == {"completed": 3, "failed": 1, "pending": 6}
    assert first["steps"][0]["name"] == "segment_prep"
    assert first["steps"][0]["label"] == "Segment preparation"
    assert first["segments"] == {
        "completed": [[1, 2], [4, 4]],
        "failed": [[5, 5]],
        "skipped": [],
        "errors": [{"index": 5, "error": "too dark"}],
    }
    assert await follower.take() == []
    assert await follower.ending() is None


async def test_changes_follow_each_once_and_in_order() -> None:
    processing = Processing(10)
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    await hub.refresh()
    assert await follower.take() == []
    processing.put(3, 1)
    processing.step("segment_analyzer", status="in_progress", started_at=processing.now())
    await hub.refresh()
    messages = await follower.take()
    assert told(messages) == [
        ("segment", 1),
        ("segment", 3),
        ("step", "segment_analyzer"),
        ("workflow", "in_progress"),
    ]
    assert len({each.id for each in messages}) == 4
    processing.change(status="completed")
    await hub.refresh()
    assert told(await follower.take()) == [("workflow", "completed")]
    end = await follower.ending()
    assert end is not None
    assert json.loads(end.data)["status"] == "completed"
    assert end.reason == "ended"


async def test_a_failed_segment_that_is_retried_is_told_again() -> None:
    processing = Processing(3)
    processing.put(1, 3)
    processing.put(2, status="failed", error="no")
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    processing.put(2)
    await hub.refresh()
    assert told(await follower.take()) == [("segment", 2), ("workflow", "in_progress")]
    assert (await joined_to(hub))[1]["segments"]["errors"] == []


async def test_a_follower_resumes_where_it_was_and_gets_what_it_missed() -> None:
    processing = Processing(10)
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    processing.put(1, 2)
    await hub.refresh()
    cut = (await follower.take())[0].id
    processing.put(7)
    again, first = await joined_to(hub, cut)
    assert first["segments"] is None
    assert first["workflow"]["counts"]["completed"] == 3
    missed = told(await again.take())
    assert [each for each in missed if each[0] == "segment"] == [("segment", 2), ("segment", 7)]


async def test_a_cursor_of_another_server_or_of_long_ago_gets_everything() -> None:
    processing = Processing(10)
    hub = hub_of(processing, messages_max=2)
    follower, _ = await joined_to(hub)
    processing.put(1, 2, 3)
    await hub.refresh()
    other = f"0123456789ab.{hub.cursor.number}"
    for cursor in (other, f"{hub.cursor.hub}.0", f"{hub.cursor.hub}.999"):
        _, first = await joined_to(hub, cursor)
        assert first["segments"]["completed"] == [[1, 3]]
    # The slow one gets everything again, too, instead of an error.
    assert told(await follower.take())[0][1]["completed"] == [[1, 3]]
    assert await follower.take() == []
    processing.put(4)
    await hub.refresh()
    assert told(await follower.take())[0] == ("segment", 4)


async def test_without_following_a_snapshot_and_an_end_are_all() -> None:
    processing = Processing(2)
    streams = Streams(FAST)
    found = await messages_of(await follow(streams, processing, follow=False))
    assert [each.kind for each in found] == ["snapshot", "end"]
    assert found[-1].reason == "caught_up"
    processing.change(status="failed", error="broken")
    found = await messages_of(await follow(streams, processing, follow=False))
    assert json.loads(found[-1].data)["status"] == "failed"
    assert processing.connections == {}
    await streams.shut_down()


async def test_a_thousand_followers_cost_one_reader_and_are_stored_as_connections() -> None:
    processing = Processing(300)
    processing.put(*range(1, 301))
    streams = Streams(FAST)
    joins = (follow(streams, processing, data={"over": "sse"}) for _ in range(1000))
    opened = await asyncio.gather(*joins)
    assert len(processing.connections) == 1000
    assert set(map(str, processing.connections.values())) == {"{'over': 'sse'}"}
    assert streams.hubs == 1
    assert processing.workflow_reads < 10
    assert processing.segments_read == 300
    processing.change(status="completed")
    found = await asyncio.gather(*map(messages_of, opened))
    assert {each[-1].reason for each in found} == {"ended"}
    await streams.shut_down()
    assert processing.connections == {}


async def test_another_attempt_is_read_anew() -> None:
    processing = Processing(3)
    processing.put(1, 2, 3)
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    processing.put(2, status="pending")
    processing.change(attempt=2)
    await hub.refresh()
    kinds = told(await follower.take())
    assert ("segment", 2) in kinds
    assert (await joined_to(hub))[1]["workflow"]["counts"]["pending"] == 1


async def test_connections_are_stored_again_before_they_expire() -> None:
    processing = Processing(1)
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    [(id, _)] = processing.connections.items()
    processing.connections.clear()
    processing.clock.advance(3599)
    await hub.refresh()
    assert processing.connections == {}
    processing.clock.advance(2)
    await hub.refresh()
    assert list(processing.connections) == [id]
    follower.close()
    await hub.close()
    assert processing.connections == {}


async def test_a_deleted_workflow_and_a_store_that_fails_end_the_stream() -> None:
    processing = Processing(3)
    streams = Streams(FAST)
    for error, reason in (
        (DocumentWorkflowNotFound("gone"), "deleted"),
        (StoreUnavailable("no answer"), "error"),
    ):
        processing.error = None
        stream = await follow(streams, processing)
        reading = asyncio.create_task(messages_of(stream))
        processing.error = error
        assert (await reading)[-1].reason == reason
    with pytest.raises(StoreUnavailable):
        await follow(streams, processing)
    assert streams.followers == 0
    await streams.shut_down()


async def test_a_document_that_is_processed_again_is_followed_again() -> None:
    processing = Processing(3)
    processing.change(status="failed")
    streams = Streams(FAST)
    assert (await messages_of(await follow(streams, processing)))[-1].reason == "ended"
    processing.change(status="in_progress")  # before the reader is closed
    stream = await follow(streams, processing)
    reading = asyncio.create_task(messages_of(stream))
    async with asyncio.timeout(SECONDS_MAX):
        while not processing.workflow_reads > 4:
            await asyncio.wait({reading}, timeout=0.01)
    assert not reading.done()
    processing.put(1)
    processing.change(status="completed")
    messages = await reading
    assert ("segment", 1) in told(messages[:-1])
    await streams.shut_down()


def order_of(kind: str, total: int) -> list[int]:
    """Return the order in which segments are written."""
    indices = list(range(1, total + 1))
    if kind == "chunks":  # 20 chunks of 50 at a time, each in its own order
        lanes = [indices[at : at + 50] for at in range(0, total, 50)]
        running, waiting = lanes[:20], lanes[20:]
        done: list[int] = []
        while running:
            for lane in list(running):
                done.append(lane.pop(0))
                if not lane:
                    running.remove(lane)
                    running += [waiting.pop(0)] if waiting else []
        return done
    if kind == "random":
        random.Random(7).shuffle(indices)
    return indices[::-1] if kind == "backwards" else indices


@pytest.mark.parametrize("order", ["forwards", "backwards", "chunks", "random"])
@pytest.mark.parametrize("total", [300, 3000])
async def test_reading_costs_as_much_as_there_is_and_not_its_square(order: str, total: int) -> None:
    """The processing of a document, seen 300 times while its segments appear."""
    processing = Processing(total)
    board = SegmentBoard(processing.segments)
    written = order_of(order, total)
    looks = 300
    size = total // looks
    for at in range(looks):
        processing.put(*written[at * size : (at + 1) * size])
        before = processing.queries
        await board.look(total, whole=False)
        assert processing.queries - before <= 36
    await board.look(total, whole=True)
    assert board.count("completed") == total
    # Each look at everything would read half of the segments: 150 times as many.
    assert processing.segments_read <= 3 * total + looks * 4, processing.segments_read


async def test_segments_that_stay_unfinished_cost_a_bounded_amount_per_look() -> None:
    """A pipeline that stores each segment first as pending must not make a look read all."""
    processing = Processing(5000)
    processing.put(*range(1, 5001), status="pending")
    board = SegmentBoard(processing.segments)
    await board.look(5000, whole=True)
    for _ in range(5):
        before = processing.segments_read
        await board.look(5000, whole=False)
        assert processing.segments_read - before <= 1000
    processing.put(*range(1, 5001))
    looks = 0
    while board.count("completed") < 5000:
        await board.look(5000, whole=False)
        looks += 1
        assert looks <= 6


async def test_looks_take_turns_over_what_stays_unfinished() -> None:
    """Segments that wait for long do not hide those behind them."""
    processing = Processing(4000)
    processing.put(*range(1, 3001), status="pending")
    board = SegmentBoard(processing.segments)
    await board.look(4000, whole=True)
    processing.put(3999)
    for _ in range(4):
        await board.look(4000, whole=False)
    assert board.count("completed") == 1
    gaps_everywhere = Processing(400)
    board = SegmentBoard(gaps_everywhere.segments)
    gaps_everywhere.put(*range(1, 401, 2))
    await board.look(400, whole=True)
    gaps_everywhere.put(*range(2, 401, 2))
    for _ in range(7):
        await board.look(400, whole=False)
    assert board.count("completed") == 400


async def test_a_total_that_grows() -> None:
    processing = Processing(None)
    hub = hub_of(processing)
    follower, _ = await joined_to(hub)
    for total in (2, 12_000):
        processing.change(total_segments=total)
        processing.put(total)
        await hub.refresh()
        assert ("segment", total) in told(await follower.take())
