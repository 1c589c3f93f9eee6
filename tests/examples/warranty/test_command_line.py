"""The command line of the application, and its settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidRequest
from warranty.application import application
from warranty.models import models
from warranty.notices import Outbox, Topic
from warranty.settings import settings_from

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "examples" / "warranty" / "documents"


def environment(folder: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if "WARRANTY" not in name}
    known.pop("HOLDFAST_URL", None)
    path = f"{ROOT / 'src'}:{ROOT / 'examples'}"
    return {**known, "PYTHONPATH": path, "WARRANTY_DATA": str(folder), "PYTHONUNBUFFERED": "1"}


def warranty(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "warranty", *arguments],
        env=environment(folder),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_line_adds_documents_and_prints_their_cost(tmp_path: Path) -> None:
    sample = SAMPLES / "kettle.txt"
    first = warranty(tmp_path, "add", str(sample))
    assert (first.returncode, len(first.stdout.split()[0])) == (0, 40), first.stderr
    again = warranty(tmp_path, "add", str(sample))
    assert again.stdout == first.stdout.rstrip() + "  (known)\n"
    event = warranty(tmp_path, "event", "-", given=json.dumps({"Event": "s3:TestEvent"}))
    assert (event.returncode, event.stdout) == (0, "")
    wrong = warranty(tmp_path, "event", "-", given="{")
    assert (wrong.returncode, wrong.stderr[:31]) == (1, "Error: the event must be JSON: ")
    empty = warranty(tmp_path, "event", "-", given="{}")
    assert (empty.returncode, "must be an event of S3" in empty.stderr) == (1, True)
    cost = warranty(tmp_path, "cost", "--json")
    assert cost.returncode == 0, cost.stderr
    told = json.loads(cost.stdout)
    assert [each["status"] for each in told["documents"]] == ["ready"]
    assert told["month"]["idle_worker_usd"] > told["month"]["table_usd"]


def result_of(folder: Path, id: str) -> dict[str, Any]:
    async def wait() -> dict[str, Any]:
        async with Holdfast(f"sqlite:///{folder}/warranty.db") as hf:
            return await hf.run(id).result(timeout=30)

    return asyncio.run(wait())


@pytest.mark.usefixtures("default_sigint")
def test_files_that_are_dropped_are_handled_until_ctrl_c(tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "warranty", "work", "--watch", str(drop)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("working on sqlite:///")
        (drop / "kettle.txt").write_bytes((SAMPLES / "kettle.txt").read_bytes())
        assert result_of(tmp_path, process.stdout.readline().strip())["risk"] == "low"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().startswith("stopped; runs go on")
        assert process.wait(timeout=30) == 0
    assert len(list((tmp_path / "outbox").iterdir())) == 1


def test_a_worker_of_holdfast_runs_the_application(tmp_path: Path) -> None:
    added = warranty(tmp_path, "add", str(SAMPLES / "washing-machine.pdf")).stdout.split()[0]
    command = [sys.executable, "-m", "holdfast", "worker", "warranty.app:graph"]
    command += ["--models", "warranty.app:MODELS", "--url", f"sqlite:///{tmp_path}/warranty.db"]
    with subprocess.Popen(command, env=environment(tmp_path)) as process:
        assert result_of(tmp_path, added)["risk"] == "medium"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_one_model_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="set both of WARRANTY_MODEL_SMALL"):
        settings_from({"WARRANTY_MODEL_SMALL": "anthropic.claude-haiku-4-5"})
    found = settings_from({"WARRANTY_REVIEWERS": "ana@example.com, ,ben@example.com,"})
    assert found.reviewers == ("ana@example.com", "ben@example.com")
    assert found.store_url.startswith("sqlite:///")


@pytest.mark.parametrize("name", ["WARRANTY_TOPIC", "WARRANTY_REVIEW_TOPIC"])
def test_a_topic_is_an_arn_and_names_its_region(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be the ARN of a topic"):
        settings_from({name: "notices"})
    arn = "arn:aws:sns:eu-west-1:123456789012:notices"
    assert settings_from({name: arn}).region == "eu-west-1"
    assert settings_from({name: arn, "AWS_REGION": "us-east-2"}).region == "us-east-2"


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = warranty(tmp_path / "file" / "data", "samples")
    assert (failed.returncode, failed.stderr[:7], failed.stderr.count("\n")) == (1, "Error: ", 1)


async def test_models_on_bedrock_have_their_guardrail(tmp_path: Path) -> None:
    found = settings_from(
        {
            "WARRANTY_DATA": str(tmp_path),
            "WARRANTY_MODEL_SMALL": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
            "WARRANTY_MODEL_LARGE": "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "WARRANTY_GUARDRAIL": "not a guardrail",
        }
    )
    with pytest.raises(InvalidRequest, match="guardrail must be the id or ARN"):
        models(found)
    made = models(replace(found, guardrail="a1b2c3d4e5f6:1"))
    assert [model.name for model in made.values()] == [found.model_small, found.model_large]
    assert all(model.price is not None for model in made.values())


def test_notices_go_to_a_topic_if_there_is_one(tmp_path: Path) -> None:
    found = settings_from(
        {
            "WARRANTY_DATA": str(tmp_path),
            "WARRANTY_TOPIC": "arn:aws:sns:eu-west-1:1:notices",
            "AWS_REGION": "eu-west-1",
        }
    )
    assert isinstance(application(found).notices, Topic)
    assert isinstance(application(replace(found, topic=None)).notices, Outbox)
