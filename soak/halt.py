"""When a soak ends: at its deadline, or when it is asked to."""

from __future__ import annotations

import signal
import time
from types import FrameType

__all__ = ["Halt"]


class Halt:
    """Is over at a moment, or with the first SIGINT or SIGTERM after `catch_signals`."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._asked = False

    @property
    def asked(self) -> bool:
        """Whether somebody asked for the end before its time."""
        return self._asked

    @property
    def is_over(self) -> bool:
        return self.asked or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def part(self, share: float) -> Halt:
        """Return the end of a part that takes a share of what is left, and is asked with this."""
        return _Part(self, share * max(self.seconds_left, 0))

    def catch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        print(f"\n{signal.Signals(number).name}: ending; what is under way is finished first")


class _Part(Halt):
    def __init__(self, whole: Halt, seconds: float) -> None:
        super().__init__(seconds)
        self._whole = whole

    @property
    def asked(self) -> bool:
        return self._whole.asked
