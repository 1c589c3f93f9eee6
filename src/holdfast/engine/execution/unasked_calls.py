"""Warns about a node that ran again and took another way than before.

A node that runs again must ask for the same calls. If it leaves out a call that is recorded, what
decided its way was not recorded: the time, chance, or code that was changed in between.
"""

from __future__ import annotations

from holdfast.display import get_logger
from holdfast.engine.execution.visit import Visit

__all__ = ["warn_of_unasked_calls"]

_log = get_logger("holdfast.calls")
_SHOWN_MAX = 3


def warn_of_unasked_calls(visit: Visit) -> None:
    """Warn of calls that the visit recorded and that its node, which has returned, did not make.

    Calls inside of other calls do not count: the record of the outer one answers for them.
    """
    strand = visit.claimed.execution.strand(visit.branch)
    asked = visit.call_ids.asked
    if strand is None or len(strand.calls) <= len(asked):
        return
    left_out = [
        call
        for call, known in strand.calls.items()
        if known.over and call not in asked and ">" not in call
    ]
    if not left_out:
        return
    shown = ", ".join(f"{call!r:.80}" for call in left_out[:_SHOWN_MAX])
    more = len(left_out) - _SHOWN_MAX
    _log.warning(
        "%s: node %.80r made %s before, and did not when it ran again: its way must depend only on "
        "its input and on what its calls and waits returned. Read the time, random numbers and "
        "files inside of ctx.call",
        visit.claimed.head.key.log_name,
        visit.node,
        f"{shown} and {more} more" if more > 0 else shown,
    )
