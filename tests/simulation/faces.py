"""What a simulated process uses of the product."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from tests.simulation.process import Process

__all__ = ["face_of"]


def face_of(process: Process, *, tenant: str, **options: Any) -> Holdfast:
    """Return an instance on the store, the clock and the ids of a process."""
    return Holdfast(
        process.store.url,
        tenant=tenant,
        store=process.store,
        clock=process.clock,
        ids=process.ids,
        **options,
    )
