"""What broke: one file a finding, kept from one soak to the next."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

__all__ = ["MESSAGE_CHARS_MAX", "Finding", "Findings", "commit", "kind_of"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "soak"
_WORDS_MAX = 14
MESSAGE_CHARS_MAX = 4_000
"""A longer message is cut when it is kept."""
# What differs from one seed to the next: what is in quotes or brackets, then ids and numbers.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_BRACKETED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_PARTICULARS = re.compile(r"\S*\d\S*|\S+/\S+|[^\w\s]")
_PROMISE = re.compile(r"^(P\d+):\s*")

Status: TypeAlias = Literal["breaks", "gone"]


class Finding(msgspec.Struct, kw_only=True):
    """Something that broke, and how to see it again."""

    where: Literal["simulator", "processes"]
    seed: int
    kind: str
    """What is the same in all findings of one cause, as far as the message tells."""
    message: str
    commit: str
    """The code with which it was first found."""
    status: Status = "breaks"
    tried: str = ""
    """The code with which it was last tried."""
    reduced: str | None = None
    """The least of it that still breaks; None where nobody has looked for that yet."""
    again: str = ""
    """The command by which one sees it again."""

    @property
    def name(self) -> str:
        """By which it is known: the same seed found twice is one finding."""
        return f"{self.where}-{self.seed}"


class Findings:
    """The findings in a folder. Each is written at once, and whole or not at all."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or FOLDER) / "findings"
        self._folder.mkdir(parents=True, exist_ok=True)

    def __iter__(self) -> Iterator[Finding]:
        for file in sorted(self._folder.glob("*.json")):
            yield msgspec.json.decode(file.read_bytes(), type=Finding)

    def keep(self, finding: Finding) -> None:
        """Write a finding down, in the place of what was known of it before."""
        file = self._folder / f"{finding.name}.json"
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(finding), indent=2))
        part.rename(file)


def kind_of(broken: str) -> str:
    """Return what tells an error from others, and is the same for every run that it strikes.

    ``broken`` is the error as `tests.simulation.seeds.shown` writes it.
    """
    error, _, message = broken.partition("\n")[0].partition(": ")
    promise = _PROMISE.match(message)
    head = promise.group(1) if promise else error
    rest = message[promise.end() :] if promise else message
    rest, before = _QUOTED.sub(" ", rest), ""
    while rest != before:
        before, rest = rest, _BRACKETED.sub(" ", rest)
    rest = _PARTICULARS.sub(" ", rest)
    return f"{head}: {' '.join(rest.split()[:_WORDS_MAX])}".rstrip()


def commit() -> str:
    """Return the commit of this tree, and whether it was changed since; empty without git."""
    try:
        asked = [
            subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
            )
            for arguments in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    head, changed = (one.stdout.strip() for one in asked)
    return f"{head}+changes" if changed else head
