"""The keys of documents keep the order of what they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.blob_keys import (
    document_blob_prefix,
    document_blobs_of,
    run_blobs_of,
)
from holdfast.records.document_keys import (
    SEGMENT_INDEX_MAX,
    ListedWorkflow,
    count_key,
    segment_index,
    segment_key,
    segment_sk,
    segments_range,
    status_index_key,
)

INDICES = st.one_of(
    st.integers(1, SEGMENT_INDEX_MAX),
    st.sampled_from([1, 9, 10, 9_999, 10_000, 99_999, 100_000, 999_999, 1_000_000]),
)
GENERATION = "01890af2-0000-7000-8000-000000000000"


@given(INDICES, INDICES)
def test_segments_sort_by_their_index(one: int, other: int) -> None:
    assert (segment_sk(one) < segment_sk(other)) is (one < other)


@given(INDICES)
def test_the_index_of_a_key_is_that_it_was_made_of(index: int) -> None:
    assert segment_index(segment_sk(index)) == index


def test_short_keys_are_those_of_the_source_and_longer_ones_follow() -> None:
    assert segment_sk(1) == "SEG#0001"
    assert segment_sk(9_999) == "SEG#9999"
    assert segment_sk(10_000) == "SEG#a10000"
    assert segment_sk(100_000) == "SEG#b100000"
    assert segment_key("acme", "w", 2) == ("WF#acme#w", "SEG#0002")


@pytest.mark.parametrize("sk", ["SEG#1", "SEG#00001", "SEG#b10000", "SEG#x", "SEG#", "STEP"])
def test_another_key_is_none_of_a_segment(sk: str) -> None:
    with pytest.raises(ValueError, match="not"):
        segment_index(sk)


@given(INDICES, INDICES)
def test_the_range_after_an_index_has_what_follows(after: int, index: int) -> None:
    found = segments_range(after)
    assert (found.first <= segment_sk(index) <= found.last) is (index > after)


def test_the_range_of_segments_does_not_have_the_steps() -> None:
    found = segments_range(0)
    assert not found.first <= "STEP" <= found.last


@given(st.integers(0, 9_999_999_999_999), st.sampled_from(["DOC", "WEB"]))
def test_an_entry_of_the_index_tells_the_workflow(since_ms: int, kind: str) -> None:
    listed = ListedWorkflow(since_ms, "w 1", kind, "d-1")  # type: ignore[arg-type]
    pk, sk = status_index_key("acme", "in_progress", listed, shards=4)
    assert pk.startswith("STEP#ANALYSIS_STATUS#acme#in_progress#0")
    assert ListedWorkflow.parsed(sk) == listed
    assert listed.key("acme") == (f"{kind}#acme#d-1", "WF#w 1")


@pytest.mark.parametrize("sk", ["1", "1#w#DOC", "x#w#DOC#d", "1#w#FAX#d"])
def test_another_entry_is_none_of_a_workflow(sk: str) -> None:
    with pytest.raises(ValueError, match=r"not|values"):
        ListedWorkflow.parsed(sk)


def test_counts_of_workflows_that_expire_are_apart() -> None:
    assert count_key("acme", "w", None).sk.startswith("never#")
    assert count_key("acme", "w", 20_000).sk.startswith("020000#")
    assert count_key("acme", "w", None).pk == "COUNTS#acme"


def test_a_blob_tells_its_document() -> None:
    prefix = document_blob_prefix("acme", "d", GENERATION)
    found = document_blobs_of(f"{prefix}file/1")
    assert found is not None
    assert (found.tenant, found.document, found.prefix) == ("acme", "d", prefix)
    assert found.made_ms == int("01890af20000", 16)
    assert document_blobs_of(prefix) is None
    assert document_blobs_of(f"documents/acme/d/{GENERATION[:-1]}/x") is None
    assert run_blobs_of(f"{prefix}file/1") is None
