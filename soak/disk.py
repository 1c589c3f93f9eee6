"""A disk that is full, broken or slow for a while: what `disk.c` does to processes that load it."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Literal, TypeAlias

from soak.findings import FOLDER
from tests.servers.component import ComponentMissing

__all__ = ["Ailment", "Disk"]

SOURCE = Path(__file__).with_name("disk.c")
MILLION = 1_000_000
_CONTROL = struct.Struct("=IIII")
_MODES = {"full": 1, "broken": 2, "stalled": 3}

Ailment: TypeAlias = Literal["full", "broken", "stalled"]
"""Writes fail with ENOSPC; writes and syncs fail with EIO; both take long."""


class Disk:
    """The disk below one folder, for processes that are started with `environment`."""

    def __init__(self, store: Path, control: Path) -> None:
        """Make the control file.

        Raises:
            ComponentMissing: There is no C compiler.
        """
        self._store = store
        self._control = control
        self._library = compiled()
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    def environment(self, seed: int) -> dict[str, str]:
        """Return what a process needs in its environment, so that its disk can go wrong."""
        return {
            "LD_PRELOAD": str(self._library),
            "HOLDFAST_SOAK_STORE": f"{self._store.resolve()}/",
            "HOLDFAST_SOAK_CONTROL": str(self._control),
            "HOLDFAST_SOAK_SEED": str(seed),
        }

    def ail(self, ailment: Ailment, *, rate: float = 1.0, stall_seconds: float = 0.0) -> None:
        """Let a part of all writes go wrong from now on."""
        self._set(_MODES[ailment], round(rate * MILLION), round(stall_seconds * 1000))

    def heal(self) -> None:
        """Let everything go well from now on."""
        self._set(0, 0, 0)

    @property
    def struck(self) -> int:
        """How many calls went wrong so far."""
        return _CONTROL.unpack(self._map[:])[3]

    def close(self) -> None:
        self._map.close()

    def _set(self, mode: int, rate: int, stall_ms: int) -> None:
        # The mode last: who sees it sees the rest.
        self._map[4:12] = struct.pack("=II", rate, stall_ms)
        self._map[0:4] = struct.pack("=I", mode)


def compiled() -> Path:
    """Return the library that `disk.c` makes, compiled anew only where it has changed.

    Raises:
        ComponentMissing: There is no C compiler, or it fails.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = FOLDER / f"disk-{digest}.so"
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ComponentMissing("there is no C compiler (cc), so no disk can be made to fail")
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = library.with_suffix(".part")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(part), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ComponentMissing(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    part.rename(library)
    return library
