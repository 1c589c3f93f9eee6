"""pyright and mypy, both strict, find each mistake in a program, and nothing in a right one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.typing.checkers import Finding, mypy_findings, pyright_findings

FOLDER = Path(__file__).parent / "programs"
FILES = sorted(FOLDER.glob("*.py"))


Check: TypeAlias = Callable[[Sequence[Path]], list[Finding]]
CHECKERS: dict[str, Check] = {"pyright": pyright_findings, "mypy": mypy_findings}


def marked_lines(file: Path, checker: str) -> set[int]:
    marks = ("# wrong: ", f"# wrong for {checker}: ")
    lines = enumerate(file.read_text().splitlines(), 1)
    return {number for number, line in lines if any(mark in line for mark in marks)}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_finds_each_mistake_and_nothing_else(checker: str) -> None:
    findings = CHECKERS[checker](FILES)
    for file in FILES:
        found = {each.line: each for each in findings if each.file == file.name}
        marked = marked_lines(file, checker)
        assert [each for line, each in found.items() if line not in marked] == []
        assert sorted(marked - found.keys()) == [], "these mistakes were not found"
    # A method that is called like a builtin, as `list` is, hides it in the class's annotations.
    assert [each for each in findings if each.rule == "valid-type"] == []


def test_there_are_right_and_wrong_programs() -> None:
    counts = {file.name: len(marked_lines(file, "mypy")) for file in FILES}
    assert counts["right.py"] == 0
    assert counts["wrong.py"] >= 90
