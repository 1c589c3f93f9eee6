"""The command line of the application, and its settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from documents.models import models
from documents.settings import Settings, settings_from
from tests.examples.documents.conftest import SENTENCE
from tests.examples.documents.files import pdf_file

ROOT = Path(__file__).parents[3]


def environment(folder: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if "DOCUMENTS" not in name}
    known.pop("HOLDFAST_URL", None)
    path = f"{ROOT / 'src'}:{ROOT / 'examples'}"
    return {**known, "PYTHONPATH": path, "DOCUMENTS_DATA": str(folder), "PYTHONUNBUFFERED": "1"}


def documents(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "documents", *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )


def wait_until_completed(folder: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from holdfast import Holdfast\n"
        "async def main():\n"
        "    async with Holdfast(sys.argv[1]) as hf:\n"
        "        [run] = (await hf.list()).runs\n"
        "        await hf.run(run.id).until('finished', 'failed', timeout=100)\n"
        "asyncio.run(main())\n"
    )
    url = f"sqlite:///{folder}/documents.db"
    subprocess.run([sys.executable, "-c", program, url], env=environment(folder), check=True)


@pytest.mark.usefixtures("default_sigint")
def test_documents_are_added_handled_and_shown(tmp_path: Path) -> None:
    data = tmp_path / "data"
    pdf_file(tmp_path / "deal.pdf", [SENTENCE, "Oak Bank sues Elm Bank."])
    added = documents(data, "add", str(tmp_path / "deal.pdf"))
    assert added.returncode == 0, added.stderr
    document = added.stdout.split()[0]
    command = [sys.executable, "-m", "documents", "work"]
    with subprocess.Popen(
        command, env=environment(data), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("working on sqlite:///")
        wait_until_completed(data)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().startswith("stopped; documents go on")
        assert process.wait(timeout=60) == 0
    status = documents(data, "status", document).stdout.splitlines()
    assert status[0] == "deal.pdf: completed"
    assert "  Web crawling               skipped" in status
    assert "  AI analysis                completed" in status
    assert "completed    1\n" in documents(data, "status").stdout
    shown = json.loads(documents(data, "show", document).stdout)
    assert shown["title"].startswith("Elm Bank pays Fir Works")
    found = json.loads(documents(data, "graph", document, "--entity", "elm bank").stdout)
    assert (found["name"], found["segments"]) == ("Elm Bank", [1, 2])
    assert [each["relation"] for each in found["relations"]] == ["pays", "sues"]
    largest = json.loads(documents(data, "graph", document).stdout)
    assert largest["largest"][0]["name"] == "Elm Bank"
    missing = documents(data, "graph", document, "--entity", "Ash Bank")
    assert (missing.returncode, "does not name 'Ash Bank'" in missing.stderr) == (1, True)


def test_mistakes_are_errors_in_one_line(tmp_path: Path) -> None:
    for arguments in (
        ("add", "no-such-file.pdf"),
        ("status", "no-such-document"),
    ):
        failed = documents(tmp_path / "data", *arguments)
        assert (failed.returncode, failed.stderr[:7]) == (1, "Error: "), failed.stderr
        assert failed.stderr.count("\n") == 1


def test_a_file_that_cannot_be_added_is_named_and_the_rest_is_added(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "full.txt").write_text(SENTENCE)
    empty, full = str(tmp_path / "empty.txt"), str(tmp_path / "full.txt")
    added = documents(tmp_path / "data", "add", empty, full)
    assert added.returncode == 1
    assert added.stdout.split()[1:] == [full]
    assert added.stderr == (f"{empty}: 'empty.txt' is empty\nError: 1 of 2 could not be added\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"DOCUMENTS_MODEL_SMALL": "anthropic.claude-haiku-4-5"}, "set both of DOCUMENTS_MODEL"),
        ({"DOCUMENTS_BDA_PROFILE": "arn:aws:x"}, "set both of DOCUMENTS_BDA"),
        ({"DOCUMENTS_TOLERATE": "5%"}, "DOCUMENTS_TOLERATE must be a share from 0 to 1"),
        ({"DOCUMENTS_TOLERATE": "nan"}, "DOCUMENTS_TOLERATE must be a share from 0 to 1"),
        ({"DOCUMENTS_CONCURRENCY": "0"}, "DOCUMENTS_CONCURRENCY must be a whole number from 1 to"),
        ({"DOCUMENTS_CACHE_BYTES": "9" * 30}, "DOCUMENTS_CACHE_BYTES must be a whole number"),
        ({"DOCUMENTS_TRANSCRIBE_OUTPUT": "here"}, "must be an address such as s3://"),
    ],
)
def test_a_wrong_setting_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_from(given)


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    found = settings_from(
        {
            "DOCUMENTS_DATA": str(tmp_path),
            "DOCUMENTS_MODEL_SMALL": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
            "DOCUMENTS_MODEL_LARGE": "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "DOCUMENTS_TOLERATE": "0.2",
            "AWS_REGION": "eu-west-1",
        }
    )
    assert found.store_url == f"sqlite:///{tmp_path}/documents.db"
    assert (found.tolerate, found.region, found.cache) == (0.2, "eu-west-1", tmp_path / "cache")
    made = models(found)
    assert [model.name for model in made.values()] == [found.model_small, found.model_large]
    rules = models(Settings(data=tmp_path, store_url="sqlite://:memory:"))
    assert all(model.price is not None for model in (*made.values(), *rules.values()))


def test_a_worker_of_holdfast_runs_the_application(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "a.txt").write_text(SENTENCE)
    added = documents(data, "add", str(tmp_path / "a.txt"))
    assert added.returncode == 0, added.stderr
    command = [sys.executable, "-m", "holdfast", "worker", "documents.app:graph"]
    command += ["--models", "documents.app:MODELS", "--url", f"sqlite:///{data}/documents.db"]
    with subprocess.Popen(command, env=environment(data)) as process:
        wait_until_completed(data)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert "completed    1\n" in documents(data, "status").stdout
