"""Limits on the size of values, and on the signals in an inbox."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["PayloadLimits"]

_MB = 1024 * 1024


class PayloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on values from callers, nodes and models, in bytes before compression.

    A value is measured as MessagePack. It may have one element, key or value for each 8 bytes of
    its limit, and one list or map for each 16 bytes: small ones take up to 70 times as much memory
    as they have bytes.

    All processes that use a store should have the same limits. A process with lower limits refuses
    to read what a process with higher limits wrote.
    """

    input_bytes_max: int = 4 * _MB
    """The input of a run or a child."""
    signal_bytes_max: int = _MB
    """The payload of a signal."""
    state_bytes_max: int = 8 * _MB
    """The state of a run after a node; also the result of a child. In a worker a run takes at most
    twice as much memory: for its state, the changes of its branches, and the answers of waits and
    calls of unfinished nodes."""
    answer_bytes_max: int = 4 * _MB
    """The result of one call: of a tool, a model, or a person who resolves the call."""
    arguments_bytes_max: int = 4 * _MB
    """The arguments of one call, or the prompt of a model."""
    inbox_items_max: int = 1_000
    """The number of signals from callers in the inbox of one run."""
    inbox_bytes_max: int = 16 * _MB
    """The total size of the payloads of these signals."""
    record_bytes_max: int = 32 * _MB
    """The uncompressed size of one record or blob. Larger ones are neither written nor read."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidRequest(
                    f"{name} must be an integer from 1, got {value!r:.80}", field=name
                )
        for name in ("input", "signal", "state", "answer"):
            value = getattr(self, f"{name}_bytes_max")
            if value > self.record_bytes_max:
                raise InvalidRequest(
                    f"{name}_bytes_max must not be more than record_bytes_max "
                    f"({self.record_bytes_max:,}), got {value:,}",
                    field=f"{name}_bytes_max",
                    size=value,
                    limit=self.record_bytes_max,
                )
        if self.memory_bytes_max > self.record_bytes_max:
            raise InvalidRequest(
                "record_bytes_max must be at least twice state_bytes_max, "
                f"got {self.record_bytes_max:,} and {self.state_bytes_max:,}",
                field="state_bytes_max",
                size=self.memory_bytes_max,
                limit=self.record_bytes_max,
            )
        if self.signal_bytes_max > self.inbox_bytes_max:
            raise InvalidRequest(
                "signal_bytes_max must not be more than inbox_bytes_max "
                f"({self.inbox_bytes_max:,}), got {self.signal_bytes_max:,}",
                field="signal_bytes_max",
                size=self.signal_bytes_max,
                limit=self.inbox_bytes_max,
            )

    @property
    def memory_bytes_max(self) -> int:
        """How much memory a run may take in a worker."""
        return 2 * self.state_bytes_max
