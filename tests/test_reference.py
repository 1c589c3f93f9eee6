"""The reference is generated from the docstrings, and ``make check`` notices a difference."""

from __future__ import annotations

import importlib
import re

import pytest

import holdfast
from checks import reference
from holdfast.errors import RunFailed
from holdfast.integrations.offline import Offline

PAGE = reference.PAGE.read_text()


def test_the_reference_is_what_would_be_generated() -> None:
    assert reference.differences(PAGE) == []


def test_a_page_that_lacks_a_name_is_reported() -> None:
    without = PAGE.replace("| `Holdfast` |", "| `Gone` |")
    assert any(line.startswith("+| `Holdfast` |") for line in reference.differences(without))


@pytest.mark.parametrize("module", ["holdfast", "holdfast.errors", "holdfast.storage"])
def test_the_reference_lists_a_name_under_its_module(module: str) -> None:
    section = PAGE.partition(f"(`{module}`)\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)", section, re.MULTILINE)
    assert sorted(named) == sorted(importlib.import_module(module).__all__)


@pytest.mark.parametrize(
    "name", ["Holdfast", "RunHandle", "Context", "Graph", "Worker", "Quota", "Run", "RunFilter"]
)
def test_every_public_member_is_listed(name: str) -> None:
    cls = getattr(holdfast, name)
    listed = {each.name for each in reference.members(cls)}
    own = {each for each in vars(cls) if not each.startswith("_")}
    assert own <= listed


def test_a_method_is_shown_as_it_is_called() -> None:
    shown = {each.name: each.signature for each in reference.members(holdfast.RunHandle)}
    assert shown["retry"] == "await retry(*, from_node=…, keep_answers=…)"
    assert shown["events"].startswith("async for events(*, after=…, follow=…")
    assert shown["id"] == "id"


def test_a_constructor_is_shown_as_it_is_called() -> None:
    shown = {each.name: each.signature for each in reference.members(holdfast.Holdfast)}
    assert shown["__init__"].startswith("Holdfast(url, *, tenant=…")


def test_a_method_without_a_docstring_has_that_of_its_port() -> None:
    shown = {each.name: each.summary for each in reference.members(Offline)}
    assert shown["answer"].startswith("Ask the model once")


def test_what_only_the_engine_calls_is_left_out() -> None:
    listed = {each.name for each in reference.members(holdfast.Graph)}
    assert {"check", "draw", "name", "node", "route"} <= listed
    assert not {"step", "outstanding", "retried"} & listed
    assert "_json`" not in PAGE, "how a form in JSON is made is not for users"


def test_an_error_names_its_attributes_also_those_of_its_base() -> None:
    assert {"node", "kind", "reason", "trace"} <= {
        each.name for each in reference.members(RunFailed)
    }


def test_a_name_without_a_docstring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast.Graph, "__doc__", None)
    monkeypatch.setattr("inspect.getdoc", lambda value: value.__doc__)
    with pytest.raises(LookupError, match=r"holdfast\.Graph has no docstring"):
        reference.summary("holdfast", "Graph")
