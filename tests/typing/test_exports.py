"""Users can import every type that a public signature mentions."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import (
    ApiKeys,
    Approval,
    BlockingCaller,
    BlockingChild,
    BlockingContext,
    Callbacks,
    Caller,
    Child,
    Context,
    DocumentFiles,
    Documents,
    DocumentUploads,
    Fleet,
    ItemDecorator,
    MapHandle,
    NodeDecorator,
    NoticeTemplate,
    Program,
    Projects,
    Quota,
    Reviews,
    RunHandle,
    Wait,
    Webhooks,
    Worker,
    client,
    sync,
)
from holdfast.client import sync as blocking
from holdfast.server import ServerApp
from holdfast.storage import Blobs, Store, Table

MODULES = (
    *("holdfast", "holdfast.clock", "holdfast.errors", "holdfast.storage", "holdfast.sync"),
    *("holdfast.client", "holdfast.client.sync", "holdfast.server"),
    *("holdfast.integrations.bedrock", "holdfast.integrations.offline"),
    "holdfast.integrations.openai",
)
PUBLIC = {
    f"{module}.{name}": getattr(importlib.import_module(module), name)
    for module in MODULES
    for name in importlib.import_module(module).__all__
}
NAMES = {name.rpartition(".")[2] for name in PUBLIC}
# The library makes these, and users only get them.
MADE_BY_HOLDFAST = {
    *(BlockingCaller, BlockingChild, BlockingContext, Caller, Child, Context, NodeDecorator),
    *(RunHandle, Worker, sync.BlockingStream, sync.RunHandle, sync.Worker, Blobs, Store, Table),
    *(ApiKeys, Callbacks, Fleet, Webhooks),
    *(DocumentFiles, Documents, DocumentUploads, ItemDecorator, MapHandle, Projects),
    *(sync.Documents, sync.MapHandle, sync.Projects),
    *(client.RemoteDocuments, client.RemoteMap, client.RemoteProjects),
    *(blocking.RemoteDocuments, blocking.RemoteMap, blocking.RemoteProjects),
    *(sync.ApiKeys, sync.Callbacks, sync.Fleet, sync.Webhooks),
    *(client.RemoteBulkJobs, client.RemoteQuotaLevels),
    *(blocking.RemoteBulkJobs, blocking.RemoteQuotaLevels),
    *(client.RemoteReviews, blocking.RemoteReviews, sync.Reviews, Reviews),
    *(client.RemoteFleet, client.RemoteKeys, client.RemoteRun, client.RemoteWebhooks),
    *(blocking.RemoteFleet, blocking.RemoteKeys, blocking.RemoteRun, blocking.RemoteWebhooks),
    ServerApp,
}
# The metrics of a server take the figures of a worker; programs print them and do not name them.
CALLED_BY_ENGINE: set[Any] = {
    *(Quota.check_cost, vars(Wait)["kind"].fget, vars(Wait)["of"].__func__),
    vars(Worker)["figures"].fget,
    *(vars(Approval)["terms"].fget, NoticeTemplate.rendered),
    # Uploads store the parts of a file one by one.
    *(DocumentFiles.delete_parts, DocumentFiles.discard_part, DocumentFiles.put_manifest),
    *(DocumentFiles.put_part, DocumentFiles.read_parts),
}
# Users name a program, and the engine calls its methods.
NAMED_ONLY = {Program}


def members(of: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of a class that its users call."""
    for name, member in vars(of).items():
        constructs = name == "__init__" and of not in MADE_BY_HOLDFAST
        if name.startswith("_") and not constructs and name != "__call__":
            continue
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function) and function not in CALLED_BY_ENGINE:
            yield name, inspect.unwrap(function)


def annotations(value: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield where each annotation of a public name is, its text, and the names that it can use."""
    if inspect.isfunction(value):
        for parameter, text in value.__annotations__.items():
            yield parameter, text, value.__globals__
    elif inspect.isclass(value) and value not in NAMED_ONLY:
        module = vars(sys.modules[value.__module__])
        for field, text in vars(value).get("__annotations__", {}).items():
            if not field.startswith("_"):
                yield field, text, module
        for name, function in members(value):
            for parameter, text in function.__annotations__.items():
                yield f"{name}.{parameter}", text, function.__globals__


def is_known(name: str, value: Any) -> bool:
    """Return whether a user finds what an annotation calls by a name."""
    if isinstance(value, typing.TypeVar | typing.ParamSpec) or inspect.ismodule(value):
        return True
    if any(getattr(m, name, None) is value for m in (builtins, typing, collections.abc)):
        return True
    if inspect.isclass(value):
        holdfast = value.__module__.partition(".")[0] == "holdfast"
        return not holdfast or any(value is each for each in PUBLIC.values())
    return name in NAMES


def unknown_names(value: Any) -> Iterator[str]:
    for where, text, names in annotations(value):
        for node in ast.walk(ast.parse(str(text), mode="eval")):
            if not isinstance(node, ast.Name):
                continue
            named = names.get(node.id, getattr(builtins, node.id, None))
            if not is_known(node.id, named):
                yield f"{where}: {node.id}"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_what_a_signature_mentions_can_be_imported(name: str) -> None:
    assert sorted(set(unknown_names(PUBLIC[name]))) == []


class Hidden:
    """A class that no public module exports."""


Hidden.__module__ = "holdfast.hidden"


def mentions(hidden: Hidden) -> None: ...


class Shows:
    field: Hidden

    def method(self) -> Hidden: ...

    @property
    def attribute(self) -> Hidden: ...


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (mentions, ["hidden: Hidden"]),
        (Shows, ["field: Hidden", "method.return: Hidden", "attribute.return: Hidden"]),
    ],
)
def test_a_hidden_class_is_found(value: Callable[..., Any], found: list[str]) -> None:
    assert list(unknown_names(value)) == found
