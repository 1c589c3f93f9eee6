"""A stream of a run's events or text, which can be opened before its first item is asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["RunStream"]

T = TypeVar("T")


class RunStream(Generic[T]):
    """The events or the text of a run: ``async for entry in run.events(): …``

    ``async with run.events() as stream: …`` reads the run before the block: an unknown run or
    cursor raises there, before a web page has been answered. It closes the stream after the block.
    Without it the first item raises, and `aclose` closes the stream.
    """

    def __init__(self, source: AsyncGenerator[T | None, None]) -> None:
        """``source`` yields None when it has read the run, and then the items."""
        self._source = source
        self._is_open = False

    async def aclose(self) -> None:
        """Stop following the run."""
        await self._source.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await self._open()
        while (item := await anext(self._source)) is None:
            pass
        return item

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _open(self) -> None:
        if not self._is_open:
            self._is_open = True  # a source that has raised stays closed
            await anext(self._source, None)
