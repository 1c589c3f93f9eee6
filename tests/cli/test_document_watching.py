"""How ``holdfast documents watch`` follows a workflow, and what it shows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Holdfast as Store
from holdfast.cli import document_watching, main
from holdfast.cli.document_watching import WorkflowView, follow_workflow, watch_workflow
from holdfast.clock import ManualClock
from holdfast.model.document import DocumentWorkflow
from tests.cli.conftest import Holdfast

SEGMENTS = 100


@pytest.fixture
async def hf() -> AsyncIterator[Store]:
    async with Store("sqlite://:memory:") as opened:
        yield opened


async def begun(hf: Store) -> DocumentWorkflow:
    documents = hf.documents
    await documents.projects.create("Contracts", id="contracts")
    document = await documents.add(
        "contracts", file_uri="s3://in/a.pdf", file_name="a\x1b[2J.pdf", file_type="application/pdf"
    )
    return await documents.begin(document.id)


async def analyze(hf: Store, workflow: str, done: int) -> None:
    if done == 0:
        await hf.documents.set_status(workflow, "in_progress", total_segments=SEGMENTS)
        await hf.documents.start_step(workflow, "segment_analyzer", total=SEGMENTS)
    await hf.documents.progress_step(workflow, "segment_analyzer", done=done)


async def end(hf: Store, workflow: str, status: str = "completed") -> None:
    error = None if status == "completed" else "too many failed"
    await hf.documents.end_step(workflow, "segment_analyzer", status=status, error=error)
    await hf.documents.set_status(workflow, status, error=error)


class SteppingClock(ManualClock):
    """A clock on which each wait passes at once, and something happens meanwhile."""

    def __init__(self, hf: Store, workflow: str) -> None:
        super().__init__()
        self._hf = hf
        self._workflow = workflow
        self.waits = 0
        self.status = "completed"

    async def sleep(self, seconds: float) -> None:
        done = 10 * self.waits
        self.waits += 1
        self.advance(10)
        if done <= SEGMENTS:
            await analyze(self._hf, self._workflow, done)
        else:
            await end(self._hf, self._workflow, self.status)


async def test_a_workflow_is_followed_until_it_has_ended(hf: Store) -> None:
    workflow = await begun(hf)
    clock = SteppingClock(hf, workflow.id)
    views: list[WorkflowView] = []
    left: list[float | None] = []
    async with aclosing(follow_workflow(hf, workflow.id, clock=clock)) as following:
        async for view in following:
            views.append(view)
            left.append(view.seconds_left(view.steps["segment_analyzer"]))
    assert [view.workflow.status for view in (views[0], views[1], views[-1])] == [
        *("pending", "in_progress", "completed")
    ]
    assert [view.has_ended for view in views[-2:]] == [False, True]
    # Ten segments in ten seconds, so as many seconds as segments.
    assert left[:2] == [None, None]
    assert left[2:-1] == pytest.approx([90, 80, 70, 60, 50, 40, 30, 20, 10, 0])


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_each_change_is_a_line(
    hf: Store, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = await begun(hf)
    clock = SteppingClock(hf, workflow.id)
    clock.status = status
    completed = await watch_workflow(hf, workflow.id, plain=True, clock=clock)
    assert completed is (status == "completed")
    lines = [line.partition("Z  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "a\\x1b[2J.pdf: pending"
    assert lines[1].startswith("AI analysis: in progress  0/100")
    assert lines[2] == "a\\x1b[2J.pdf: in progress"
    assert lines[3] == "AI analysis: in progress  10/100  about 1m30s left"
    assert len([line for line in lines if "AI analysis: in progress" in line]) == 11
    ends = {"completed": "completed", "failed": "failed: too many failed"}
    assert lines[-1] == f"a\\x1b[2J.pdf: {ends[status]}"


async def test_each_change_is_a_line_of_json(hf: Store, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = await begun(hf)
    await watch_workflow(hf, workflow.id, as_json=True, clock=SteppingClock(hf, workflow.id))
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 13
    step = shown[2]["steps"]["segment_analyzer"]
    assert (step["done"], step["total"], step["seconds_left"]) == (10, 100, 90)


async def test_a_terminal_is_drawn_and_drawn_again(
    hf: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_watching, "is_drawable", lambda: True)
    monkeypatch.setattr(document_watching, "screen_size", lambda: (80, 24))
    monkeypatch.setenv("NO_COLOR", "1")
    workflow = await begun(hf)
    assert await watch_workflow(hf, workflow.id, clock=SteppingClock(hf, workflow.id))
    drawn = capsys.readouterr().out
    # The name of the file cannot move the cursor.
    assert "a\\x1b[2J.pdf: in progress" in drawn
    assert "AI analysis                [#######.......]  50/100  about 50s left" in drawn
    # 1 line for the document and 10 for its steps, which are drawn over.
    assert drawn.count("\x1b[11A") == 12
    widths = [len(line) for line in drawn.replace("\x1b[K", "").split("\n")]
    assert max(widths) <= 80 + len("\r")


def test_watch_waits_for_what_another_process_does(
    holdfast: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command polls with the real clock, while a thread goes on with the work."""
    monkeypatch.setattr(document_watching, "_POLL_SECONDS", 0.01)
    ready = threading.Event()
    ids: list[str] = []

    async def work() -> None:
        async with Store("sqlite:///runs.db") as hf:
            ids.append((await begun(hf)).id)
            await analyze(hf, ids[0], 0)
            ready.set()
            for done in (30, 60, 100):
                await analyze(hf, ids[0], done)
            await end(hf, ids[0], "failed")

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(60)
    watched = CliRunner().invoke(main, ["documents", "watch", ids[0]])
    thread.join(60)
    assert watched.exit_code == 1, watched.output
    assert watched.stdout.splitlines()[-1].endswith("failed: too many failed")
