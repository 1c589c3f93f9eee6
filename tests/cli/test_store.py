"""``holdfast store``: as a person calls it, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.storage import Put
from holdfast.storage import open as open_store


def holdfast(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_shows_the_forms_of_an_address(tmp_path: Path) -> None:
    for arguments in (["-h"], ["store", "--help"], ["store", "create", "-h"]):
        done = holdfast(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
    assert "sqlite:////var/lib/holdfast/runs.db    a file by its absolute path" in done.stdout
    assert "0.1.0" in holdfast("--version", cwd=tmp_path).stdout


def test_create_and_check_a_file(tmp_path: Path) -> None:
    created = holdfast("store", "create", "sqlite:///runs.db", cwd=tmp_path)
    assert (created.returncode, created.stdout) == (0, "sqlite:///runs.db is ready\n")
    assert (tmp_path / "runs.db").exists()
    checked = holdfast("store", "check", "sqlite:///runs.db", cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "sqlite:///runs.db answers\n")


def test_sweep_deletes_what_nothing_names(tmp_path: Path) -> None:
    url = "sqlite:///runs.db"
    holdfast("store", "create", url, cwd=tmp_path)
    folder = tmp_path / "runs.db.blobs"
    dead = folder / "keep-10d~" / "default~" / "doc~" / "01999999-0000-7000-8000-000000000000~"
    for path in (dead / "input", folder / "other"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    counted = holdfast("store", "sweep", url, "--dry-run", cwd=tmp_path)
    assert counted.returncode == 0, counted.stderr
    assert counted.stdout.startswith("2 blobs seen, 1 to be deleted (1 runs), 0 runs kept")
    assert (dead / "input").exists()
    swept = holdfast("store", "sweep", url, cwd=tmp_path)
    lines = swept.stdout.splitlines()
    assert lines[-1].startswith("2 blobs seen, 1 deleted (1 runs)")
    assert len(lines) == len(set(lines))
    assert "1 foreign" in swept.stdout
    assert [path.name for path in folder.glob("[!.]*")] == ["other"]
    early = holdfast("store", "sweep", url, "--older-than", "12h", cwd=tmp_path)
    assert early.returncode == 1
    assert "older_than must be" in early.stderr


def test_a_copy_without_its_blobs_is_made_only_when_asked_for(tmp_path: Path) -> None:
    asyncio.run(fill(f"sqlite:///{tmp_path}/runs.db?blobs={tmp_path}/named"))
    url = "sqlite:///runs.db"
    asked = ["--missing-blobs"]
    refused = holdfast("store", "backup", url, "copy.db", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "did you forget ?blobs= in the address?" in refused.stderr.lower()
    assert "[store_corrupt]" in refused.stderr
    made = holdfast("store", "backup", url, "copy.db", *asked, cwd=tmp_path)
    assert "1 blobs, 1 of them missing in the store itself" in made.stdout, made.stderr
    refused = holdfast("store", "restore", "copy.db", url, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--missing-blobs" in refused.stderr
    restored = holdfast("store", "restore", "copy.db", url, *asked, cwd=tmp_path)
    assert "1 of them missing in the backup itself" in restored.stdout, restored.stderr


async def fill(url: str) -> None:
    """Write an item that names a blob."""
    async with open_store(url) as opened:
        ref = await opened.blobs.put(b"x", key="scans/42")
        await opened.table.write(Put({"PK": "p", "SK": "s", "scan": ref.as_item()}))


def test_check_makes_nothing(tmp_path: Path) -> None:
    checked = holdfast("store", "check", "sqlite:///typo.db", cwd=tmp_path)
    assert checked.returncode == 1
    assert "there is no file typo.db [store_not_found]" in checked.stderr
    assert list(tmp_path.iterdir()) == []


def test_create_and_check_a_table_and_a_bucket(
    tmp_path: Path, dynamodb_local: str, moto_server: str
) -> None:
    url = (
        f"dynamodb://from-the-command-line?region=us-east-1&endpoint={dynamodb_local}"
        f"&bucket=from-the-command-line&bucket_endpoint={moto_server}"
    )
    missing = holdfast("store", "check", url, cwd=tmp_path)
    assert missing.returncode == 1
    assert "[store_not_found]" in missing.stderr
    for command in ("create", "create", "check"):
        done = holdfast("store", command, url, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_a_definition_is_a_template_that_can_be_piped(tmp_path: Path) -> None:
    done = holdfast("store", "definition", "dynamodb://runs", cwd=tmp_path)
    template = json.loads(done.stdout)
    assert template["Resources"]["Table"]["Type"] == "AWS::DynamoDB::Table"


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["store", "create", "runs.db"], "it must begin with sqlite: or dynamodb:", 1),
        (["store", "check", "sqlite:///none/runs.db"], "[store_not_found]", 1),
        (["store", "definition", "sqlite:///runs.db"], "a file needs no definition", 1),
        (["store", "create"], "Missing argument 'URL'", 2),
        (["stores"], "No such command", 2),
    ],
)
def test_an_error_is_one_message_and_no_traceback(
    tmp_path: Path, arguments: list[str], message: str, code: int
) -> None:
    done = holdfast(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_shards_are_shown_and_grown(tmp_path: Path) -> None:
    url = "sqlite:///runs.db"
    assert holdfast("store", "create", url, cwd=tmp_path).returncode == 0
    for arguments, printed in (
        ([], "8\n"),
        (["--grow", "16"], "16\n"),
        (["--grow", "16"], "16\n"),
        ([], "16\n"),
    ):
        done = holdfast("store", "shards", *arguments, url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
    for count, message in (("8", "shards must be at least the current"), ("257", "from 1 to 256")):
        done = holdfast("store", "shards", "--grow", count, url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
    assert holdfast("store", "shards", "sqlite:///typo.db", cwd=tmp_path).returncode == 1
    assert not (tmp_path / "typo.db").exists()
