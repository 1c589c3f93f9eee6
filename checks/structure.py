"""Checks sizes and words of the source: ``python -m checks.structure``.

- no file over 500 lines, no function over 70, no class over 25 methods;
- no two modules of the package define a class of the same name;
- no text in ``src/`` uses the words that hide who does something;
- each exception in a ``Raises:`` section of ``src/`` exists.

A new exception needs a reason, beside the limit that it is an exception from.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["problems"]

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
CLASS_METHODS_MAX = 25
VAGUE_WORDS = re.compile(r"\b(whoever|somebody|nobody)\b", re.IGNORECASE)

_RAISES = re.compile(r"^Raises:\n((?:(?: +.*)?\n?)+)", re.MULTILINE)
_RAISED = re.compile(r"^ {4}([\w.]+(?:, [\w.]+)*):", re.MULTILINE)

# The blocking API has the names of the async one, which it is generated from.
TWINS = "sync"


def problems(root: Path) -> Iterator[str]:
    """Yield what is wrong with the Python files below a checkout, one line for each."""
    package = root / "src" / "holdfast"
    defined: defaultdict[str, list[str]] = defaultdict(list)
    trees: dict[str, ast.Module] = {}
    for path in _files(root):
        text = path.read_text()
        where = path.relative_to(root).as_posix()
        tree = ast.parse(text)
        yield from _sizes(where, text, tree)
        if path.is_relative_to(package):
            yield from _words(where, text)
            trees[where] = tree
            if path.parent.name != TWINS:
                for name in _classes(tree):
                    defined[name].append(where)
    for name, places in sorted(defined.items()):
        if len(places) > 1:
            yield f"{', '.join(places)}: all define a class {name!r}; rename all but one"
    yield from _unknown_exceptions(trees)


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
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            # The overloads of a method are one method.
            methods = len({each.name for each in node.body if isinstance(each, functions)})
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


def _unknown_exceptions(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    known = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    for where, tree in trees.items():
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for line, name in _raised(tree):
            module = name.rpartition(".")[0]
            exists = module in imported if module else name in known or hasattr(builtins, name)
            if not exists:
                yield f"{where}:{line}: a Raises section names {name!r}, which does not exist"


def _raised(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the exceptions of all ``Raises:`` sections, each with the line of its definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for section in _RAISES.findall(ast.get_docstring(node) or ""):
                for names in _RAISED.findall(section):
                    yield from ((node.lineno, name) for name in names.split(", "))


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
