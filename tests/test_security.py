"""SECURITY.md promises only what a test verifies."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))
REFERENCE = re.compile(r"`tests/[\w/]+\.py::test_\w+`")


def promises() -> list[str]:
    """Return each point of the section of promises, with all of its lines."""
    section = PAGE.partition("\n## What Holdfast promises\n")[2].partition("\n## ")[0]
    points = re.split(r"^(?=- |### )", section, flags=re.MULTILINE)
    return [point for point in points if point.startswith("- ")]


@cache
def functions_in(path: Path) -> set[str]:
    """Return the tests that pytest collects in a file, each once, whatever its parameters."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, test = named.partition("::")
    path = ROOT / file
    assert path.is_file(), f"SECURITY.md names {file}, which does not exist"
    assert path.name.startswith("test_")
    assert test in functions_in(path), f"SECURITY.md names {test}, which {file} does not have"


@pytest.mark.parametrize("promise", promises(), ids=lambda text: text[2:42].strip())
def test_a_promise_names_the_test_that_verifies_it(promise: str) -> None:
    assert REFERENCE.search(promise), f"nothing verifies this promise:\n{promise}"


def test_every_line_of_the_promises_belongs_to_a_point() -> None:
    """A promise in running text would need no test."""
    section = PAGE.partition("\n## What Holdfast promises\n")[2].partition("\n## ")[0]
    assert len(promises()) >= 30
    for line in section.splitlines():
        assert not line or line.startswith(("### ", "- ", "  ")), line


def test_the_page_can_be_found() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(SECURITY.md)" in (ROOT / page).read_text()
