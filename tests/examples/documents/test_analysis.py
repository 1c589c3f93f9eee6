"""What is kept of an analysis is bounded, in bytes and whatever a model writes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from documents.analysis import bounded_analysis, shown_analysis
from documents.prompts import Entity, Relation, SegmentAnalysis

NAMES = st.text(max_size=300)


@given(
    summary=st.text(max_size=3_000),
    entities=st.lists(NAMES, max_size=60),
    relations=st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=60),
    model=st.text(max_size=60),
)
def test_an_analysis_is_bounded(
    summary: str, entities: list[str], relations: list[tuple[str, str, str]], model: str
) -> None:
    said = SegmentAnalysis(
        summary=summary,
        entities=[Entity(name, "other") for name in entities],
        relations=[Relation(*relation) for relation in relations],
    )
    kept = bounded_analysis(said)
    assert size(kept) <= 8 * 1024
    shown = shown_analysis(kept, model)
    assert len(shown["summary"].encode()) <= 360
    assert len(shown["entities"]) <= 5
    assert summary.startswith(shown["summary"])


def test_a_large_analysis_keeps_its_first_entities() -> None:
    said = SegmentAnalysis(
        summary="ش" * 5_000,
        entities=[Entity("字" * 500, "other") for _ in range(100)],
        relations=[Relation("字" * 500, "は" * 500, "字" * 500) for _ in range(100)],
    )
    kept = bounded_analysis(said)
    assert 4 * 1024 < size(kept) <= 8 * 1024
    assert len(kept["summary"]) == 1_000
    assert kept["entities"]
    shown = shown_analysis(kept, "eu.anthropic.claude-haiku-4-5-20251001-v1:0")
    assert size(shown) <= 360
    assert shown["summary"]


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
