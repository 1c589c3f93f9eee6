"""How a worker works, each option checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.names import validated_pool

__all__ = ["WorkerOptions"]


_COUNT_MAX = 1_000_000


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    concurrency: int = 100
    """How many runs it drives at once."""
    lease_seconds: float = 60.0
    """How long after its death others may take over what it held."""
    poll_seconds: float | None = None
    """How often it asks what is due when nothing was; None takes what suits the store."""
    drain_seconds: float = 20.0
    """How long it lets nodes run on when it is asked to leave."""
    hold_seconds: float = 2.0
    """Up to this a sleep, or a pause before another attempt, is waited for in place."""
    resumes_max: int = 5
    """After so many failed resumes in a row, or workers lost in a row, a run is quarantined."""
    pools: Iterable[str | None] = (None,)
    """The pools whose runs it takes; None is the pool without a name."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "resumes_max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _COUNT_MAX:
                message = f"{name} must be an integer from 1 to {_COUNT_MAX:,}, got {value!r:.40}"
                raise InvalidRequest(message, field=name)
        for name in ("lease_seconds", "poll_seconds", "drain_seconds", "hold_seconds"):
            span: Any = getattr(self, name)
            if span is None and name == "poll_seconds":
                continue
            if not isinstance(span, int | float) or span is True or not 0 <= span < 1e9:
                raise InvalidRequest(f"{name} is a number of seconds, not {span!r}", field=name)
        if not self.lease_seconds:
            raise InvalidRequest("lease_seconds is more than 0", field="lease_seconds")
        msgspec.structs.force_setattr(self, "pools", _admitted_pools(self.pools))


def _admitted_pools(pools: Any) -> tuple[str | None, ...]:
    if isinstance(pools, str) or not isinstance(pools, Iterable):
        raise InvalidRequest(f"pools are a list of names, not {pools!r:.80}", field="pools")
    named = cast(Iterable[object], pools)
    admitted = [None if pool is None else validated_pool(pool) for pool in named]
    if not admitted:
        raise InvalidRequest("a worker serves at least one pool", field="pools")
    return tuple(dict.fromkeys(admitted))
