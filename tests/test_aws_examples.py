"""The examples for AWS: Lambda handlers that are killed, a worker in a container, two templates."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cfnlint.api
import pytest

from holdfast import Holdfast
from holdfast.integrations.aws_lambda import STREAM_FILTER
from tests.integrations.lambda_calls import event_named

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "aws"
GUIDES = ROOT / "docs" / "guides"

# What Lambda does with a handler. The lease is short, so that the test need not wait for it.
LAMBDA = """
import dataclasses, json, os, sys
from holdfast.integrations.aws_lambda import due_runs
made = due_runs.LambdaOptions
due_runs.LambdaOptions = lambda: made(
    worker=due_runs.WorkerOptions(lease=1, poll=0.2), idle_seconds=float(os.environ["IDLE"])
)
import handler, orders

class Context:
    def get_remaining_time_in_millis(self):
        return 40_000

async def charge(number, cents, *, idempotency_key):
    print("charged under", idempotency_key, flush=True)
    if os.environ.get("DIES"):
        os._exit(9)
    return "receipt"

orders.charge = charge
print(json.dumps(getattr(handler, sys.argv[1])(json.loads(sys.argv[2]), Context())))
"""


@pytest.fixture
async def url(moto_server: str) -> str:
    address = f"dynamodb://lambda-runs?region=us-east-1&endpoint={moto_server}"
    address += f"&bucket=lambda-blobs&bucket_endpoint={moto_server}"
    async with Holdfast(address) as hf:
        await hf.create()
    return address


def invoke(url: str, name: str, event: object, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {"IDLE": "0.5", **env, "HOLDFAST_URL": url}
    return subprocess.run(
        [sys.executable, "-c", LAMBDA, name, json.dumps(event)],
        cwd=EXAMPLES,
        env={**os.environ, **variables, "PYTHONPATH": f"{EXAMPLES}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def upload_of(key: str) -> dict[str, Any]:
    event = event_named("s3_put")
    event["Records"] = event["Records"][:1]
    event["Records"][0]["s3"]["object"]["key"] = key
    return event


async def test_an_invocation_goes_on_where_a_killed_one_stopped(url: str) -> None:
    killed = invoke(url, "on_upload", upload_of("orders/o-1/4200.pdf"), DIES="1")
    assert killed.returncode == 9, killed.stderr
    # Its worker finds the dead one's lease lapsed: it stays until a lease and a look have passed.
    second = invoke(url, "on_schedule", event_named("schedule"), IDLE="7")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout.splitlines()[-1])["taken over"] == 1
    assert second.stdout.splitlines()[0] == killed.stdout.strip(), "it has the same key"

    async with Holdfast(url) as hf:
        secret = (await hf.keys.create("ops", tenant="default", role="reviewer")).secret
        approval = event_named("http_api_v2")
        approval |= {"rawPath": "/v1/runs/o-1/signals", "rawQueryString": ""}
        approval["requestContext"]["http"]["method"] = "POST"
        approval["headers"] |= {
            "authorization": f"Bearer {secret}",
            "content-type": "application/json",
        }
        approval["body"] = json.dumps({"name": "approved", "payload": True, "signal_id": "a"})
        third = invoke(url, "on_request", approval)
        assert json.loads(third.stdout.splitlines()[-1])["statusCode"] == 200, third.stdout
        assert "charged" not in third.stdout
        assert (await hf.run("o-1").result(timeout=5))["shipped"] is True


async def test_an_invocation_without_work_ends_by_itself(url: str) -> None:
    done = invoke(url, "on_schedule", event_named("schedule"))
    assert (done.returncode, json.loads(done.stdout)) == (0, {})
    ignored = invoke(url, "on_change", event_named("dynamodb_stream"))
    assert json.loads(ignored.stdout) == {"batchItemFailures": []}


def test_the_worker_of_a_container_is_healthy_and_stops_at_sigterm(tmp_path: Path) -> None:
    healthy = tmp_path / "healthy"
    environment = {
        **os.environ,
        "HOLDFAST_URL": f"sqlite:///{tmp_path}/runs.db",
        "HEALTHY_FILE": str(healthy),
        "PYTHONPATH": f"{EXAMPLES}:{ROOT / 'src'}",
    }
    with subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLES / "worker.py")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        shown = json.loads(process.stdout.readline())
        assert shown["SlotsUsed"] == 0
        assert shown["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Holdfast"
        assert healthy.exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("name", ["lambda.yaml", "fargate.yaml"])
def test_a_template_is_valid(name: str) -> None:
    found = cfnlint.api.lint_all((EXAMPLES / name).read_text())
    assert [str(each) for each in found if each.rule.severity != "informational"] == []


@pytest.mark.parametrize("name", ["lambda.yaml", "fargate.yaml"])
def test_a_template_permits_what_the_guide_of_dynamodb_asks_for(name: str) -> None:
    guide = (ROOT / "docs" / "guides" / "dynamodb.md").read_text()
    policy = json.loads(guide.partition("```json\n")[2].partition("```")[0])
    template = (EXAMPLES / name).read_text()
    for action in policy["Statement"][0]["Action"]:
        assert f"- {action}\n" in template


def test_the_template_filters_the_stream_as_the_handler_asks() -> None:
    template = (EXAMPLES / "lambda.yaml").read_text()
    shown = template.partition("- Pattern: >-\n")[2].splitlines()[0].strip()
    assert [{"Pattern": shown}] == STREAM_FILTER["Filters"]


def test_the_template_has_a_function_for_each_handler() -> None:
    template = (EXAMPLES / "lambda.yaml").read_text()
    named = set(re.findall(r"Handler: handler\.(\w+)", template))
    made = set(re.findall(r"^(on_\w+) =", (EXAMPLES / "handler.py").read_text(), re.MULTILINE))
    assert named == made


@pytest.mark.parametrize(
    ("name", "guide"), [("handler.py", "lambda.md"), ("worker.py", "deploying.md")]
)
def test_the_guide_shows_the_example_as_it_is(name: str, guide: str) -> None:
    assert (EXAMPLES / name).read_text() in (GUIDES / guide).read_text()
