"""Leaves a run to other workers when this worker's process lacks what a node asks for.

The run pauses with a `ResourceWait` and becomes due again after a backoff that doubles. Nothing
fails, and no attempt counts: what the node did before is recorded, as for every other pause.
"""

from __future__ import annotations

from typing import Literal, NoReturn

from holdfast.display import get_logger
from holdfast.engine.execution.visit import Visit
from holdfast.model.wait import ResourceWait, Wait

__all__ = ["await_worker_with"]

_log = get_logger("holdfast.worker")

_OPTIONS = {
    "model": "Holdfast(models={…}) or `holdfast worker --models …`",
    "task": "Holdfast(tasks={…})",
    "graph": "the graphs of the worker",
}
_BACKOFF_MS = 5_000
_BACKOFF_MS_MAX = 300_000


async def await_worker_with(
    visit: Visit, resource: Literal["model", "task", "graph"], name: str
) -> NoReturn:
    """Pause the run until a worker that has the model or the task of that name may claim it.

    The node pauses even if it was declared with ``pausable="no"``: it would fail otherwise.

    Raises:
        Paused: always.
    """
    visit.check_open()
    claimed, now = visit.claimed, visit.now_ms()
    subject = name.encode(errors="replace").decode()  # a row cannot store a lone surrogate
    kind = ResourceWait(f"{resource}.{subject}")
    known = claimed.known_waits(visit.branch)
    began = [w.since_ms for w in known if (w.visit, w.key) == (visit.visit, kind.key())]
    since = min(began, default=now)
    # As long again as the run has waited so far: the backoff doubles.
    backoff_ms = min(max(now - since, _BACKOFF_MS), _BACKOFF_MS_MAX)
    worker = claimed.claim.worker_id
    _log.warning(
        "%s: node %.80r needs %s %.80r, which worker %s does not have; the run is left to workers "
        "that have it, and tried again in %d s. Pass it to %s, or correct its name",
        claimed.head.key.log_name,
        visit.node,
        resource,
        name,
        worker,
        backoff_ms // 1000,
        _OPTIONS[resource],
    )
    claimed.owner.on_unserved(claimed.head)
    await visit.pause_on(
        Wait.of(
            kind,
            visit=visit.visit,
            branch=visit.branch,
            since_ms=since,
            deadline_ms=now + backoff_ms,
            about=f"{resource} {name!r:.80}, which worker {worker} does not have",
        )
    )
