"""Where runs stand in the due index: which shard, which pool, and back again from the key."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidName, JournalDamaged
from holdfast.model.names import LABELS_MAX, validated_labels
from holdfast.records.index_keys import DueQueue, IndexKey, shard_of_run
from holdfast.records.keys import (
    RunKey,
    is_record,
    journal_position,
    parsed_text_key,
    ticket_number,
)
from holdfast.records.settings import SHARDS, SHARDS_MAX

names = st.text("abcdefghij-.@0123456789äß ", min_size=1, max_size=20)
graphs = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
counts = st.integers(1, SHARDS_MAX)


# --- shards ---------------------------------------------------------------------------------------


@given(names, names, counts)
def test_a_shard_is_in_range_and_always_the_same(tenant: str, id: str, shards: int) -> None:
    shard = shard_of_run(RunKey(tenant, id), shards)
    assert 0 <= shard < shards
    assert shard == shard_of_run(RunKey(tenant, id), shards)


@given(names, counts)
def test_a_tenant_uses_two_different_shards(tenant: str, shards: int) -> None:
    used = {shard_of_run(RunKey(tenant, f"run-{number}"), shards) for number in range(64)}
    assert len(used) == min(shards, 2)


@pytest.mark.parametrize("shards", [2, 7, SHARDS, 16])
def test_tenants_and_their_runs_are_spread_evenly(shards: int) -> None:
    pairs: Counter[frozenset[int]] = Counter()
    runs: Counter[int] = Counter()
    for tenant in range(1_000):
        used = [shard_of_run(RunKey(f"tenant-{tenant}", f"run-{run}"), shards) for run in range(32)]
        pairs[frozenset(used)] += 1
        runs.update(used)
    # Every two shards are somebody's, and no shard has much more than its part.
    assert len(pairs) == shards * (shards - 1) // 2
    assert max(runs.values()) < 1.3 * sum(runs.values()) / shards
    assert min(runs.values()) > 0.7 * sum(runs.values()) / shards


# --- places ---------------------------------------------------------------------------------------


@given(graphs, st.none() | names, st.integers(0, SHARDS_MAX - 1), names, names)
def test_a_place_tells_what_it_was_made_of(
    graph: str, pool: str | None, shard: int, tenant: str, id: str
) -> None:
    queue, run = DueQueue(graph, pool, shard), RunKey(tenant, id)
    due = IndexKey.due(queue, 1_700_000_000_000, run, 7)
    assert due.due_queue() == queue
    assert due.due_parts() == (1_700_000_000_000, run, 7)
    assert IndexKey.owned("w", queue, run, 8).owned_parts() == (queue, run, 8)


def test_the_places_of_the_pool_without_a_name_are_what_they_were() -> None:
    run = RunKey("acme", "doc-42")
    unnamed, named = DueQueue("warranty", None, 2), DueQueue("warranty", "gpu", 2)
    assert IndexKey.due(unnamed, 5, run, 7) == ("DUE#warranty#002", "0000000000005#acme#doc-42#7")
    assert IndexKey.owned("w", unnamed, run, 7) == ("OWN#w", "warranty#002#acme#doc-42#7")
    assert IndexKey.due(named, 5, run, 7).pk == "DUE#warranty@gpu#002"
    assert IndexKey.owned("w", named, run, 7) == ("OWN#w", "warranty@gpu#002#acme#doc-42#7")


# --- the label ------------------------------------------------------------------------------------


def test_a_pool_is_a_label() -> None:
    assert validated_labels(None, pool="gpu") == {"pool": "gpu"}
    assert validated_labels({"pool": "gpu"}, pool="gpu") == validated_labels({"pool": "gpu"})
    assert validated_labels({"desk": "sales"}, pool="gpu") == {"desk": "sales", "pool": "gpu"}
    assert validated_labels(None) == {}


@pytest.mark.parametrize("pool", ["", " gpu", "g#pu", "x" * 65, 7, "a/b"])
def test_what_cannot_be_a_pool_is_refused(pool: object) -> None:
    with pytest.raises(InvalidName) as refused:
        validated_labels(None, pool=pool)  # type: ignore[arg-type]
    assert refused.value.field == "pool"


def test_two_pools_and_one_label_too_many_are_refused() -> None:
    with pytest.raises(
        InvalidName, match="pool and the label 'pool' must be the same, got 'gpu' and 'cpu'"
    ):
        validated_labels({"pool": "cpu"}, pool="gpu")
    full = {f"label-{number}": "x" for number in range(LABELS_MAX)}
    with pytest.raises(InvalidName, match="at most 10 entries, got 11"):
        validated_labels(full, pool="gpu")


# --- keys that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", ["", "²", "٣", "1_0", "+1", "-1", " 1", "1.5", "0x1", "9" * 5000]
)
def test_a_number_in_a_key_is_digits_of_ascii(number: str) -> None:
    """Python's own int() takes five of these, and isdigit() six."""
    places = [
        lambda: IndexKey("DUE#g#000", f"{number}#t#id#1").due_parts(),
        lambda: IndexKey("DUE#g#000", f"1#t#id#{number}").due_parts(),
        lambda: IndexKey(f"DUE#g#{number}", "1#t#id#1").due_queue(),
        lambda: IndexKey("OWN#w", f"g#{number}#t#id#1").owned_parts(),
        lambda: IndexKey("WORKERS", f"{number}#w").worker_parts(),
        lambda: ticket_number(f"T#{number}"),
    ]
    for place in places:
        with pytest.raises(ValueError, match=r"not a number|digits"):
            place()
    with pytest.raises(JournalDamaged):
        parsed_text_key(f"J#generation#~{number}#id#1")
    with pytest.raises(JournalDamaged):
        journal_position(f"J#generation#{number}")
    assert is_record(f"J#generation#{number}") == (number == "9" * 5000)
