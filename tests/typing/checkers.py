"""Runs pyright and mypy, both strict, on files: ``python -m tests.typing.checkers`` on the docs.

It prints how many findings the Python examples of each page have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PYTHON = "3.11"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md")])


_EXAMPLE = re.compile(r"(?:Save this as `(\w+\.py)`:\n\n)?```python\n(.*?)```", re.DOTALL)


class Finding(NamedTuple):
    """Something that a checker found wrong with a program."""

    file: str
    """The name of the file; for the package itself its path in the checkout."""
    line: int
    rule: str
    message: str


def pyright_findings(files: Sequence[Path]) -> list[Finding]:
    """Return what pyright finds in strict mode."""
    with tempfile.TemporaryDirectory() as folder:
        # pyright reads files of its project only.
        for file in files:
            shutil.copy(file, folder)
        project = {
            "extraPaths": [str(ROOT / "src")],
            "pythonVersion": PYTHON,
            "typeCheckingMode": "strict",
        }
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(project))
        done = _run(
            ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", folder], {}
        )
    report = json.loads(done)
    assert report["summary"]["filesAnalyzed"] == len(files), report
    return [_pyright_finding(each) for each in report["generalDiagnostics"]]


def _pyright_finding(found: Mapping[str, Any]) -> Finding:
    line = found["range"]["start"]["line"] + 1
    return Finding(_name(found["file"]), line, found.get("rule", ""), found["message"])


def mypy_findings(files: Sequence[Path]) -> list[Finding]:
    """Return what mypy finds in strict mode, also in the package itself."""
    options = ["--strict", "--output=json", f"--python-version={PYTHON}"]
    cache = f"--cache-dir={ROOT / '.cache' / 'mypy'}"
    done = _run(
        ["mypy", *options, cache, *map(str, files)],
        {"MYPYPATH": str(ROOT / "src"), "MYPY_FORCE_COLOR": "0"},
    )
    reports = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
    assert reports or done.startswith("Success") or not done.strip(), done
    return [
        Finding(_name(each["file"]), each["line"], each["code"] or "", each["message"])
        for each in reports
        if each["severity"] == "error"
    ]


def _name(file: str) -> str:
    path = Path(file).resolve()
    source = ROOT / "src"
    return str(path.relative_to(ROOT)) if path.is_relative_to(source) else path.name


def _run(command: Sequence[str], variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


def findings_of_examples() -> dict[str, dict[str, list[Finding]]]:
    """Return what each checker finds in the Python examples of each page that has some."""
    with tempfile.TemporaryDirectory() as folder:
        pages: dict[str, str] = {}
        for page in PAGES:
            name = str(page.relative_to(ROOT))
            for number, (saved, code) in enumerate(_EXAMPLE.findall(page.read_text())):
                # The files of the tutorial import each other.
                is_saved = saved and name == "docs/tutorial.md"
                file = saved if is_saved else re.sub(r"\W", "_", f"{name}_{number}") + ".py"
                (Path(folder) / file).write_text(code)
                pages[file] = name
        files = [Path(folder) / file for file in pages]
        found = {"pyright": pyright_findings(files), "mypy": mypy_findings(files)}
        return {
            name: {
                checker: [each for each in findings if pages.get(each.file) == name]
                for checker, findings in found.items()
            }
            for name in dict.fromkeys(pages.values())
        }


def lines_of(findings: Iterable[Finding], file: Path) -> set[int]:
    """Return the lines of a file that have findings."""
    return {each.line for each in findings if each.file == file.name}


def main() -> None:
    """Print how many findings the examples of each page have."""
    total: Counter[str] = Counter()
    for page, found in findings_of_examples().items():
        counts = {checker: len(findings) for checker, findings in found.items()}
        total.update(counts)
        print(f"{page:32} " + "  ".join(f"{name} {count:4}" for name, count in counts.items()))
        if "--all" in sys.argv:
            for each in (one for findings in found.values() for one in findings):
                print(f"    {each.file}:{each.line} {each.rule}: {each.message.splitlines()[0]}")
    print(f"{'all':32} " + "  ".join(f"{name} {count:4}" for name, count in total.items()))


if __name__ == "__main__":
    main()
