"""What the servers need from the machine: found, installed if that is allowed, or reported."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache"


class ComponentMissing(RuntimeError):
    """Something that a server needs is not here and could not be installed."""


@contextmanager
def required() -> Iterator[None]:
    """Skip the test if a component is missing, loudly; under ``CI=true`` fail it."""
    try:
        yield
    except ComponentMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"MISSING COMPONENT: {missing}", pytrace=False)
        pytest.skip(f"NOT TESTED, MISSING COMPONENT: {missing}")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock that is shared by all processes of this tree."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def command(name: str, *, debian_package: str) -> str:
    """Return the path of a command; where it is missing and we are root, install it with apt.

    Raises:
        ComponentMissing: it is not here and may not or cannot be installed.
    """
    with locked("apt"):
        if found := shutil.which(name):
            return found
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise ComponentMissing(f"{name} is not installed (Debian has it in {debian_package})")
        install = ["apt-get", "install", "--yes", "--no-install-recommends", debian_package]
        for step in (["apt-get", "update"], install):
            done = subprocess.run(
                step,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise ComponentMissing(f"{name}: {' '.join(step)} failed:\n{done.stdout[-2000:]}")
        if found := shutil.which(name):
            return found
        raise ComponentMissing(f"{name} is not in Debian's {debian_package}")
