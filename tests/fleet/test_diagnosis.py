"""What the doctor finds: each kind of fact, judged without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.errors import (
    AccessDenied,
    CredentialsMissing,
    HoldfastError,
    StoreFull,
    StoreNotFound,
)
from holdfast.fleet.diagnosis import (
    Finding,
    StoreFacts,
    TargetFacts,
    WaitingFacts,
    error_finding,
    file_findings,
    overview_findings,
    stalled_findings,
    store_findings,
    target_findings,
    waiting_findings,
    worker_findings,
)
from holdfast.model.fleet import FleetOverview, RunCount, StalledPage, StalledRun, WorkerEntry
from holdfast.storage.file_facts import FileFacts, inspect_file, mounted_kind

NOW = datetime(2026, 11, 17, tzinfo=UTC)
GIB = 1024**3


def levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.check) for finding in findings]


def worker(**given: Any) -> WorkerEntry:
    facts: dict[str, Any] = {
        "id": "w-1",
        "alive": True,
        "since_at": NOW,
        "lease_until_at": NOW + timedelta(seconds=50),
        "lease_seconds": 60.0,
        "host": "box",
        "pid": 7,
        "release": "1.0",
        "concurrency": 100,
        "running": 3,
        "lag_seconds": 0.1,
        "graphs": {"orders": (1,)},
        "pools": (None,),
        "complete": True,
        "owned": 3,
    }
    return WorkerEntry(**{**facts, **given})


def page(*ids: str, cursor: str | None = None, **given: Any) -> StalledPage:
    facts: dict[str, Any] = {
        "tenant": "default",
        "graph": "orders",
        "version": 1,
        "pool": None,
        "status": "ready",
        "reason": "no_worker",
        "since_at": NOW,
        "detail": "no live worker serves it",
        "advice": "start one",
    }
    return StalledPage(runs=[StalledRun(id=id, **{**facts, **given}) for id in ids], cursor=cursor)


def overview(**given: Any) -> FleetOverview:
    names = ("ready", "running", "waiting", "failed", "quarantined", "stuck", "unserved")
    facts: dict[str, Any] = {name: RunCount() for name in names}
    facts |= {"workers_alive": 1, "workers_dead": 0, "read_units": 1.0, "counted_at": NOW}
    return FleetOverview(**{**facts, **given})


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (StoreNotFound("there is no table"), "holdfast store create dynamodb://runs"),
        (AccessDenied("no"), "give the role the permissions"),
        (CredentialsMissing("none"), "aws configure"),
        (StoreFull("full"), "free space"),
        (HoldfastError("odd"), "docs/operations.md"),
    ],
)
def test_an_error_of_the_store_says_how_to_repair_it(error: HoldfastError, fix: str) -> None:
    finding = error_finding("store", error, url="dynamodb://runs")
    assert finding.level == "problem"
    assert error.code in finding.what
    assert fix in finding.fix


def test_a_store_that_works_is_ok() -> None:
    found = store_findings(StoreFacts(url="sqlite:///runs.db", has_blobs=True))
    assert levels(found) == [("ok", "read"), ("ok", "write"), ("ok", "blobs")]


def test_a_store_that_cannot_be_read_is_one_problem() -> None:
    found = store_findings(StoreFacts(url="u", has_blobs=True, read_error=StoreNotFound("gone")))
    assert levels(found) == [("problem", "read")]


def test_a_store_that_cannot_be_written_is_a_problem() -> None:
    facts = StoreFacts(
        url="u", has_blobs=True, write_error=StoreFull("full"), blob_error=AccessDenied("no")
    )
    assert levels(store_findings(facts)) == [
        ("ok", "read"),
        ("problem", "write"),
        ("problem", "blobs"),
    ]


def test_a_table_without_a_bucket_is_a_warning() -> None:
    found = store_findings(StoreFacts(url="dynamodb://runs?region=x", has_blobs=False))
    assert levels(found)[-1] == ("warning", "blobs")
    assert "&bucket=NAME" in found[-1].fix


# --- its file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"file_system": "ext4", "free_bytes": 9 * GIB, "uses_wal": True}, [("ok", "disk")]),
        ({}, [("ok", "disk")]),
        ({"file_system": "nfs4"}, [("problem", "disk")]),
        ({"uses_wal": False}, [("warning", "log")]),
        ({"free_bytes": GIB // 2}, [("warning", "disk")]),
        ({"free_bytes": 7}, [("problem", "disk")]),
    ],
)
def test_the_place_of_a_file_is_judged(
    facts: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert levels(file_findings(FileFacts(file="runs.db", **facts))) == expected


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /srv rw shared:2 - nfs4 server:/srv rw
24 23 0:6 / /srv/my\\040disk rw - xfs /dev/sdb1 rw
damaged
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs.db", "ext4"),
        ("/srv/runs.db", "nfs4"),
        ("/srvs/runs.db", "ext4"),
        ("/srv/my disk/runs.db", "xfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_innermost_mount(path: str, kind: str) -> None:
    assert mounted_kind(path, MOUNTS) == kind
    assert mounted_kind(path, "") is None


def test_a_file_that_does_not_exist_can_be_inspected(tmp_path: Any) -> None:
    facts = inspect_file(f"{tmp_path}/none.db")
    assert (facts.size_bytes, facts.uses_wal) == (None, None)
    assert facts.free_bytes
    (tmp_path / "short.db").write_bytes(b"x")
    assert inspect_file(f"{tmp_path}/short.db").uses_wal is None


# --- targets --------------------------------------------------------------------------------------


def test_targets_are_judged_one_by_one() -> None:
    found = target_findings(
        [TargetFacts(target="a", graphs=(("orders", 1),)), TargetFacts(target="b", error="gone")]
    )
    assert levels(found) == [("ok", "target"), ("problem", "target")]
    assert "orders (version 1)" in found[0].what


# --- workers --------------------------------------------------------------------------------------


def test_live_workers_are_ok() -> None:
    found = worker_findings([worker(), worker(id="w-2")], now=NOW)
    assert levels(found) == [("ok", "workers")]
    assert found[0].what == "2 live workers, 6 runs in progress"


def test_no_worker_is_a_warning() -> None:
    assert levels(worker_findings([], now=NOW)) == [("warning", "workers")]


def test_a_dead_worker_is_a_warning_that_says_who_takes_over() -> None:
    dead = worker(id="w-2", alive=False)
    (_, alone) = worker_findings([dead], now=NOW)
    assert "is dead and still owns 3 runs" in alone.what
    assert "holdfast worker TARGET" in alone.fix
    (_, together) = worker_findings([worker(), dead], now=NOW)
    assert "a live worker takes them over" in together.fix


def test_a_worker_that_lags_is_a_warning() -> None:
    found = worker_findings([worker(lag_seconds=31.0)], now=NOW)
    assert levels(found) == [("ok", "workers"), ("warning", "lag")]


def test_a_clock_that_is_ahead_is_a_problem() -> None:
    late = NOW + timedelta(seconds=66)
    found = worker_findings([worker(lease_until_at=late)], now=NOW)
    assert levels(found) == [("ok", "workers"), ("problem", "clocks")]
    assert "6 seconds ahead" in found[1].what
    assert len(worker_findings([worker(lease_until_at=late, lease_seconds=0.0)], now=NOW)) == 1


def test_workers_of_two_releases_are_a_warning() -> None:
    found = worker_findings([worker(), worker(id="w-2", release="")], now=NOW)
    assert levels(found) == [("ok", "workers"), ("warning", "releases")]


# --- runs -----------------------------------------------------------------------------------------


def test_runs_without_progress_are_one_problem_for_each_graph_and_reason() -> None:
    unserved = page("r-1", "r-2", "r-3", "r-4", cursor="more")
    found = stalled_findings(page(), unserved, unserved, any_alive=True)
    assert levels(found) == [("ok", "stuck"), ("problem", "unserved")]
    assert found[1].what.startswith(
        "at least 4 runs of graph 'orders' are unserved, such as r-1, r-2, r-3: no live worker"
    )
    assert found[1].fix == "start one"


def test_no_stalled_run_is_ok() -> None:
    found = stalled_findings(page(), page(), page(), any_alive=False)
    assert levels(found) == [("ok", "stuck"), ("ok", "unserved")]


@pytest.mark.parametrize(
    ("ids", "any_alive", "told"),
    [
        (("r-1",), False, "1 run is due and no worker is alive (unserved after 30 s), such as r-1"),
        (
            ("r-1", "r-2"),
            True,
            "2 runs are due and no live worker serves them (unserved after 30 s), such as r-1, r-2",
        ),
    ],
)
def test_a_run_that_is_due_without_a_worker_is_a_warning(
    ids: tuple[str, ...], any_alive: bool, told: str
) -> None:
    found = stalled_findings(page(), page(), page(*ids), any_alive=any_alive)
    assert levels(found) == [("ok", "stuck"), ("warning", "unserved")]
    assert (found[1].what, found[1].fix) == (told, "start one")


def test_runs_without_progress_name_their_tenants() -> None:
    shop = page("r-1", tenant="shop")
    both = page("r-1", tenant="shop").runs + page("r-2").runs
    (_, found) = stalled_findings(page(), shop, shop, any_alive=True)
    assert "such as r-1 (tenant shop): " in found.what
    assert found.fix == "start one; holdfast fleet unserved --tenant shop lists the runs"
    (found, _) = stalled_findings(
        StalledPage(runs=both, cursor=None), page(), page(), any_alive=True
    )
    assert "such as r-1 (tenant shop), r-2: " in found.what
    assert found.fix == "start one; holdfast fleet stuck --all-tenants lists the runs"
    (_, found) = stalled_findings(page(), page(), shop, any_alive=True)
    assert found.fix.endswith("holdfast fleet unserved --grace 0s --tenant shop lists the runs")


def test_failed_runs_name_their_tenants() -> None:
    failed = RunCount(runs=7)
    (found,) = overview_findings(overview(failed=failed, failed_tenants=("shop",)))
    assert found.what == "7 runs of tenant shop failed"
    assert found.fix == (
        "holdfast run list --status failed --tenant shop; then holdfast run retry ID --tenant shop"
    )
    (found,) = overview_findings(overview(failed=failed, failed_tenants=tuple("abcde")))
    assert found.what == "7 runs of tenants a, b, c and 2 more failed"
    assert found.fix.startswith("for each tenant: holdfast run list --status failed --tenant a;")
    (found,) = overview_findings(overview(failed=failed, failed_tenants=("default",)))
    assert found.what == "7 runs failed"
    assert "--tenant" not in found.fix


def test_failed_and_quarantined_runs_are_warnings() -> None:
    found = overview_findings(
        overview(failed=RunCount(runs=10_000, capped=True), quarantined=RunCount(runs=1))
    )
    assert levels(found) == [("warning", "failed"), ("warning", "quarantined")]
    assert found[0].what == "at least 10,000 runs failed"
    assert overview_findings(overview()) == []


def test_what_waits_for_a_person_is_a_warning() -> None:
    found = waiting_findings(WaitingFacts(ambiguous=1, budget=2, quota=3))
    assert levels(found) == [("warning", each) for each in ("ambiguous", "budget", "quota")]
    assert waiting_findings(WaitingFacts()) == []


def test_what_waits_names_its_tenant() -> None:
    found = waiting_findings(WaitingFacts(tenant="shop", ambiguous=1, budget=2, quota=3))
    assert all("of tenant shop" in each.what for each in found)
    assert [each.fix.count(" --tenant shop") for each in found] == [2, 2, 1]
