"""The client has the verbs of the library, with the same arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, RunHandle
from holdfast.client import Client, RemoteRun

# What needs the store itself, or a worker.
ONLY_ON_A_STORE = {
    "create", "grow_shards", "meter", "saved", "sweep_blobs", "worker",
    "fleet", "keys", "webhooks", "bulk_jobs", "quota_levels",
}  # fmt: skip
# Arguments that only the server passes.
INTERNAL = {"joined"}
OTHER_TYPES = {"RunHandle": "RemoteRun"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def signature(function: Callable[..., Any]) -> tuple[dict[str, Any], str]:
    found = inspect.signature(function)
    parameters = {name: each for name, each in found.parameters.items() if name not in INTERNAL}
    returned = str(found.return_annotation)
    for ours, theirs in OTHER_TYPES.items():
        returned = returned.replace(ours, theirs)
    return parameters, returned


@pytest.mark.parametrize("name", sorted(public(RunHandle) - {"id", "tenant", "repeated"}))
def test_a_verb_of_a_run_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(RemoteRun, name)) == signature(getattr(RunHandle, name))


@pytest.mark.parametrize(
    "name", sorted(public(Holdfast) - ONLY_ON_A_STORE - {"tenant", "start", "ambiguous"})
)
def test_a_verb_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(Client, name)) == signature(getattr(Holdfast, name))


def test_a_start_also_takes_a_name_and_is_always_durable() -> None:
    ours, _ = signature(Client.start)
    theirs, _ = signature(Holdfast.start)
    assert "str" in str(ours.pop("graph").annotation)
    del theirs["graph"], theirs["durability"]
    assert ours == theirs


def test_the_client_needs_no_package_but_httpx() -> None:
    blocked = ("litestar", "uvicorn", "boto3", "aiohttp", "prometheus_client", "pydantic")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import holdfast.client"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, holdfast, holdfast.cli; assert 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert holdfast.Holdfast is Holdfast
