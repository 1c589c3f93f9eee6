"""Finds out whether Python files of a project have changed, by their times and sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["changed_files", "source_files"]

_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "env"))
# A project with more files is reloaded for the first of them only.
_FILES_MAX = 10_000


def source_files(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """Return the time and the size of every Python file below these folders."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for path in _python_files(folder):
            try:
                facts = path.stat()
            except OSError:  # it was just deleted
                continue
            found[path] = facts.st_mtime_ns, facts.st_size
            if len(found) >= _FILES_MAX:
                return found
    return found


def changed_files(
    before: Mapping[Path, tuple[int, int]], after: Mapping[Path, tuple[int, int]]
) -> list[Path]:
    """Return the files that are new, gone or different, in their order."""
    names = before.keys() | after.keys()
    return sorted(path for path in names if before.get(path) != after.get(path))


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not name.startswith(".")
        )
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(place, name)
