"""Hostile values, from whatever side, meet typed errors, within little memory and time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 540


@pytest.mark.parametrize("target", ["start", "signal", "state", "answer", "argument", "stored"])
def test_a_hostile_value_meets_a_typed_error(target: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.hostile", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
