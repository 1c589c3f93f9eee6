"""What importing parts of the package brings in: the core is small, and clients have no store."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
# The modules of the packages that the extras install.
OPTIONAL = {
    *("aiohttp", "boto3", "botocore", "httptools", "httpx", "joserfc", "litestar"),
    *("opentelemetry", "prometheus_client", "standardwebhooks", "tiktoken", "uvicorn"),
    *("websockets", "fastapi", "pydantic"),
}


def imported_by(code: str) -> set[str]:
    """Return the names of the modules that a program has imported at its end."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_core_requires_three_packages() -> None:
    names = {re.split(r"[^\w-]", each)[0] for each in PROJECT["dependencies"]}
    assert names == {"click", "msgspec", "zstandard"}


def test_the_core_imports_no_optional_package() -> None:
    code = "from holdfast import *\nfrom holdfast import sync\nsync.Holdfast('sqlite://:memory:')"
    loaded = imported_by(code)
    assert {"holdfast.app", "holdfast.engine", "holdfast.storage.sqlite"} <= loaded
    assert not loaded & OPTIONAL
    assert not {name for name in loaded if name.startswith(("holdfast.server", "holdfast.client"))}


def test_a_client_imports_neither_a_store_nor_the_rest_of_the_library() -> None:
    loaded = imported_by("from holdfast.client import Client\nfrom holdfast.client.sync import *")
    ours = {name.split(".")[1] for name in loaded if name.startswith("holdfast.")}
    assert not ours & {"app", "handle", "public", "server", "storage", "store_services"}
    assert not loaded & (OPTIONAL - {"httpx"})
    assert "sqlite3" not in loaded


def test_a_server_is_imported_only_by_those_who_serve() -> None:
    loaded = imported_by("import holdfast.server")
    assert "litestar" in loaded
    assert not loaded & {"boto3", "joserfc", "opentelemetry", "tiktoken"}
