"""A stream of a run's events or text, which can be opened before its first item is asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["RunStream"]

T = TypeVar("T")


class RunStream(Generic[T]):
    """The events or the text of a run: ``async for entry in run.events(): …``

    ``async with run.events() as stream: …`` opens the stream before the block and closes it after
    it. A web handler opens it with `open` before it answers, so that an unknown run or cursor is an
    error and not an empty page. Without both, the first item opens the stream.
    """

    def __init__(self, source: AsyncGenerator[T | None, None]) -> None:
        """``source`` yields None when it has read the run, and then the items."""
        self._source = source
        self._is_open = False

    async def open(self) -> Self:
        """Read the run now, and return the stream; to open it again does nothing.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        if not self._is_open:
            self._is_open = True  # a source that has raised stays closed
            await anext(self._source, None)
        return self

    async def aclose(self) -> None:
        """Stop following the run."""
        await self._source.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await self.open()
        while (item := await anext(self._source)) is None:
            pass
        return item

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
