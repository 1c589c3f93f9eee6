"""``holdfast doctor`` and ``holdfast cost``, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.targets import load_graphs
from holdfast.sync import Holdfast as Store
from tests.cli.conftest import Holdfast
from tests.cli.due_runs import make_due


def findings(output: str) -> dict[str, str]:
    """Return the level of each check."""
    found = json.loads(output)["findings"]
    return {each["check"]: each["level"] for each in found}


def test_a_store_without_an_address_is_a_problem(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    done = holdfast("doctor")
    assert done.exit_code == 1
    assert "problem   address: no store is named" in done.stdout
    assert "fix: export HOLDFAST_URL=" in done.stdout


@pytest.mark.parametrize(
    ("url", "check"),
    [
        ("sqlite:///none.db", "store"),
        ("sqlite://:memory:", "address"),
        ("mysql://x", "address"),
        ("dynamodb://user:secret@runs", "address"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_problem(
    holdfast: Holdfast, url: str, check: str
) -> None:
    done = holdfast("doctor", "--json", "--url", url)
    assert done.exit_code == 1
    assert findings(done.stdout)[check] == "problem"
    assert "secret" not in done.output
    assert not Path("none.db").exists()


def test_a_healthy_store_has_no_problem_and_nothing_is_left_behind(holdfast: Holdfast) -> None:
    holdfast("store", "create", "sqlite:///runs.db")
    done = holdfast("doctor", "--json", "--url", "sqlite:///runs.db", "flows.py")
    assert done.exit_code == 0, done.output
    assert set(findings(done.stdout).values()) == {"ok", "warning"}
    assert findings(done.stdout)["workers"] == "warning"
    with_probe = [each for each in Path().rglob("*probe*") if each.is_file()]
    assert with_probe == []


def test_a_run_that_no_worker_serves_is_a_problem(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    early = "2020-01-01T00:00:00Z"
    started = holdfast("run", "start", "flows.py:counting", "--id", "c-1", *url)
    assert started.exit_code == 0, started.output
    make_due(early)
    done = holdfast("doctor", *url)
    assert done.exit_code == 1
    assert "unserved: 1 run of graph 'counting' is unserved, such as c-1" in done.stdout
    assert "fix: start a worker that has graph 'counting': holdfast worker TARGET" in done.stdout


def test_the_run_of_another_tenant_is_named_with_its_tenant(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    with Store(url[1]) as hf, hf.worker(load_graphs(["flows"])):
        pass  # it publishes its graphs
    holdfast("run", "start", "flows.py:counting", "--id", "c-1", "--tenant", "shop", *url)
    make_due("2020-01-01T00:00:00Z", tenant="shop")
    done = holdfast("doctor", *url)
    assert "1 run of graph 'counting' is unserved, such as c-1 (tenant shop)" in done.stdout
    assert "holdfast fleet unserved --tenant shop lists the runs" in done.stdout
    assert "c-1" in holdfast("fleet", "unserved", "--tenant", "shop", *url).stdout


def test_the_failed_run_of_another_tenant_is_named_with_its_tenant(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    graphs = {graph.name: graph for graph in load_graphs(["flows"])}
    with Store(url[1], tenant="shop") as hf, hf.worker(list(graphs.values()), poll=0.01):
        run = hf.start(graphs["failing"], {"mood": "bad"})
        run.until("failed", timeout=30)
        hf.start(graphs["asking"], {}).until("waiting", timeout=30)
    done = holdfast("doctor", *url)
    assert "failed: 1 run of tenant shop failed" in done.stdout
    assert "fix: holdfast run list --status failed --tenant shop; then" in done.stdout


def test_a_run_that_is_due_without_a_worker_is_a_warning_at_first(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    holdfast("run", "start", "flows.py:counting", "--id", "c-1", *url)
    done = holdfast("doctor", *url)
    assert done.exit_code == 0
    told = "1 run is due and no worker is alive (unserved after 30 s), such as c-1"
    assert f"warning   unserved: {told}" in done.stdout
    assert "no run is unserved" not in done.stdout


def test_a_target_that_cannot_be_imported_is_a_problem(holdfast: Holdfast) -> None:
    Path("broken.py").write_text("raise ValueError('a\\x1b[31m')")
    holdfast("store", "create", "sqlite:///runs.db")
    done = holdfast("doctor", "broken.py", "nowhere:graph", "--url", "sqlite:///runs.db")
    assert done.exit_code == 1
    assert done.stdout.count("problem   target:") == 2
    assert "\x1b" not in done.stdout


def test_cost_is_shown_by_group(holdfast: Holdfast) -> None:
    url = ("--url", "sqlite:///runs.db")
    for id, team in (("a", "blue"), ("b", "blue"), ("c", "red")):
        holdfast("run", "start", "flows.py:counting", "--id", id, "--label", f"team={team}", *url)
    done = holdfast("cost", "--by", "label:team", *url)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["TEAM", "RUNS", "TOKENS", "USD"],
        ["blue", "2", "0", "0.000000"],
        ["red", "1", "0", "0.000000"],
        ["total", "3", "0", "0.000000"],
    ]
    shown = json.loads(holdfast("cost", "--json", "--label", "team=red", *url).stdout)
    assert shown["groups"] == [{"key": "counting", "runs": 1, "tokens": 0, "cost_usd": 0.0}]
    assert shown["total"]["runs"] == 1


def test_an_unknown_group_is_refused(holdfast: Holdfast) -> None:
    done = holdfast("cost", "--by", "node", "--url", "sqlite:///runs.db")
    assert done.exit_code == 2
    assert "by must be graph, day, status or label:NAME" in done.output
