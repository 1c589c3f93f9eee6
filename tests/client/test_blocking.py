"""The blocking client, over a real connection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import RunFilter
from holdfast.cli.targets import load_graphs
from holdfast.client.sync import Client
from holdfast.errors import InvalidQuery, RunNotFound, ServerUnavailable, StoreClosed
from holdfast.sync import Holdfast
from tests.cli.conftest import folder  # noqa: F401 - a fixture
from tests.cli.serving import serving

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "client.md").read_text()


def test_the_blocking_client_has_the_same_verbs(folder: Path) -> None:  # noqa: F811
    with (
        serving(folder) as url,
        Client(url) as client,
        Holdfast(f"sqlite:///{folder}/runs.db") as hf,
    ):
        run = client.start("asking", {"mood": "good"}, id="a")
        with hf.worker(load_graphs(["flows"]), poll=0.01):
            assert run.until("waiting", timeout=30).reason == "signal"
            assert run.signal("answer", "yes").answers_wait
            assert run.result(timeout=30) == {"mood": "good", "answer": "yes"}
        with run.events(follow=False) as stream:
            followed = list(stream)
        assert followed == run.history().entries
        assert [each.id for each in client.list(RunFilter("finished")).runs] == ["a"]
        assert list(client.cancel_all(RunFilter("waiting")))[-1].seen == 0
        assert {each.name for each in client.fleet.graphs()} >= {"asking", "counting"}
        with pytest.raises(RunNotFound):
            client.run("b").get()
        with pytest.raises(InvalidQuery):
            client.list(limit=0)
    with pytest.raises(StoreClosed):
        client.list()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with Client("http://127.0.0.1:1", timeout=0.2) as client, pytest.raises(ServerUnavailable):
        client.list()


def test_the_programs_of_the_guide_run(folder: Path) -> None:  # noqa: F811
    (shop,) = re.findall(r"```python\n(# shop\.py\n.*?)```", GUIDE, re.S)
    programs = re.findall(r"```py\n(.*?)```", GUIDE, re.S)
    assert len(programs) == 2
    (folder / "shop.py").write_text(shop)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_KEY": "secret"}
    with (
        serving(folder) as url,
        Holdfast(f"sqlite:///{folder}/runs.db") as hf,
        hf.worker(load_graphs(["shop"]), poll=0.01),
    ):
        printed = [
            subprocess.run(
                [sys.executable, "-W", "error", "-c", code.replace(ADDRESS, url)],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
            for code in programs
        ]
    assert printed[0].startswith("book True\n")
    assert printed[1] == "waiting\n"


ADDRESS = "https://runs.example.com"
