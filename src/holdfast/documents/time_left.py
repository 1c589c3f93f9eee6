"""How long work will take that is done piece by piece, from the rate of the last minutes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

__all__ = ["Progress", "longest", "noted", "seconds_left"]

# The rate is that of the last minutes in which there was work.
_WINDOW_MS = 300_000
# Fewer pieces say little about the next ones.
_DONE_MIN = 3
# A time without progress is a pause if it is this long, and this many times longer than usual.
_PAUSE_MS = 60_000
_PAUSE_RATIO = 5
# How many observations a reader keeps.
_HISTORY_MAX = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """An observation: how much was done at a time."""

    at_ms: int
    done: int


@dataclass(frozen=True, slots=True)
class _Span:
    """The time from one observation to the next one that showed progress."""

    ms: int
    done: int


def noted(history: Sequence[Progress], seen: Progress) -> tuple[Progress, ...]:
    """Return a history with one more observation.

    It keeps only the first one and those that show progress. Work that has begun anew, so that less
    is done than before, has a history of its own.
    """
    if history and seen.done < history[-1].done:
        return (seen,)
    if history and (seen.done == history[-1].done or seen.at_ms <= history[-1].at_ms):
        return tuple(history)
    return (*history[-(_HISTORY_MAX - 1) :], seen)


def seconds_left(history: Sequence[Progress], *, total: int | None, now_ms: int) -> float | None:
    """Return in how many seconds all is done; None if that is unknown.

    It is unknown without a total, before some pieces are done, and while there is no progress for
    so long that the work must be paused. Time in which the work was paused before does not count.
    """
    if total is None or not history:
        return None
    last = history[-1]
    remaining = total - last.done
    if remaining <= 0:
        return 0.0
    spans = _spans(history)
    if not spans:
        return None
    pause_ms = max(_PAUSE_MS, round(_PAUSE_RATIO * median(span.ms for span in spans)))
    since_ms = max(0, now_ms - last.at_ms)
    if since_ms > pause_ms:
        return None
    ms, done = _recent(spans, pause_ms)
    if done < _DONE_MIN or ms <= 0:
        return None
    # Some of the time of the next pieces has passed, but they are not done.
    left_ms = max(remaining * ms / done - since_ms, ms / done)
    return left_ms / 1000


def longest(estimates: Iterable[float | None]) -> float | None:
    """Return in how many seconds the last of parallel steps is done; None if one is unknown."""
    known = list(estimates)
    if not known or None in known:
        return None
    return max(each for each in known if each is not None)


def _spans(history: Sequence[Progress]) -> list[_Span]:
    return [
        _Span(after.at_ms - before.at_ms, after.done - before.done)
        for before, after in pairwise(history)
        if after.at_ms > before.at_ms and after.done > before.done
    ]


def _recent(spans: Sequence[_Span], pause_ms: int) -> tuple[int, int]:
    """Return the time and the pieces of the last minutes, without pauses."""
    working = [span for span in spans if span.ms <= pause_ms] or spans[-1:]
    ms = done = 0
    for span in reversed(working):
        if ms >= _WINDOW_MS and done >= _DONE_MIN:
            break
        ms += span.ms
        done += span.done
    return ms, done
