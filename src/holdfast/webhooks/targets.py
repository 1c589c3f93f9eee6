"""How the receivers of webhooks fare in this process: a dead one must not hold up others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["Targets"]

_CONCURRENCY_MAX = 4
_FAILURES_BEFORE_REST = 5
_REST_SECONDS_MAX = 300.0
_KNOWN_MAX = 10_000


class _Target:
    def __init__(self) -> None:
        self.attempts = 0
        self.failures = 0
        self.rests_until = 0.0


class Targets:
    """The receivers by webhook. After several failures in a row, one is left alone for a while."""

    def __init__(self) -> None:
        self._targets: OrderedDict[str, _Target] = OrderedDict()

    def has_room(self, webhook: str) -> bool:
        """Return whether another attempt may be made now."""
        return self._of(webhook).attempts < _CONCURRENCY_MAX

    def rest_seconds(self, webhook: str, now: float) -> float:
        """Return for how long a receiver is left alone; 0 if it is not."""
        return max(0.0, self._of(webhook).rests_until - now)

    @contextmanager
    def attempt(self, webhook: str) -> Generator[None]:
        """Count an attempt while it goes on."""
        target = self._of(webhook)
        target.attempts += 1
        try:
            yield
        finally:
            target.attempts -= 1

    def note(self, webhook: str, now: float, *, failed: bool) -> None:
        """Note how an attempt ended."""
        target = self._of(webhook)
        target.failures = target.failures + 1 if failed else 0
        if target.failures >= _FAILURES_BEFORE_REST:
            # Only one attempt follows the rest: if it fails, the next rest is longer.
            seconds = 2.0 ** (target.failures - _FAILURES_BEFORE_REST + 2)
            target.rests_until = now + min(seconds, _REST_SECONDS_MAX)

    def _of(self, webhook: str) -> _Target:
        target = self._targets.get(webhook)
        if target is None:
            target = self._targets[webhook] = _Target()
            if len(self._targets) > _KNOWN_MAX:
                self._targets.popitem(last=False)
        return target
