"""Policies of nodes and runs: pausing, durability, retries and stale pauses."""

from __future__ import annotations

import hashlib
import math
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import CallFailed, InvalidRequest
from holdfast.model.durations import Duration, milliseconds_of, seconds_of

__all__ = ["ONCE", "Durability", "OnFailure", "OnStale", "Pausable", "Retry", "validated_retry"]

Durability: TypeAlias = Literal["every_node", "on_pause"]
"""When a run becomes durable: at its start and after every node, or when it first pauses.

With ``on_pause`` a start returns when the run pauses or ends, and a run that never pauses writes
nothing. It needs a worker in the same process. Without one, or with a session, a scheduled start or
children, the run is ``every_node``.
"""

OnFailure: TypeAlias = Literal["cancel", "spare"]
"""What happens to the other branches when one fails."""

Pausable: TypeAlias = Literal["yes", "no", "blocking"]
"""Whether a node may wait, and whether a checkpoint follows it.

``yes``: it may wait, and a checkpoint follows. ``no``: it must not wait, and its result becomes
durable with the next checkpoint; after a crash the run resumes from the last one. ``blocking``: it
may wait, and a checkpoint follows only if it did.
"""


def _check(field: str, value: object, fits: bool, rule: str) -> None:
    if not fits:
        raise InvalidRequest(f"{field} of a Retry must be {rule}, got {value!r:.80}", field=field)


def _check_number(field: str, value: object, min_value: float, max_value: float = math.inf) -> None:
    fits = isinstance(value, int | float) and min_value <= value <= max_value
    rule = (
        f"a number from {min_value}"
        if max_value == math.inf
        else f"a number from {min_value} to {max_value}"
    )
    _check(field, value, fits, rule)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often, when and after which errors a node or a call is attempted again.

    ``backoff`` is the time before the second attempt. It grows by ``factor`` with each attempt, up
    to ``backoff_max``. The share ``jitter`` of it is random, so that runs that failed together do
    not retry together.
    """

    attempts: int = 3
    """The total number, including the first attempt."""
    backoff: Duration = 1.0
    factor: float = 2.0
    backoff_max: Duration = 300.0
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        whole = type(self.attempts) is int and self.attempts >= 1
        _check("attempts", self.attempts, whole, "an integer from 1")
        milliseconds_of(self.backoff, "backoff")
        _check_number("factor", self.factor, 1)
        milliseconds_of(self.backoff_max, "backoff_max")
        _check_number("jitter", self.jitter, 0, 1)
        kinds = isinstance(self.on, tuple) and all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in self.on
        )
        _check("on", self.on, kinds, "a tuple of exception types, such as (OSError,)")

    def covers(self, error: Exception) -> bool:
        """Return whether the policy retries after this error."""
        if isinstance(error, CallFailed) and any(map(error.is_a, self.on)):
            return True
        return isinstance(error, self.on)

    def backoff_ms(self, failed: int, seed: str) -> int:
        """Return the backoff after this many failed attempts.

        The random part is derived from the seed, so that the function is pure.
        """
        first = seconds_of(self.backoff, "backoff")
        longest = seconds_of(self.backoff_max, "backoff_max")
        full = min(first * self.factor ** min(failed - 1, 64), longest)
        digest = hashlib.blake2b(f"{seed}#{failed}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        return round(full * (1 - self.jitter * draw) * 1000)


ONCE = Retry(attempts=1)
"""No second attempt: the first error fails the run."""


def validated_retry(retry: object) -> Retry:
    """Return a retry policy.

    Raises:
        InvalidRequest: the value is not a Retry.
    """
    if not isinstance(retry, Retry):
        raise InvalidRequest(
            f"retry must be a Retry, such as Retry(attempts=3), got {retry!r:.80}", field="retry"
        )
    return retry


class OnStale(msgspec.Struct, frozen=True):
    """What happens to a run whose pause exceeds ``max_pause``."""

    action: Literal["restart", "escalate", "fail"]
    node: str = ""
    """The node at which the run goes on, unless it fails."""
