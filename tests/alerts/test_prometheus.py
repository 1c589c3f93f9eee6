"""The rules for Prometheus: each fires when it should and not otherwise, by promtool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.server.metrics import ServerMetrics
from tests.servers.component import command, required

RULES = Path(__file__).parents[2] / "src" / "holdfast" / "cli" / "alert_rules" / "prometheus.yml"
HOURS_26 = 26 * 60

BUCKET = "holdfast_store_operation_seconds_bucket"
Series = dict[str, str]


def latency(operation: str, *, fast: int, all: int, bound: str) -> Series:
    """Return series where ``fast`` of ``all`` operations each minute are within the bound."""
    labels = f'operation="{operation}",job="j"'
    return {
        f'{BUCKET}{{{labels},le="{bound}"}}': f"0+{fast}x60",
        f'{BUCKET}{{{labels},le="10.0"}}': f"0+{all}x60",
        f'{BUCKET}{{{labels},le="+Inf"}}': f"0+{all}x60",
    }


def lag(fast: int) -> Series:
    return {
        'holdfast_claim_lag_seconds_bucket{job="j",le="60.0"}': f"0+{fast}x60",
        'holdfast_claim_lag_seconds_bucket{job="j",le="300.0"}': "0+1000x60",
        'holdfast_claim_lag_seconds_bucket{job="j",le="+Inf"}': "0+1000x60",
    }


def runs(state: str, values: str) -> Series:
    return {f'holdfast_runs{{state="{state}",job="j"}}': values}


def requests(failed: int) -> Series:
    name = "holdfast_http_request_seconds_count"
    return {
        f'{name}{{job="j",route="/v1/runs",status="200"}}': "0+1000x60",
        f'{name}{{job="j",route="/v1/runs",status="503"}}': f"0+{failed}x60",
    }


def per_day(metric: str, cents_a_minute: float) -> Series:
    return {f'{metric}{{job="j"}}': f"0+{cents_a_minute / 100}x{HOURS_26}"}


BUSY = "holdfast_store_throttles_total"
RESUMES = 'holdfast_resume_failures_total{job="j"}'
HEARTBEAT = 'holdfast_worker_heartbeat_age_seconds{instance="i"}'
ERRORS = "holdfast_store_errors_total"
HEALTHY, SLOTS = 'holdfast_workers_healthy{instance="i"}', 'holdfast_worker_slots{instance="i"}'

# (alert, series, minute, whether it fires)
CASES: list[tuple[str, Series, int, bool]] = [
    ("ReadsSlow", latency("query", fast=980, all=1000, bound="0.025"), 30, True),
    ("ReadsSlow", latency("query", fast=995, all=1000, bound="0.025"), 30, False),
    ("ReadsSlow", latency("query", fast=980, all=1000, bound="0.025"), 5, False),
    ("ReadsSlow", latency("write", fast=500, all=1000, bound="0.025"), 30, False),
    ("WritesSlow", latency("transact", fast=980, all=1000, bound="0.05"), 30, True),
    ("WritesSlow", latency("write", fast=995, all=1000, bound="0.05"), 30, False),
    ("WritesSlow", latency("get", fast=500, all=1000, bound="0.05"), 30, False),
    ("Throttled", {f'{BUSY}{{job="j"}}': "0x10 1x20"}, 12, True),
    ("Throttled", {f'{BUSY}{{job="j"}}': "7x60"}, 30, False),
    ("StoreErrors", {f'{ERRORS}{{job="j",code="store_unavailable"}}': "0+9x60"}, 30, True),
    ("StoreErrors", {f'{ERRORS}{{job="j",code="condition_failed"}}': "0+99x60"}, 30, False),
    ("ResumeFailuresSpike", {RESUMES: "0x120 0+2x20"}, 135, True),
    ("ResumeFailuresSpike", {RESUMES: "0+2x200"}, 135, False),
    ("ResumeFailuresSpike", {RESUMES: "0x120 1x20"}, 135, False),
    ("RunsStuck", runs("stuck", "1x20"), 10, True),
    ("RunsStuck", runs("stuck", "1x3 0x20"), 10, False),
    ("RunsUnserved", runs("unserved", "2x20"), 10, True),
    ("RunsUnserved", runs("unserved", "0x20"), 10, False),
    ("RunsQuarantined", runs("quarantined", "0x5 1x20"), 6, True),
    ("RunsQuarantined", runs("quarantined", "0x20"), 6, False),
    ("ClaimsLate", lag(980), 30, True),
    ("ClaimsLate", lag(999), 30, False),
    ("WorkersDead", {'holdfast_workers{state="dead",job="j"}': "1x20"}, 10, True),
    ("WorkersDead", {'holdfast_workers{state="dead",job="j"}': "1x1 0x20"}, 10, False),
    ("NoWorker", {'holdfast_workers{state="alive",job="j"}': "0x20"}, 10, True),
    ("NoWorker", {'holdfast_workers{state="alive",job="j"}': "1x20"}, 10, False),
    ("WorkerUnhealthy", {HEALTHY: "0x20", SLOTS: "100x20"}, 10, True),
    ("WorkerUnhealthy", {HEALTHY: "0x20", SLOTS: "0x20"}, 10, False),
    ("HeartbeatLate", {HEARTBEAT: "60x20"}, 10, True),
    ("HeartbeatLate", {HEARTBEAT: "15x20"}, 10, False),
    ("CostHigh", per_day("holdfast_store_cost_usd_total", 4), HOURS_26, True),
    ("CostHigh", per_day("holdfast_store_cost_usd_total", 3), HOURS_26, False),
    (
        "CostHigh",
        per_day("holdfast_store_cost_usd_total", 2) | per_day("holdfast_model_cost_usd_total", 2),
        HOURS_26,
        True,
    ),
    ("RequestsFail", requests(50), 30, True),
    ("RequestsFail", requests(5), 30, False),
    ("MetricsStale", {'holdfast_fleet_age_seconds{job="j"}': "0+60x30"}, 20, True),
    ("MetricsStale", {'holdfast_fleet_age_seconds{job="j"}': "30x30"}, 20, False),
    ("MetricsMissing", {}, 10, True),
    ("MetricsMissing", {"holdfast_build_info": "1x20"}, 10, False),
]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    with required():
        tool = command("promtool", debian_package="prometheus")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


def alert_names() -> list[str]:
    return re.findall(r"alert: Holdfast(\w+)", RULES.read_text())


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    tests = [
        {
            "name": f"case {number}: {alert}",
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in given.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="Holdfast{alert}",alertstate="firing"}})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
            ],
        }
        for number, (alert, given, minute, fires) in enumerate(CASES)
    ]
    file = tmp_path / "tests.yml"
    plan = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(json.dumps(plan))  # JSON is YAML
    tested = promtool("test", "rules", str(file))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("fires", [True, False])
def test_each_alert_has_a_case_that_fires_and_one_that_does_not(fires: bool) -> None:
    assert sorted({alert for alert, _, _, each in CASES if each is fires}) == sorted(alert_names())


async def test_the_rules_use_only_metrics_that_exist() -> None:
    async with Holdfast("sqlite://:memory:") as hf:
        known: set[str] = set()
        for family in ServerMetrics(hf).registry.collect():
            endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            known |= {family.name + ending for ending in endings.get(family.type, ("",))}
    text = "\n".join(
        line for line in RULES.read_text().splitlines() if not line.strip().startswith("action:")
    )
    assert set(re.findall(r"holdfast_\w+", text)) <= known
