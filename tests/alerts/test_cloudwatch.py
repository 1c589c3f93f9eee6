"""The alarms for CloudWatch: a valid template, on metrics and log lines that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli.commands import main

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "src" / "holdfast" / "cli" / "alert_rules" / "cloudwatch.json"
RULES = TEMPLATE.with_name("prometheus.yml")


def template() -> dict[str, Any]:
    return json.loads(TEMPLATE.read_text())


def references(value: Any) -> set[str]:
    """Return all names that a part of the template refers to."""
    if isinstance(value, list):
        return set().union(*map(references, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    found = {value["Ref"]} if "Ref" in value else set()
    return found.union(*(references(each) for each in value.values()))


def test_every_reference_and_parameter_is_used() -> None:
    whole = template()
    used = references(whole["Resources"])
    assert used == set(whole["Parameters"])
    for resource in whole["Resources"].values():
        assert resource.get("DependsOn", next(iter(whole["Resources"]))) in whole["Resources"]


def test_the_template_is_valid() -> None:
    # It comes with moto's server, which other tests need anyway.
    api = pytest.importorskip("cfnlint.api")
    assert api.lint_file(TEMPLATE) == []


def test_each_log_filter_matches_lines_that_holdfast_writes() -> None:
    sources = {
        logger: "".join(path.read_text() for path in (ROOT / "src/holdfast" / part).rglob("*.py"))
        for logger, part in (("holdfast.worker", "engine"), ("holdfast.reviews", "review"))
    }
    filters = [
        each["Properties"]
        for each in template()["Resources"].values()
        if each["Type"] == "AWS::Logs::MetricFilter"
    ]
    assert len(filters) == 5
    for properties in filters:
        pattern = r'\$.logger = "(.*?)" && \$.message = "\*(.*)\*"'
        named = re.search(pattern, properties["FilterPattern"])
        assert named is not None
        assert named[2] in sources[named[1]]


def test_each_filter_has_its_alarm() -> None:
    resources = template()["Resources"]
    alarmed = {
        each["Properties"]["MetricName"]
        for each in resources.values()
        if each["Type"] == "AWS::CloudWatch::Alarm"
    }
    for each in resources.values():
        for transformation in each["Properties"].get("MetricTransformations", ()):
            assert transformation["MetricName"] in alarmed


@pytest.mark.parametrize(("system", "file"), [("prometheus", RULES), ("cloudwatch", TEMPLATE)])
def test_the_command_prints_the_rules(system: str, file: Path) -> None:
    printed = CliRunner().invoke(main, ["alerts", system])
    assert (printed.exit_code, printed.output) == (0, file.read_text())


def test_an_unknown_system_is_refused() -> None:
    refused = CliRunner().invoke(main, ["alerts", "nagios"])
    assert refused.exit_code == 2
    assert "'nagios' is not one of 'prometheus', 'cloudwatch'" in refused.output
