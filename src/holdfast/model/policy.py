"""What a node declares about itself: when it may pause, how it is retried, when it is stale."""

from __future__ import annotations

import hashlib
import math
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import CallFailed, InvalidRequest

__all__ = ["ONCE", "Durability", "OnFailure", "OnStale", "Pausable", "Retry", "validated_retry"]

Durability: TypeAlias = Literal["every_node", "on_pause"]
"""When a run becomes durable: with its start and every node, or not before it first pauses.

Under ``on_pause`` a start is acknowledged when the run pauses or ends, and one that never pauses
writes nothing at all. It takes a worker in the same process; without one, and with a session, a
later start or children, a run is ``every_node``.
"""

OnFailure: TypeAlias = Literal["cancel", "spare"]
"""What a branch that fails does to those beside it."""

Pausable: TypeAlias = Literal["yes", "no", "blocking"]
"""Whether a checkpoint stands after a node, and whether it may wait.

``yes``: a checkpoint stands after it, and it may wait. ``no``: it may not wait, and what it
returned becomes durable with the next checkpoint only: a crash goes back to the last one.
``blocking``: it may wait; a checkpoint stands after it only if it did.
"""


def _check(field: str, value: object, fits: bool, rule: str) -> None:
    if not fits:
        raise InvalidRequest(f"{field} of a Retry is {rule}, not {value!r:.80}", field=field)


def _check_number(field: str, value: object, min_value: float, max_value: float = math.inf) -> None:
    fits = isinstance(value, int | float) and min_value <= value <= max_value
    rule = (
        f"a number from {min_value} on"
        if max_value == math.inf
        else f"a number from {min_value} to {max_value}"
    )
    _check(field, value, fits, rule)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often, when and after which errors a node is tried again.

    The pauses grow from ``first_seconds`` by ``factor`` up to ``most_seconds``; of each, the share
    ``jitter`` is drawn, so that runs that failed together do not come back together.
    """

    attempts: int = 3
    """In all, the first one included."""
    first_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 300.0
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        whole = type(self.attempts) is int and self.attempts >= 1
        _check("attempts", self.attempts, whole, "a whole number from 1 on")
        _check_number("first_seconds", self.first_seconds, 0)
        _check_number("factor", self.factor, 1)
        _check_number("max_seconds", self.max_seconds, 0)
        _check_number("jitter", self.jitter, 0, 1)
        kinds = isinstance(self.on, tuple) and all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in self.on
        )
        _check("on", self.on, kinds, "a tuple of kinds of Exception, such as (OSError,)")

    def covers(self, error: Exception) -> bool:
        """Return whether an error of this kind is worth another attempt."""
        if isinstance(error, CallFailed) and any(map(error.is_a, self.on)):
            return True
        return isinstance(error, self.on)

    def backoff_ms(self, failed: int, seed: str) -> int:
        """Return how long to wait after that many failed attempts.

        The draw is derived from the seed, so that to decide stays a pure function.
        """
        full = min(self.first_seconds * self.factor ** min(failed - 1, 64), self.max_seconds)
        digest = hashlib.blake2b(f"{seed}#{failed}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        return round(full * (1 - self.jitter * draw) * 1000)


ONCE = Retry(attempts=1)
"""No second attempt: the first error fails the run."""


def validated_retry(retry: object) -> Retry:
    """Return how often something is tried.

    Raises:
        InvalidRequest: it is not a Retry.
    """
    if not isinstance(retry, Retry):
        raise InvalidRequest(
            f"retry is a Retry, such as Retry(attempts=3), not {retry!r:.80}", field="retry"
        )
    return retry


class OnStale(msgspec.Struct, frozen=True):
    """What becomes of a run whose pause outlasted ``max_pause``."""

    action: Literal["restart", "escalate", "fail"]
    node: str = ""
    """Where it goes on, unless it fails."""
