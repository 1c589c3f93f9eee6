"""Checks sizes and words of the source: ``python -m checks.structure``.

- no file over 500 lines, no function over 70, no class over 25 methods;
- no two modules of the package define a class of the same name;
- no text in ``src/`` uses the words that hide who does something.

A new exception needs a reason, beside the limit that it is an exception from.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["problems"]

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
CLASS_METHODS_MAX = 25
VAGUE_WORDS = re.compile(r"\b(whoever|somebody|nobody)\b", re.IGNORECASE)

# The blocking API has the names of the async one, which it is generated from.
TWINS = "sync"


def problems(root: Path) -> Iterator[str]:
    """Yield what is wrong with the Python files below a checkout, one line for each."""
    package = root / "src" / "holdfast"
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path in _files(root):
        text = path.read_text()
        where = path.relative_to(root).as_posix()
        tree = ast.parse(text)
        yield from _sizes(where, text, tree)
        if path.is_relative_to(package):
            yield from _words(where, text)
            if path.parent != package / TWINS:
                for name in _classes(tree):
                    defined[name].append(where)
    for name, places in sorted(defined.items()):
        if len(places) > 1:
            yield f"{', '.join(places)}: all define a class {name!r}; rename all but one"


def _files(root: Path) -> Iterable[Path]:
    folders = ("src", "bench", "checks", "examples", "soak")
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def _sizes(where: str, text: str, tree: ast.Module) -> Iterator[str]:
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{where}: {lines} lines, at most {FILE_LINES_MAX} are allowed"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{where}:{node.lineno}: {node.name} has {length} lines, "
                    f"at most {FUNCTION_LINES_MAX} are allowed"
                )
        elif isinstance(node, ast.ClassDef):
            methods = sum(
                isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body
            )
            if methods > CLASS_METHODS_MAX:
                yield (
                    f"{where}:{node.lineno}: class {node.name} has {methods} methods, "
                    f"at most {CLASS_METHODS_MAX} are allowed"
                )


def _words(where: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        found = VAGUE_WORDS.search(line)
        if found:
            yield f"{where}:{number}: {found.group()!r} hides who acts; name the thing"


def _classes(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def main() -> None:
    """Print every problem; exit with 1 where there is one."""
    found = list(problems(Path(__file__).resolve().parent.parent))
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
