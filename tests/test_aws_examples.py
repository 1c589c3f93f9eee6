"""The examples for AWS: a Lambda handler that is killed, a worker in a container, two templates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cfnlint.api
import pytest

from holdfast import Holdfast

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "aws"
GUIDE = (ROOT / "docs" / "guides" / "deploying.md").read_text()

# What Lambda does with the handler. The lease is short, so that the test need not wait for it.
LAMBDA = """
import json, os, sys
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
handler.LEASE_SECONDS, handler.IDLE_SECONDS = 1.0, float(os.environ.get("IDLE", "1"))
print(json.dumps(handler.handler(json.loads(sys.argv[1]), Context())))
"""


@pytest.fixture
async def url(moto_server: str) -> str:
    address = f"dynamodb://lambda-runs?region=us-east-1&endpoint={moto_server}"
    address += f"&bucket=lambda-blobs&bucket_endpoint={moto_server}"
    async with Holdfast(address) as hf:
        await hf.create()
    return address


def invoke(url: str, event: dict[str, object], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LAMBDA, json.dumps(event)],
        cwd=EXAMPLES,
        env={**os.environ, **env, "HOLDFAST_URL": url, "PYTHONPATH": f"{EXAMPLES}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


async def test_an_invocation_goes_on_where_a_killed_one_stopped(url: str) -> None:
    killed = invoke(url, {"order": {"number": "o-1", "cents": 4200}}, DIES="1")
    assert killed.returncode == 9
    # Its worker finds the dead one's lease lapsed: it stays until a lease and a look have passed.
    second = invoke(url, {}, IDLE="7")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout.splitlines()[-1])["taken over"] == 1
    assert second.stdout.splitlines()[0] == killed.stdout.strip(), "it has the same key"

    third = invoke(url, {"approve": "o-1"})
    assert json.loads(third.stdout.splitlines()[-1])["finished"] == 1
    assert "charged" not in third.stdout
    async with Holdfast(url) as hf:
        assert (await hf.run("o-1").result(timeout=5))["shipped"] is True


async def test_an_invocation_without_work_ends_by_itself(url: str) -> None:
    done = invoke(url, {})
    assert (done.returncode, json.loads(done.stdout)) == (0, {})


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


@pytest.mark.parametrize("name", ["handler.py", "worker.py"])
def test_the_guide_shows_the_example_as_it_is(name: str) -> None:
    assert (EXAMPLES / name).read_text() in GUIDE
