"""The blocking API is generated from the async one, and ``make check`` notices a difference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checks import blocking

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "storage")
    )
    return tmp_path


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_the_blocking_api_is_what_would_be_generated() -> None:
    assert list(blocking.differences(ROOT)) == []


def test_a_changed_docstring_of_the_async_api_is_reported(copy: Path) -> None:
    change(copy / "src/holdfast/handle.py", "Send the run a signal.", "Send it a signal.")
    told = "\n".join(blocking.differences(copy))
    assert '-        """Send the run a signal.' in told
    assert '+        """Send it a signal.' in told


def test_a_changed_file_of_the_blocking_api_is_reported(copy: Path) -> None:
    change(copy / "src/holdfast/sync/handle.py", "from_node: str | None = None", "from_node: str")
    told = "\n".join(blocking.differences(copy))
    signature = "retry(self, *, from_node: str | None = None, keep_answers: bool = False)"
    assert f"+    def {signature} -> None:" in told
