"""A snapshot is the whole fold: whoever begins there knows what whoever read all of it knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import JournalDamaged
from holdfast.model.event import (
    AttemptFailed,
    Cancelled,
    Event,
    Extended,
    Failed,
    Failure,
    Fenced,
    Finished,
    NodeFinished,
    ProgramEvent,
    Rerouted,
    SignalTaken,
    Snapshot,
    TimerFired,
)
from holdfast.model.execution import Execution
from holdfast.model.fold import folded, restored, snapshot

values = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
names = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 2**40)
failures = st.builds(Failure, st.text(), st.text(), st.text())
events = st.one_of(
    st.builds(NodeFinished, numbers, names, numbers, st.dictionaries(names, values), names),
    st.builds(AttemptFailed, numbers, names, numbers, failures, numbers, numbers),
    st.builds(SignalTaken, numbers, names, numbers, names, names, names, values),
    st.builds(TimerFired, numbers, names, numbers, names),
    st.builds(Rerouted, numbers, st.none() | names, st.just("retried"), names),
    st.builds(ProgramEvent, numbers, names, values, st.just(""), st.dictionaries(names, numbers)),
    st.builds(Fenced, numbers, numbers, names),
    st.builds(Extended, numbers, numbers, numbers, names),
    st.builds(Finished, numbers),
    st.builds(Failed, numbers, failures, names),
    st.builds(Cancelled, numbers, st.text()),
)
BEGUN = Execution(seed="s", state={"input": 1}, node="a")


@given(st.lists(events), st.lists(events))
def test_what_follows_a_snapshot_folds_as_if_all_had_been_read(
    before: list[Event], after: list[Event]
) -> None:
    whole = folded(BEGUN, [*before, *after])
    cut = snapshot(folded(BEGUN, before), 7, size=1, blobs=True)
    assert folded(BEGUN, [cut, *after]) == whole
    assert folded(restored(cut), after) == whole
    # Whatever a reader takes for granted before it is of no account.
    other = Execution(seed="other", state={"odd": 1}, node="z", fences=9)
    assert folded(other, [cut, *after]) == whole


def test_a_field_that_a_snapshot_does_not_have_yet_gets_its_default() -> None:
    old = msgspec.msgpack.encode({"state": {"n": 1}, "seed": "s", "node": "a", "visit": 3})
    execution = restored(Snapshot(7, old))
    assert execution == Execution(state={"n": 1}, seed="s", node="a", visit=3)


@pytest.mark.parametrize("fold", [b"", b"\x81\xa1a", msgspec.msgpack.encode({"state": 1})])
def test_what_is_not_a_snapshot_is_told_apart(fold: bytes) -> None:
    with pytest.raises(JournalDamaged):
        restored(Snapshot(7, fold))


def test_the_longest_life_that_was_promised_counts() -> None:
    extended = folded(BEGUN, [Extended(1, 10, 100, "keep-40d"), Extended(2, 5, 50, "keep-40d")])
    assert (extended.ttl, extended.kept) == (100, "keep-40d")


def test_to_extend_a_run_is_not_to_get_anywhere() -> None:
    # Otherwise a run that kills its workers would never be quarantined.
    assert folded(BEGUN, [Fenced(1, 2, "w"), Extended(2, 9, 9, "keep-10d")]).fences == 1


def test_what_a_program_notes_lasts_for_one_visit_and_is_stored_only_if_there_is_any() -> None:
    began = Execution(state={}, seed="s", node="a")
    assert b"noted" not in snapshot(began, 1, size=0, blobs=False).fold
    noted = folded(
        began,
        [
            ProgramEvent(1, "Entered", {"x": 1}, notes={"entered_ms": 1}),
            ProgramEvent(2, "Retried", notes={"retries": 2}),
            AttemptFailed(2, "a", 0, Failure("E"), 3),
        ],
    )
    assert noted.notes == {"entered_ms": 1, "retries": 2}
    assert restored(snapshot(noted, 1, size=0, blobs=False)) == noted
    after = folded(noted, [NodeFinished(4, "a", 0, {}, "a")])
    assert after.notes == {}
    assert b"noted" not in snapshot(after, 1, size=0, blobs=False).fold
    assert folded(noted, [Failed(5, Failure("E")), Rerouted(6, None, "retried", "r")]).notes == {}


def test_the_bytes_of_a_snapshot_do_not_depend_on_the_order_of_a_set() -> None:
    taken = frozenset({("go", f"id-{number}") for number in range(20)})
    known = Execution(state={}, seed="", node="a", taken=taken)
    raw = msgspec.msgpack.decode(snapshot(known, 1, size=0, blobs=False).fold)
    assert raw["taken"] == [["go", id] for id in sorted(f"id-{number}" for number in range(20))]


def test_the_node_of_a_failure_lasts_until_a_retry_and_is_stored_only_then() -> None:
    began = Execution(state={}, seed="s", node="a")
    assert (began.ending_node, b"failed_node" in snapshot(began, 1, size=0, blobs=False).fold) == (
        "a",
        False,
    )
    failed = folded(began, [Failed(1, Failure("E"), "in a branch")])
    assert failed.ending_node == "in a branch"
    assert restored(snapshot(failed, 1, size=0, blobs=False)) == failed
    for to in (None, "a"):
        retried = folded(failed, [Rerouted(2, to, "retried", "r")])
        assert retried.ending_node == "a"
        assert b"failed_node" not in snapshot(retried, 1, size=0, blobs=False).fold
