"""The types of `Context.map`: an item function, or a program, takes the values of the items."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from holdfast.model.map import Mapped
from holdfast.model.program import Program

__all__ = ["BlockingMapFunction", "MapFunction", "typed_blocking_map", "typed_map"]

P = ParamSpec("P")
V = TypeVar("V")

Given: TypeAlias = Mapping[str, Any] | None


class MapFunction(Protocol):
    """Maps an item function or a program over many items: see `Context.map`."""

    @overload
    async def __call__(
        self,
        item: Callable[Concatenate[int, P], Any],
        count_or_items: int,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    async def __call__(
        self,
        item: Callable[Concatenate[V, P], Any],
        count_or_items: Sequence[V],
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    async def __call__(
        self,
        item: Program[Any, Any],
        count_or_items: int,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    async def __call__(
        self,
        item: Program[V, Any],
        count_or_items: Sequence[V],
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...


class BlockingMapFunction(Protocol):
    """Maps as `MapFunction` does, and blocks."""

    @overload
    def __call__(
        self,
        item: Callable[Concatenate[int, P], Any],
        count_or_items: int,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    def __call__(
        self,
        item: Callable[Concatenate[V, P], Any],
        count_or_items: Sequence[V],
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    def __call__(
        self,
        item: Program[Any, Any],
        count_or_items: int,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...
    @overload
    def __call__(
        self,
        item: Program[V, Any],
        count_or_items: Sequence[V],
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Given = None,
    ) -> Mapped: ...


def typed_map(method: Callable[..., Coroutine[Any, Any, Mapped]]) -> MapFunction:
    """Give a method that maps the types of `MapFunction`."""
    return cast(MapFunction, method)


def typed_blocking_map(method: Callable[..., Mapped]) -> BlockingMapFunction:
    """Give a method that maps and blocks the types of `BlockingMapFunction`."""
    return cast(BlockingMapFunction, method)
