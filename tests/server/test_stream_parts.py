"""The cursor and the backlog of streams, for all values."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.history.cursors import EventCursor, TextCursor
from holdfast.errors import InvalidQuery
from holdfast.records.keys import SpoolKey
from holdfast.server.streams.backlog import Backlog, Entry
from holdfast.server.streams.cursor import (
    StreamCursor,
    parse_stream_cursor,
    place_of_event,
    place_of_text,
)
from holdfast.server.streams.message import StreamMessage, event_frame, socket_text

NUMBERS = st.integers(0, 99_999_999)
IDS = st.uuids().map(str)
GENERATION = str(UUID(int=7))
EVENTS = st.builds(EventCursor, st.just(GENERATION), NUMBERS, NUMBERS)
TEXTS = st.builds(
    TextCursor, st.just(GENERATION), st.builds(SpoolKey, NUMBERS, IDS), NUMBERS, NUMBERS
)
CURSORS = st.builds(StreamCursor, st.none() | EVENTS, st.none() | TEXTS)


@given(CURSORS)
def test_a_cursor_is_read_as_it_was_written(cursor: StreamCursor) -> None:
    assert parse_stream_cursor(str(cursor), field="after") == cursor


@given(st.text(max_size=500))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with suppress(InvalidQuery):
        assert parse_stream_cursor(text, field="after") == StreamCursor()


@pytest.mark.parametrize("text", ["~" * 2, "1~", f"{UUID(int=1)}.1.1", "x" * 10_000, "1.2.3~4.5"])
def test_a_wrong_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery):
        parse_stream_cursor(text, field="after")


def test_cursors_of_two_runs_are_refused() -> None:
    text = f"{UUID(int=1)}.1.1~{UUID(int=2)}.1.{UUID(int=3)}.1.1"
    with pytest.raises(InvalidQuery, match="two runs"):
        parse_stream_cursor(text, field="after")


@given(EVENTS, EVENTS, TEXTS, TEXTS)
def test_places_are_in_the_order_of_what_is_stored(
    one: EventCursor, other: EventCursor, text: TextCursor, other_text: TextCursor
) -> None:
    place, other_place = place_of_event(one), place_of_event(other)
    assert place is not None
    assert other_place is not None
    assert (place < other_place) == ((one.position, one.index) < (other.position, other.index))
    key = (text.spool, text.number, text.index)
    other_key = (other_text.spool, other_text.number, other_text.index)
    text_place, other_text_place = place_of_text(text), place_of_text(other_text)
    assert text_place is not None
    assert other_text_place is not None
    assert (text_place < other_text_place) == (key < other_key)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60),
    st.integers(1, 10),
    st.integers(1, 100),
    st.data(),
)
def test_a_backlog_has_all_that_is_recorded_after_its_begin(
    sizes: list[tuple[bool, int]], count_max: int, bytes_max: int, data: st.DataObject
) -> None:
    backlog: Backlog[int] = Backlog(None, count_max=count_max, bytes_max=bytes_max)
    for number, (is_recorded, size) in enumerate(sizes):
        while not backlog.has_room(size):
            backlog.drop_oldest()
        backlog.append(Entry(number, size, (number,) if is_recorded else None))
        kept = [backlog.get(each) for each in range(backlog.first, backlog.next)]
        held = [entry for entry in kept if entry is not None]
        assert len(held) <= count_max
        assert len(held) == 1 or sum(entry.size for entry in held) <= bytes_max
        assert backlog.next == number + 1
        assert backlog.get(backlog.next) is None
    recorded = [(number,) for number, (is_recorded, _) in enumerate(sizes) if is_recorded]
    place = data.draw(st.none() | st.sampled_from(recorded)) if recorded else None
    if backlog.covers(place):
        missing = [each for each in recorded if place is None or each > place]
        found = [backlog.get(number) for number in range(backlog.first, backlog.next)]
        places = [entry.place for entry in found if entry is not None and entry.place is not None]
        assert [each for each in places if place is None or each > place] == missing
    if backlog.first:
        with pytest.raises(IndexError):
            backlog.get(backlog.first - 1)


def test_a_message_has_one_form_for_each_transport() -> None:
    message = StreamMessage("event", b'{"at":"\\n"}', "1~")
    assert event_frame(message) == b'id: 1~\nevent: event\ndata: {"at":"\\n"}\n\n'
    assert socket_text(message) == '{"kind":"event","id":"1~","data":{"at":"\\n"}}'
    assert event_frame(StreamMessage("heartbeat")) == b": heartbeat\n\n"
    assert socket_text(StreamMessage("heartbeat")) == '{"kind":"heartbeat","id":null,"data":{}}'
