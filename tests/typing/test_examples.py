"""pyright and mypy, both strict, find nothing in the examples of the documents."""

from __future__ import annotations

from tests.typing.checkers import findings_of_examples


def test_the_examples_of_all_pages_are_clean() -> None:
    found = findings_of_examples()
    assert {"README.md", "docs/tutorial.md", "docs/guides/pausing.md"} <= found.keys()
    assert [each for page in found.values() for each in (*page["pyright"], *page["mypy"])] == []
