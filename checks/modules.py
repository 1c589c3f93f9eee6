"""Keeps the list of modules in docs/architecture.md complete.

``python -m checks.modules --write`` writes the list from the docstring of every module.
Without ``--write`` it fails if the page differs. ``make check`` does this.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["filled"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
_BEGIN, _END = "<!-- modules -->", "<!-- end of modules -->"
# From the outside in, as a call travels. What is not named here stands at the top of the package.
_PACKAGES = (
    "cli",
    "testing",
    "server",
    "server/pages",
    "server/pages/documents",
    "server/routes",
    "server/streams",
    "client",
    "client/sync",
    "sync",
    "integrations",
    "integrations/aws_lambda",
    "integrations/crawling",
    "integrations/reading",
    "access",
    "review",
    "documents",
    "webhooks",
    "documents",
    "fleet",
    "engine/client",
    "engine/worker",
    "engine/execution",
    "engine/effects",
    "engine/history",
    "engine/runs",
    "engine/journal",
    "engine/kernel",
    "graph",
    "records",
    "model",
    "network",
    "storage",
    "storage/backups",
    "storage/sqlite",
    "storage/dynamodb",
    "errors",
)


def filled(page: str, source: Path) -> str:
    """Return the page with the list of all modules below the folder of the package."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "\n".join([f"{before}{_BEGIN}", *_lines(source), f"{_END}{after}"])


def _lines(source: Path) -> Iterable[str]:
    folders = {path.parent.relative_to(source).as_posix() for path in source.rglob("*.py")}
    missing = folders - {".", "engine", *_PACKAGES}
    if missing:
        raise ValueError(f"checks/modules.py does not name the packages {sorted(missing)}")
    for folder in (".", *_PACKAGES):
        modules = sorted((source / folder).glob("*.py"))
        title = "`holdfast/`" if folder == "." else f"`{folder}/`"
        yield f"\n### {title}\n"
        yield "| module | what it is for |"
        yield "|---|---|"
        for module in modules:
            if module.name != "__init__.py":
                yield f"| `{module.name}` | {_summary(module)} |"


def _summary(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def main() -> None:
    """Check the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m checks.modules", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    asked = parser.parse_args()
    page = PAGE.read_text()
    expected = filled(page, ROOT / "src" / "holdfast")
    if asked.write:
        PAGE.write_text(expected)
    elif page != expected:
        print("docs/architecture.md: the list of modules is out of date")
        print("run `python -m checks.modules --write`")
        sys.exit(1)


if __name__ == "__main__":
    main()
