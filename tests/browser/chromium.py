"""Debian's Chromium for playwright, which brings no browser of its own."""

from __future__ import annotations

import os
import shutil

from tests.servers.component import command

__all__ = ["ARGUMENTS", "executable"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root there is no sandbox; containers have a small /dev/shm.
ARGUMENTS = [*(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-dev-shm-usage"]


def executable() -> str:
    """Return the path of a Chromium.

    Raises:
        ComponentMissing: there is none, and it may not or cannot be installed.
    """
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return found or command("chromium", debian_package="chromium")
