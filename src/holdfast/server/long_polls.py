"""Requests that wait for the end of a run, as long as their header Prefer says (RFC 7240)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from holdfast.handle import RunHandle
from holdfast.model.service import RunResult
from holdfast.server.services import Services

__all__ = ["preferred_seconds", "wait_for_result"]

# Load balancers close a connection that is silent for this long.
_WAIT_SECONDS_MAX = 60
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE)


def preferred_seconds(prefer: str | None) -> int:
    """Return how long a request wants to wait; 0 if it does not. Other preferences are ignored."""
    found = None if prefer is None else _WAIT.search(prefer)
    return 0 if found is None else min(int(found[1]), _WAIT_SECONDS_MAX)


async def wait_for_result(
    services: Services, run: RunHandle[Any], seconds: float
) -> RunResult | None:
    """Return the result of a run; None if the run goes on, or the server shuts down before that.

    Raises:
        RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended without a result.
    """
    ending = asyncio.ensure_future(run.result(timeout=seconds))
    stopping = asyncio.ensure_future(services.readiness.stopping.wait())
    try:
        await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        return RunResult(ending.result()) if ending.done() else None
    except TimeoutError:
        return None
    finally:
        ending.cancel()
        stopping.cancel()
