"""``holdfast fleet``, and the commands about the fleet that act on a server, too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.targets import load_graphs
from holdfast.sync import Holdfast as Store
from tests.cli.conftest import Holdfast
from tests.cli.due_runs import make_due

EARLY = "2020-01-01T00:00:00Z"


def shown(holdfast: Holdfast, *arguments: str) -> Any:
    done = holdfast(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def start_due(holdfast: Holdfast) -> None:
    """Start a run that is due for years."""
    url = ("--url", "sqlite:///runs.db")
    assert holdfast("run", "start", "flows.py:counting", "--id", "c-1", *url).exit_code == 0
    make_due(EARLY)


def test_workers_and_graphs_are_listed(holdfast: Holdfast, folder: Path) -> None:
    with Store("sqlite:///runs.db") as hf, hf.worker(load_graphs(["flows"]), poll=0.01) as worker:
        (found,) = shown(holdfast, "fleet", "workers")
        assert (found["id"], found["alive"]) == (worker.id, True)
        assert set(found["graphs"]) >= {"asking", "counting"}
        heading, line = holdfast("fleet", "workers").stdout.splitlines()
        assert heading.split()[:4] == ["ID", "STATE", "SINCE", "RUNS"]
        assert line.split()[:2] == [worker.id, "alive"]
        graphs = {each["name"]: each for each in shown(holdfast, "fleet", "graphs")}
        assert graphs["asking"]["version"] == 2
        assert graphs["asking"]["drawing"].startswith("flowchart")
        lines = holdfast("fleet", "graphs").stdout.splitlines()
        assert lines[0].split() == ["GRAPH", "VERSION", "POOLS", "PUBLISHED", "SIGNALS"]
        assert any(line.startswith("approving  ") and "approved" in line for line in lines)


@pytest.mark.only_on_a_store
def test_an_empty_store_has_no_fleet(holdfast: Holdfast) -> None:
    assert holdfast("store", "create", "sqlite:///runs.db").exit_code == 0
    for name, told in (
        ("workers", "no workers"),
        ("graphs", "no graphs"),
        ("stuck", "no stuck runs of this tenant; --all-tenants looks at all of them"),
        ("unserved", "no unserved runs of this tenant; --all-tenants looks at all of them"),
        ("stuck --all-tenants", "no stuck runs"),
        ("unserved --all-tenants", "no unserved runs"),
    ):
        done = holdfast("fleet", *name.split())
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"{told}\n")


def test_runs_without_progress_say_why_and_what_to_do(holdfast: Holdfast) -> None:
    start_due(holdfast)
    for options in ((), ("--all-tenants",), ("--grace", "1h")):
        page = shown(holdfast, "fleet", "unserved", *options)
        assert [(run["id"], run["reason"]) for run in page["runs"]] == [("c-1", "no_worker")]
        assert page["cursor"] is None
    assert shown(holdfast, "fleet", "unserved", "--tenant", "other")["runs"] == []
    assert shown(holdfast, "fleet", "stuck")["runs"] == []
    done = holdfast("fleet", "unserved")
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["RUN", "TENANT", "GRAPH", "REASON", "SINCE", "DETAIL"]
    assert line.split()[:5] == ["c-1", "default", "counting", "v1", "no_worker"]
    assert done.stderr.startswith("fix: start a worker that has graph 'counting'")
    for wrong in (("--limit", "0"), ("--grace", "soon")):
        assert holdfast("fleet", "unserved", *wrong).exit_code == 2
    again = holdfast("fleet", "stuck", "--all-tenants", "--cursor", "nonsense")
    assert (again.exit_code, "[invalid_query]" in again.stderr) == (1, True)


@pytest.mark.only_on_a_store
def test_tables_fit_a_narrow_terminal(
    holdfast: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_due(holdfast)
    monkeypatch.setattr("holdfast.cli.text.terminal_width", lambda: 60)

    def width(name: str) -> int:
        done = holdfast("fleet", name)
        assert done.exit_code == 0, done.output
        return max(map(len, done.stdout.splitlines()))

    assert 40 < width("unserved") <= 60
    with Store("sqlite:///runs.db") as hf, hf.worker(load_graphs(["flows"]), poll=0.01):
        assert 40 < width("workers") <= 60
        assert 40 < width("graphs") <= 60


def test_the_doctor_finds_what_is_unserved(holdfast: Holdfast) -> None:
    start_due(holdfast)
    done = holdfast("doctor")
    assert done.exit_code == 1
    assert "unserved: 1 run of graph 'counting' is unserved, such as c-1" in done.stdout
    assert re.search(r"^ok +address: ", done.stdout)


@pytest.mark.only_on_a_store
def test_the_doctor_of_a_server_that_does_not_answer(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.connection._CONNECT_SECONDS_MAX", 0.1)
    monkeypatch.setattr("holdfast.client.connection._BACKOFF_FIRST_SECONDS", 60)
    done = holdfast("doctor", "--server", "http://127.0.0.1:1", "--json")
    assert done.exit_code == 1, done.output
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["check"], found["level"]) == ("server", "problem")
    assert "[server_unavailable]" in found["what"]
    assert found["why"] == "through it, no run can be started or read"
    assert found["fix"].startswith("is holdfast serve running there? check --server")
    both = holdfast("doctor", "--server", "http://a", "--url", "sqlite:///runs.db")
    assert (both.exit_code, "not both" in both.stderr) == (2, True)


def test_costs_are_added_up_by_group(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    for id, team in (("a", "blue"), ("b", "red")):
        holdfast("run", "start", "flows.py:counting", "--id", id, "--label", f"team={team}", *url)
    found = shown(holdfast, "cost", "--by", "label:team", "--status", "ready")
    assert [(group["key"], group["runs"]) for group in found["groups"]] == [("blue", 1), ("red", 1)]
    assert shown(holdfast, "cost", "--label", "team=red")["total"]["runs"] == 1
