"""Warns about a node that changes the state it was given and does not return the change.

A node gets a copy of the state, so such a change is lost. To look for one costs about as much as to
encode the state again. So each node is looked at in its first visits in this process, and then now
and then; with a larger state only once.
"""

from __future__ import annotations

from typing import Any

from holdfast.display import get_logger
from holdfast.graph.function_program import FunctionProgram
from holdfast.model.execution import Execution
from holdfast.records.keys import RunKey

__all__ = ["warn_of_unreturned_changes"]

_log = get_logger("holdfast.nodes")
_FIRST_VISITS = 16
_EVERY_VISITS = 64
_SMALL_BYTES = 4 * 1024
_CHECKED_BYTES_MAX = 32 * 1024
_NODES_MAX = 10_000

# How often each node was visited in this process; None after it was warned of.
_visits: dict[tuple[str, int, str], int | None] = {}


def warn_of_unreturned_changes(
    program: FunctionProgram,
    execution: Execution,
    branch: str,
    *,
    node: str,
    state: Any,
    returned: Any,
    bytes_held: int,
    run: RunKey,
) -> None:
    """Warn, once for each node, of fields that a node changed in its state and did not return."""
    key = (program.name, program.version, node)
    visits = _visits.get(key, 0)
    if visits is None:
        return
    if len(_visits) >= _NODES_MAX:
        _visits.clear()
    _visits[key] = visits + 1
    if bytes_held > _SMALL_BYTES:
        if visits or bytes_held > _CHECKED_BYTES_MAX:
            return
    elif visits >= _FIRST_VISITS and visits % _EVERY_VISITS:
        return
    fields = program.unreturned_changes(execution, branch, state=state, returned=returned)
    if fields:
        _visits[key] = None
        _log.warning("%s: %s", run.log_name, program.unreturned_text(node, fields))
