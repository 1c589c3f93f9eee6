"""The comparison: its figures are those of the files, and the program of Holdfast survives."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "comparison"
PAGE = (ROOT / "docs" / "comparison.md").read_text()
PROGRAMS = sorted(FOLDER.glob("*_orders.py"))


def lines_of_code(text: str) -> int:
    """Count the lines without blanks, comments, docstrings and imports."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and line[0] != "#" and number not in left_out for number, line in lines)


def test_what_counts_as_a_line() -> None:
    text = '"""A docstring\nof two lines."""\nimport os\n\n# A comment\nx = (\n    1\n)\n'
    assert lines_of_code(text) == 3


def test_four_programs_are_compared() -> None:
    assert [path.stem.partition("_")[0] for path in PROGRAMS] == [
        "dbos",
        "holdfast",
        "langgraph",
        "temporal",
    ]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_page_shows_and_counts_the_program(path: Path) -> None:
    assert path.read_text() in PAGE
    counted = re.search(rf"comparison/{path.name}\) \| (\d+) \|", PAGE)
    assert counted is not None
    assert int(counted[1]) == lines_of_code(path.read_text())


def test_the_program_of_holdfast_is_the_shortest() -> None:
    shortest = min(PROGRAMS, key=lambda path: lines_of_code(path.read_text()))
    assert shortest.stem == "holdfast_orders"


@pytest.mark.parametrize("dies", ["", "charging"])
def test_the_order_survives_a_kill(dies: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> list[str]:
        return [sys.executable, str(FOLDER / "holdfast_orders.py"), *arguments]

    def ledger(*, until: str, process: subprocess.Popen[bytes]) -> list[str]:
        """Return what was asked of the shop, as soon as a line of it begins so."""
        path = tmp_path / "ledger.txt"
        for _ in range(300):
            lines = path.read_text().splitlines() if path.exists() else []
            if any(line.startswith(until) for line in lines):
                return lines
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"the shop was never asked to {until}")

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    worker = subprocess.Popen(run("serve"), cwd=tmp_path, env={**environment, "SHOP_DIES": dies})
    subprocess.run(run("start", "o-1"), cwd=tmp_path, env=environment, check=True)
    charged = ledger(until="charge", process=worker)
    worker.kill()
    worker.wait()
    subprocess.run(run("start", "o-1"), cwd=tmp_path, env=environment, check=True)
    for _ in range(2):
        subprocess.run(run("approve", "o-1"), cwd=tmp_path, env=environment, check=True)

    with subprocess.Popen(run("serve"), cwd=tmp_path, env=environment) as second:
        done = ledger(until="ship", process=second)
        second.kill()
    assert len([line for line in done if line.startswith("ship")]) == 1
    assert {line for line in done if line.startswith("charge")} == {charged[0]}, "one key"
