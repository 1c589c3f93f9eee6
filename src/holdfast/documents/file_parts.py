"""Content that arrives in chunks of any size, cut into parts of one size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import TypeAlias

from holdfast.errors import FileTooLarge, InvalidRequest

__all__ = ["Chunks", "PartBuffer", "chunks_of"]

Chunks: TypeAlias = AsyncIterable[bytes] | Iterable[bytes] | bytes
"""The content of a file: bytes, or chunks of bytes."""


class PartBuffer:
    """Collects chunks until they fill a part. It holds one part and one chunk at most."""

    def __init__(self, part_bytes: int, *, bytes_max: int | None = None) -> None:
        """``bytes_max`` is how many bytes may come in all."""
        self._part_bytes = part_bytes
        self._bytes_max = bytes_max
        self._held = bytearray()
        self.bytes = 0
        """How many bytes have come."""

    def add(self, chunk: bytes) -> list[bytes]:
        """Add a chunk; return the parts that are full.

        Raises:
            FileTooLarge: more bytes came than may.
            InvalidRequest: the chunk is not bytes.
        """
        if not isinstance(chunk, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(
                f"chunks must be bytes, got {type(chunk).__name__}", field="chunks"
            )
        self.bytes += len(chunk)
        if self._bytes_max is not None and self.bytes > self._bytes_max:
            raise FileTooLarge(
                f"the content must have at most {self._bytes_max:,} bytes; more have arrived",
                field="chunks",
            )
        full: list[bytes] = []
        rest = memoryview(chunk)
        while len(self._held) + len(rest) >= self._part_bytes:
            missing = self._part_bytes - len(self._held)
            full.append(bytes(self._held) + bytes(rest[:missing]))
            self._held.clear()
            rest = rest[missing:]
        self._held += rest
        return full

    def take(self) -> bytes:
        """Return what is left, and forget it."""
        left = bytes(self._held)
        self._held.clear()
        return left


async def chunks_of(content: Chunks) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a content.

    Raises:
        InvalidRequest: it is neither bytes nor chunks of bytes.
    """
    given = content
    if isinstance(given, bytes | bytearray):
        yield bytes(given)
    elif isinstance(given, AsyncIterable):
        async for chunk in given:
            yield chunk
    elif isinstance(given, Iterable) and not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        for chunk in given:
            yield chunk
    else:
        raise InvalidRequest(
            f"chunks must be bytes or an iterable of bytes, got {type(given).__name__}",
            field="chunks",
        )
