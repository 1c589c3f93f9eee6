"""Hostile input, from whatever side, meets typed errors, within little memory and time."""

from __future__ import annotations

import sys

import pytest

from tests.confinement import run_confined

TARGETS = {"start": 100, "signal": 100, "state": 100, "answers": 100, "cursors": 150, "stored": 60}
"""What is attacked, and how often."""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be confined")
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_meets_a_typed_error(target: str) -> None:
    run_confined(f"tests.engine.hostile:attack_{target}", "0", str(TARGETS[target]))
