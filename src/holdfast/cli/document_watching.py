"""``holdfast documents watch``: the steps of a workflow, its segments, and the time left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click

from holdfast.cli.document_access import documents_of, find_workflow
from holdfast.cli.live_screen import LiveScreen, is_drawable, screen_size
from holdfast.cli.opening import Opened, with_holdfast
from holdfast.cli.parameters import example
from holdfast.cli.run_picture import Line, Mark
from holdfast.cli.text import compact, say, utc_of_ms
from holdfast.clock import Clock, SystemClock
from holdfast.display import printable
from holdfast.documents.time_left import Progress, noted, seconds_left
from holdfast.model.document import DocumentStep, DocumentWorkflow, StepStatus
from holdfast.model.durations import duration_text

__all__ = ["WorkflowView", "follow_workflow", "watch", "watch_workflow"]

_POLL_SECONDS = 1.0
_STATUS_CELLS = 11
_BAR_CELLS_MIN, _BAR_CELLS_MAX = 8, 40
# The longest label, counts and time of a step.
_OTHER_CELLS = 66
# Without a terminal, a line is printed for each of so many parts of a step.
_PLAIN_PARTS = 10
_ENDED = ("completed", "failed")
_MARKS: dict[StepStatus, Mark] = {
    "completed": "done",
    "failed": "failed",
    "in_progress": "running",
    "pending": "pending",
    "skipped": "pending",
}


@dataclass
class WorkflowView:
    """What is known of a workflow at a time."""

    workflow: DocumentWorkflow
    steps: Mapping[str, DocumentStep]
    at_ms: int
    histories: Mapping[str, tuple[Progress, ...]] = field(
        default_factory=dict[str, tuple[Progress, ...]]
    )

    @property
    def has_ended(self) -> bool:
        return self.workflow.status in _ENDED

    def seconds_left(self, step: DocumentStep) -> float | None:
        """Return in how many seconds a step is done; None if that is unknown."""
        if step.status != "in_progress":
            return None
        history = self.histories.get(step.name, ())
        return seconds_left(history, total=step.total, now_ms=self.at_ms)

    @property
    def facts(self) -> tuple[object, ...]:
        """What is shown, without the time: views that have equal facts are alike."""
        steps = [(step.status, step.done, step.total, step.error) for step in self.steps.values()]
        workflow = self.workflow
        return (workflow.status, workflow.total_segments, workflow.error, *steps)


async def follow_workflow(
    holdfast: Opened, workflow: str, *, clock: Clock
) -> AsyncGenerator[WorkflowView, None]:
    """Yield what is known of a workflow, once a second until it has ended."""
    verbs = documents_of(holdfast)
    histories: dict[str, tuple[Progress, ...]] = {}
    while True:
        # The workflow first: if it has ended, its steps have ended, too.
        row = await verbs.workflow(workflow)
        view = WorkflowView(row, await verbs.steps(workflow), clock.now_ms(), histories)
        for name, step in view.steps.items():
            if step.status == "in_progress":
                seen = Progress(view.at_ms, step.done)
                histories[name] = noted(histories.get(name, ()), seen)
        yield view
        if view.has_ended:
            return
        await clock.sleep(_POLL_SECONDS)


@click.command(epilog=example("holdfast documents watch 0190a5c2-e1f6-7c3d-9b0a-4f5e6d7c8b9a"))
@click.argument("id")
@click.option("--plain", is_flag=True, help="Print a line for each change; draw nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each change.")
@with_holdfast(tenant_of="the documents belong")
async def watch(holdfast: Opened, *, id: str, plain: bool, as_json: bool) -> None:
    """Show how ID is processed until that has ended.

    ID is that of a document or of one of its workflows. The exit code is 0 if it is completed, and
    1 if it failed.
    """
    workflow = await find_workflow(holdfast, id)
    if not await watch_workflow(holdfast, workflow.id, as_json=as_json, plain=plain):
        raise click.exceptions.Exit(1)


async def watch_workflow(
    holdfast: Opened,
    workflow: str,
    *,
    as_json: bool = False,
    plain: bool = False,
    clock: Clock | None = None,
) -> bool:
    """Show a workflow until it has ended; return whether it is completed."""
    screen = LiveScreen() if is_drawable() and not (plain or as_json) else None
    shown: WorkflowView | None = None
    async with aclosing(follow_workflow(holdfast, workflow, clock=clock or SystemClock())) as views:
        async for view in views:
            if screen is not None:
                width, height = screen_size()
                screen.draw(list(_picture(view, width=width))[: height - 1])
            elif shown is None or view.facts != shown.facts:
                _print_change(shown, view, as_json=as_json)
            shown = view
    return shown is not None and shown.workflow.status == "completed"


# --- a terminal -----------------------------------------------------------------------------------


def _picture(view: WorkflowView, *, width: int) -> Iterator[Line]:
    workflow = view.workflow
    yield Line(_fitted(f"{workflow.file_name}: {_words(workflow.status)}", width))
    labels = max((len(step.label) for step in view.steps.values()), default=0)
    for step in view.steps.values():
        is_counted = step.status == "in_progress" and step.total
        state = _bar(step, width) if is_counted else _words(step.status).ljust(_STATUS_CELLS)
        parts = [f"  {step.label.ljust(labels)}  {state}", *_details(view, step)]
        yield Line(_fitted("  ".join(parts).rstrip(), width), _MARKS.get(step.status))
    if workflow.error:
        yield Line(_fitted(workflow.error, width), "failed")


def _details(view: WorkflowView, step: DocumentStep) -> Iterator[str]:
    if step.total is not None:
        yield f"{step.done:,}/{step.total:,}"
    elif step.done:
        yield f"{step.done:,}"
    left = view.seconds_left(step)
    if left is not None:
        yield f"about {_time_text(left)} left"
    ended = step.ended_at or (
        datetime.fromtimestamp(view.at_ms / 1000, UTC) if step.status == "in_progress" else None
    )
    if step.started_at is not None and ended is not None and left is None:
        yield _time_text(max(0.0, (ended - step.started_at).total_seconds()))
    if step.error:
        yield step.error


def _bar(step: DocumentStep, width: int) -> str:
    """Return how much of a step is done, as a bar in what other texts leave of the width."""
    cells = min(_BAR_CELLS_MAX, max(_BAR_CELLS_MIN, width - _OTHER_CELLS))
    filled = min(cells, step.done * cells // (step.total or 1))
    return f"[{'#' * filled}{'.' * (cells - filled)}]"


def _fitted(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) < width else f"{shown[: max(0, width - 2)]}…"


def _time_text(seconds: float) -> str:
    return duration_text(1000 * round(seconds))


def _words(status: str) -> str:
    return status.replace("_", " ")


# --- lines ----------------------------------------------------------------------------------------


def _print_change(before: WorkflowView | None, view: WorkflowView, *, as_json: bool) -> None:
    if as_json:
        steps = {
            name: {**step.as_dict(), "seconds_left": view.seconds_left(step)}
            for name, step in view.steps.items()
        }
        click.echo(compact({"workflow": view.workflow.as_dict(), "steps": steps}))
        return
    now = utc_of_ms(view.at_ms)
    for name, step in view.steps.items():
        old = None if before is None else before.steps.get(name)
        if _is_told(old, step):
            told = "  ".join([f"{now}  {step.label}: {_words(step.status)}", *_details(view, step)])
            say(told)
    if before is None or before.workflow.status != view.workflow.status:
        error = f": {view.workflow.error}" if view.workflow.error else ""
        say(f"{now}  {view.workflow.file_name}: {_words(view.workflow.status)}{error}")


def _is_told(old: DocumentStep | None, step: DocumentStep) -> bool:
    """Return whether a step has a new status, or has come to another tenth of its parts."""
    if old is None:
        return step.status != "pending"
    if old.status != step.status:
        return True
    if not step.total or step.status != "in_progress":
        return False
    return old.done * _PLAIN_PARTS // step.total != step.done * _PLAIN_PARTS // step.total
