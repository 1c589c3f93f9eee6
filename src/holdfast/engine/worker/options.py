"""The options of a worker, and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypedDict, cast

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, seconds_of
from holdfast.model.names import validated_pool

__all__ = ["WorkerKeywords", "WorkerOptions", "worker_options"]


_COUNT_MAX = 1_000_000


class WorkerKeywords(TypedDict, total=False):
    """The options of a worker, as `Holdfast.worker` takes them by name; see `WorkerOptions`."""

    concurrency: int
    lease: Duration
    poll: Duration | None
    drain: Duration
    hold: Duration
    resumes_max: int
    pools: Iterable[str | None]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker."""

    concurrency: int = 100
    """How many runs the worker drives at once."""
    lease: Duration = 60
    """How long after the worker dies the others wait before they take over its runs."""
    poll: Duration | None = None
    """How long it waits before it polls again if no run was due; None lets the store decide."""
    drain: Duration = 20
    """How long it lets nodes finish when it stops."""
    hold: Duration = 2
    """A run that sleeps or backs off for at most this long keeps its slot meanwhile."""
    resumes_max: int = 5
    """A run is quarantined after so many failed resumes, or lost workers, in a row."""
    pools: Iterable[str | None] = (None,)
    """The pools from which it claims runs; None is the pool without a name."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "resumes_max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _COUNT_MAX:
                message = f"{name} must be an integer from 1 to {_COUNT_MAX:,}, got {value!r:.40}"
                raise InvalidRequest(message, field=name)
        for name in ("lease", "poll", "drain", "hold"):
            if name != "poll" or self.poll is not None:
                seconds_of(getattr(self, name), name)
        if not self.lease_seconds:
            raise InvalidRequest("lease must be more than 0 seconds", field="lease")
        msgspec.structs.force_setattr(self, "pools", _admitted_pools(self.pools))

    @property
    def lease_seconds(self) -> float:
        return seconds_of(self.lease, "lease")

    @property
    def poll_seconds(self) -> float | None:
        return None if self.poll is None else seconds_of(self.poll, "poll")

    @property
    def drain_seconds(self) -> float:
        return seconds_of(self.drain, "drain")

    @property
    def hold_seconds(self) -> float:
        return seconds_of(self.hold, "hold")


def worker_options(given: WorkerKeywords) -> WorkerOptions:
    """Return the options that were given by name.

    Raises:
        InvalidRequest: there is no such option, or a value is invalid.
    """
    known = WorkerOptions.__struct_fields__
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise InvalidRequest(
                f"a worker has no such option: {name!r:.80}{meant} The options are: "
                + ", ".join(known),
                field=name[:80],
            )
    return WorkerOptions(**given)


def _admitted_pools(pools: Any) -> tuple[str | None, ...]:
    if isinstance(pools, str) or not isinstance(pools, Iterable):
        raise InvalidRequest(f"pools must be a list of names, got {pools!r:.80}", field="pools")
    named = cast(Iterable[object], pools)
    admitted = [None if pool is None else validated_pool(pool) for pool in named]
    if not admitted:
        raise InvalidRequest("pools must contain at least one pool", field="pools")
    return tuple(dict.fromkeys(admitted))
