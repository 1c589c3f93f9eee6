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
from holdfast.access.api_keys import ApiKeys
from holdfast.client import (
    Client,
    RemoteBulkJobs,
    RemoteDocuments,
    RemoteFleet,
    RemoteKeys,
    RemoteMap,
    RemoteProjects,
    RemoteQuotaLevels,
    RemoteReviews,
    RemoteRun,
    RemoteWebhooks,
)
from holdfast.client import sync as blocking
from holdfast.documents.documents import Documents
from holdfast.documents.projects import Projects
from holdfast.engine.client.bulk_jobs import BulkJobs
from holdfast.engine.client.map_handle import MapHandle
from holdfast.engine.client.quota_levels import QuotaLevels
from holdfast.fleet.fleet import Fleet
from holdfast.review.reviews import Reviews
from holdfast.webhooks.webhooks import Webhooks

# What needs the store itself, or a worker.
ONLY_ON_A_STORE = {
    "callbacks", "clock", "create", "grow_shards", "meter", "saved", "sweep_blobs", "worker",
}  # fmt: skip
# Of documents, what else a store has: what pipelines write, and other ways in.
OF_PIPELINES = {
    *("add", "begin", "begin_again", "blob_prefix", "connect", "connections", "disconnect"),
    *("end_step", "in_progress", "place", "progress_step", "put_segment", "segments"),
    *("set_status", "start_step", "steps", "update_workflow", "workflows"),
}
# What else a store offers, what a client has for it, and which verbs only a store has.
SERVICES: dict[str, tuple[type, type, set[str]]] = {
    "bulk_jobs": (BulkJobs, RemoteBulkJobs, {"claim_due"}),
    "documents": (Documents, RemoteDocuments, OF_PIPELINES),
    "fleet": (Fleet, RemoteFleet, {"ping", "probe_store", "publish"}),
    "keys": (ApiKeys, RemoteKeys, {"get", "verify"}),
    "quota_levels": (QuotaLevels, RemoteQuotaLevels, set()),
    "reviews": (Reviews, RemoteReviews, {"notify", "open_link"}),
    "webhooks": (Webhooks, RemoteWebhooks, {"deliver"}),
}
# Arguments that only the server passes.
INTERNAL = {"joined"}
# Credentials belong to a tenant and to a person, so that a client need not name them.
KNOWN_BY_CREDENTIALS = {"by", "reviewer", "tenant"}
OTHER_TYPES = {"RunHandle": "RemoteRun", "MapHandle": "RemoteMap"}
VERBS = [
    (service, name)
    for service, (ours, _, only) in SERVICES.items()
    for name in sorted(vars(ours))
    if not name.startswith("_") and name not in only
]


def public(kind: type) -> set[str]:
    return {name for each in kind.__mro__ for name in vars(each) if not name.startswith("_")}


def signature(function: Callable[..., Any]) -> tuple[dict[str, Any], str]:
    found = inspect.signature(function)
    parameters = {name: each for name, each in found.parameters.items() if name not in INTERNAL}
    returned = str(found.return_annotation).replace("builtins.", "")
    for ours, theirs in OTHER_TYPES.items():
        returned = returned.replace(ours, theirs)
    return parameters, returned


@pytest.mark.parametrize("name", sorted(public(RunHandle) - {"id", "tenant", "repeated"}))
def test_a_verb_of_a_run_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(RemoteRun, name)) == signature(getattr(RunHandle, name))


@pytest.mark.parametrize("name", sorted(public(MapHandle) - {"id"}))
def test_a_verb_of_a_map_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(RemoteMap, name)) == signature(getattr(MapHandle, name))


@pytest.mark.parametrize(
    "name", sorted(public(Holdfast) - ONLY_ON_A_STORE - {*SERVICES, "tenant", "start", "ambiguous"})
)
def test_a_verb_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(Client, name)) == signature(getattr(Holdfast, name))


@pytest.mark.parametrize(("service", "name"), VERBS)
def test_a_verb_of_a_service_has_the_same_arguments(service: str, name: str) -> None:
    on_a_store, on_a_server, _ = SERVICES[service]
    theirs, returned = signature(getattr(on_a_store, name))
    ours = signature(getattr(on_a_server, name))
    for named in KNOWN_BY_CREDENTIALS & theirs.keys():
        if theirs[named].default is inspect.Parameter.empty:
            theirs[named] = theirs[named].replace(annotation="str | None", default=None)
    ours[0].pop("mine", None)  # a store does not know who asks
    assert ours == (theirs, returned)


@pytest.mark.parametrize("name", ["create", "delete", "get", "list", "update"])
def test_a_verb_of_projects_has_the_same_arguments(name: str) -> None:
    assert signature(getattr(RemoteProjects, name)) == signature(getattr(Projects, name))


def test_a_client_has_every_service_of_a_store() -> None:
    assert set(SERVICES) <= public(Client)
    assert public(Holdfast) - ONLY_ON_A_STORE <= public(Client) | set(SERVICES)
    for _, theirs, _ in SERVICES.values():
        assert public(getattr(blocking, theirs.__name__)) == public(theirs)


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
