"""What installations take on disk, compiled as pip does it: the core, the server, the client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure
from bench.kernel import ROOT

CORE_PACKAGES = 3
SERVER_MB_MAX = 100


def measure() -> list[Figure]:
    core, core_mb = _installed(".")
    _, server_mb = _installed(".[server]")
    client, client_mb = _installed(".[client]")
    print(f"  core: {core_mb:.1f} MB, {len(core) - 1} packages besides holdfast: {', '.join(core)}")
    print(f"  with the server: {server_mb:.1f} MB")
    print(f"  with the client: {client_mb:.1f} MB, {len(client) - len(core)} more packages")
    return [
        Figure("packages that the core needs", len(core) - 1, at_most=CORE_PACKAGES),
        Figure("MB on disk with the server", server_mb, at_most=SERVER_MB_MAX),
    ]


def _installed(what: str) -> tuple[list[str], float]:
    """Install something into an empty folder; return the packages there, and their size in MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
        command += ["--disable-pip-version-check", "--constraint", "constraints.txt", what]
        subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        files = [each for each in Path(folder).rglob("*") if each.is_file()]
        # The blocks that files take, as du counts them.
        size = sum(each.stat().st_blocks * 512 for each in files) / 1024**2
        packages = [each.name.partition("-")[0] for each in Path(folder).glob("*.dist-info")]
        return sorted(packages), size
