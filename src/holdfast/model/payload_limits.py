"""How large a caller's values may be, and how many signals a run may have waiting."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["PayloadLimits"]

_MB = 1024 * 1024


class PayloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on what callers, nodes and models hand in, in bytes before compression.

    A value is measured as MessagePack. For each 8 bytes of its limit it may hold one element of a
    list, key or value of a map, and for each 16 bytes one list or map: small ones take up to 70
    times as much memory as they have bytes.

    All processes that use a store should have the same limits. A process with lower ones refuses
    to read what one with higher ones wrote.
    """

    input_bytes_max: int = 4 * _MB
    """The state with which a run starts; also the input of a child."""
    signal_bytes_max: int = _MB
    """The payload of a signal."""
    state_bytes_max: int = 8 * _MB
    """The state of a run after a node; also the result of a child. While a worker drives it, a run
    holds at most twice as much: its state, what its branches changed, and the answers of the waits
    and calls of nodes that are not over."""
    answer_bytes_max: int = 4 * _MB
    """What one call of a node returns: a tool's result, or a model's answer. Also the result that a
    person gives for a call."""
    arguments_bytes_max: int = 4 * _MB
    """The arguments of one call, or the prompt of a model."""
    inbox_items_max: int = 1_000
    """How many signals of callers may wait in the inbox of one run."""
    inbox_bytes_max: int = 16 * _MB
    """How many bytes the payloads of those signals may have together."""
    record_bytes_max: int = 32 * _MB
    """What is unpacked of one stored record or blob. Larger ones are not written, nor read."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidRequest(
                    f"{name} must be a whole number from 1 on, got {value!r:.80}", field=name
                )
        for name in ("input", "signal", "state", "answer"):
            value = getattr(self, f"{name}_bytes_max")
            if value > self.record_bytes_max:
                raise InvalidRequest(
                    f"{name}_bytes_max must not be more than record_bytes_max, which is "
                    f"{self.record_bytes_max:,}: got {value:,}",
                    field=f"{name}_bytes_max",
                    size=value,
                    limit=self.record_bytes_max,
                )
        if self.memory_bytes_max > self.record_bytes_max:
            raise InvalidRequest(
                "record_bytes_max must be at least twice state_bytes_max, since a run may hold as "
                f"much: got {self.record_bytes_max:,} and {self.state_bytes_max:,}",
                field="state_bytes_max",
                size=self.memory_bytes_max,
                limit=self.record_bytes_max,
            )
        if self.signal_bytes_max > self.inbox_bytes_max:
            raise InvalidRequest(
                "signal_bytes_max must not be more than inbox_bytes_max, which is "
                f"{self.inbox_bytes_max:,}: got {self.signal_bytes_max:,}",
                field="signal_bytes_max",
                size=self.signal_bytes_max,
                limit=self.inbox_bytes_max,
            )

    @property
    def memory_bytes_max(self) -> int:
        """What a run holds in memory while a worker drives it."""
        return 2 * self.state_bytes_max
