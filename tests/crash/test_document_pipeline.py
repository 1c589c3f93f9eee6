"""Two workers process a document, and one of them is killed with -9; see `bench.large_document`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bench.document_work import Plan
from bench.large_document import Measurement

PLAN = Plan(
    pages=60,
    kills=1,
    answer_seconds=0.3,
    lease_seconds=2,
    # A shared question of a dead worker is asked again after 30 seconds only.
    share=False,
    image_pixels=50_000,
    scans_every=0,
)


@pytest.mark.parametrize("seed", [3, 5])
async def test_a_killed_worker_repeats_no_recorded_model_call(tmp_path: Path, seed: int) -> None:
    outcome = await Measurement(tmp_path, PLAN, Random(seed)).run()
    assert len(outcome.kills) == 1
    assert outcome.recorded_repeated == set()
    assert outcome.not_in_flight == {}
    assert outcome.under_another_key == set()
    assert outcome.analyses == {"completed 1": PLAN.pages}
    assert outcome.largest_item[0] < 9 * 1024, outcome.largest_item
    assert outcome.largest_state[0] < 256 * 1024, outcome.largest_state
