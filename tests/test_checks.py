"""The checks of ``make check`` find what they are there to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks import evidence, modules, structure

FINE = '"""A module."""\n\n\nclass Fine:\n    """A class."""\n'


def source(root: Path, name: str, text: str) -> None:
    path = root / "src" / "holdfast" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("#\n" * 501, "501 lines", id="long file"),
        pytest.param("def f():\n" + "    pass\n" * 70, "f has 71 lines", id="long function"),
        pytest.param(
            "class C:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(26)),
            "class C has 26 methods",
            id="large class",
        ),
        pytest.param('"""Whoever reads this."""\n', "'Whoever' hides who acts", id="vague word"),
        pytest.param(
            'def f():\n    """Do it.\n\n    Raises:\n        Fine, OSError, Gone: no.\n    """\n',
            "names 'Gone', which does not exist",
            id="unknown exception",
        ),
        pytest.param(
            'def f():\n    """Do it.\n\n    Raises:\n        click.Abort: no.\n    """\n',
            "names 'click.Abort', which does not exist",
            id="unknown module",
        ),
        pytest.param("class Fine: ...\n", "all define a class 'Fine'", id="one name twice"),
    ],
)
def test_the_structure_is_checked(tmp_path: Path, text: str, problem: str) -> None:
    source(tmp_path, "fine.py", FINE)
    assert list(structure.problems(tmp_path)) == []
    source(tmp_path, "other/wrong.py", text)
    (found,) = structure.problems(tmp_path)
    assert problem in found


def test_what_is_just_within_the_limits_passes(tmp_path: Path) -> None:
    source(tmp_path, "file.py", "#\n" * 500)
    source(tmp_path, "function.py", "def f():\n" + "    pass\n" * 69)
    methods = "".join(f"    def m{n}(self): ...\n" for n in range(25))
    source(tmp_path, "large.py", f"class C:\n{methods}")
    assert list(structure.problems(tmp_path)) == []


def test_the_source_itself_passes() -> None:
    assert list(structure.problems(Path(__file__).parents[1])) == []


def test_a_page_that_was_edited_by_hand_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(evidence.PAGE.read_text().replace("| P2 |", "| P3 |"))
    monkeypatch.setattr(evidence, "PAGE", page)
    assert evidence.problems() == ["docs/reliability.md differs from docs/evidence.json"]


def test_a_planted_bug_that_was_never_run_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(evidence.RECORD.read_text())
    name, bug = record["bugs"].popitem()
    record["bugs"]["a_bug_of_another_time"] = bug
    changed, page = tmp_path / "evidence.json", tmp_path / "reliability.md"
    changed.write_text(json.dumps(record))
    page.write_text(evidence.filled(evidence.PAGE.read_text(), record))
    monkeypatch.setattr(evidence, "RECORD", changed)
    monkeypatch.setattr(evidence, "PAGE", page)
    assert evidence.problems() == [
        f"the planted bug {name} was never run",
        "the planted bug a_bug_of_another_time is gone",
    ]


def test_the_evidence_is_that_of_this_source() -> None:
    assert evidence.problems() == []


def test_a_module_that_the_architecture_does_not_name_is_found(tmp_path: Path) -> None:
    page = modules.PAGE.read_text()
    package = Path(__file__).parents[1] / "src" / "holdfast"
    assert modules.filled(page, package) == page
    (tmp_path / "newcomer.py").write_text('"""Does something new."""\n')
    assert "| `newcomer.py` | Does something new. |" in modules.filled(page, tmp_path)
