"""Where the processes of these tests leave their side effects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.flows import EFFECTS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder into which every process that a test starts writes what its nodes did."""
    made = tmp_path / "effects"
    made.mkdir()
    monkeypatch.setenv(EFFECTS, str(made))
    return made
