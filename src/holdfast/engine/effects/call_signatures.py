"""The types of `Context.call`: which arguments a call takes, and what it returns.

A call passes the arguments of its function, without ``idempotency_key`` and ``ctx``, which the
engine passes. No type says "the parameters of this function without these". So there is one
signature for functions that need neither, or have a default for it, and one for each number of
arguments of a function that needs one of them. Other calls are clean if the parameter has a
default, ``idempotency_key: str = ""``: calls with more or with named arguments, of a function that
needs both, and of a `Tool` (pyright caches which classes fit a protocol, and mixes up tools).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

__all__ = ["BlockingCallFunction", "CallFunction", "typed_blocking_call", "typed_call"]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
ReturnedT = TypeVar("ReturnedT", covariant=True)
FirstT = TypeVar("FirstT", contravariant=True)
SecondT = TypeVar("SecondT", contravariant=True)
ThirdT = TypeVar("ThirdT", contravariant=True)

Async: TypeAlias = Coroutine[Any, Any, R]


class _Keyed0(Protocol[ReturnedT]):
    """A function of no arguments that needs its idempotency key."""

    def __call__(self, *, idempotency_key: str) -> ReturnedT: ...


class _Keyed1(Protocol[FirstT, ReturnedT]):
    """A function of one argument that needs its idempotency key."""

    def __call__(self, a: FirstT, /, *, idempotency_key: str) -> ReturnedT: ...


class _Keyed2(Protocol[FirstT, SecondT, ReturnedT]):
    """A function of two arguments that needs its idempotency key."""

    def __call__(self, a: FirstT, b: SecondT, /, *, idempotency_key: str) -> ReturnedT: ...


class _Keyed3(Protocol[FirstT, SecondT, ThirdT, ReturnedT]):
    """A function of three arguments that needs its idempotency key."""

    def __call__(
        self, a: FirstT, b: SecondT, c: ThirdT, /, *, idempotency_key: str
    ) -> ReturnedT: ...


class _WithContext0(Protocol[ReturnedT]):
    """A function of no arguments that needs the context."""

    def __call__(self, *, ctx: Any) -> ReturnedT: ...


class _WithContext1(Protocol[FirstT, ReturnedT]):
    """A function of one argument that needs the context."""

    def __call__(self, a: FirstT, /, *, ctx: Any) -> ReturnedT: ...


class _WithContext2(Protocol[FirstT, SecondT, ReturnedT]):
    """A function of two arguments that needs the context."""

    def __call__(self, a: FirstT, b: SecondT, /, *, ctx: Any) -> ReturnedT: ...


class CallFunction(Protocol):
    """Calls a function with its arguments, and returns what it returns: see `Context.call`."""

    @overload
    async def __call__(
        self, function: Callable[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def __call__(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def __call__(self, function: _Keyed0[Async[R]], /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed1[A, Async[R]], a: A, /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed2[A, B, Async[R]], a: A, b: B, /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed3[A, B, C, Async[R]], a: A, b: B, c: C, /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext0[Async[R]], /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext1[A, Async[R]], a: A, /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext2[A, B, Async[R]], a: A, b: B, /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed0[R], /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed1[A, R], a: A, /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed2[A, B, R], a: A, b: B, /) -> R: ...
    @overload
    async def __call__(self, function: _Keyed3[A, B, C, R], a: A, b: B, c: C, /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext0[R], /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext1[A, R], a: A, /) -> R: ...
    @overload
    async def __call__(self, function: _WithContext2[A, B, R], a: A, b: B, /) -> R: ...


class BlockingCallFunction(Protocol):
    """Calls a function as `CallFunction` does, and blocks."""

    @overload
    def __call__(
        self, function: Callable[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, function: _Keyed0[Async[R]], /) -> R: ...
    @overload
    def __call__(self, function: _Keyed1[A, Async[R]], a: A, /) -> R: ...
    @overload
    def __call__(self, function: _Keyed2[A, B, Async[R]], a: A, b: B, /) -> R: ...
    @overload
    def __call__(self, function: _Keyed3[A, B, C, Async[R]], a: A, b: B, c: C, /) -> R: ...
    @overload
    def __call__(self, function: _WithContext0[Async[R]], /) -> R: ...
    @overload
    def __call__(self, function: _WithContext1[A, Async[R]], a: A, /) -> R: ...
    @overload
    def __call__(self, function: _WithContext2[A, B, Async[R]], a: A, b: B, /) -> R: ...
    @overload
    def __call__(self, function: _Keyed0[R], /) -> R: ...
    @overload
    def __call__(self, function: _Keyed1[A, R], a: A, /) -> R: ...
    @overload
    def __call__(self, function: _Keyed2[A, B, R], a: A, b: B, /) -> R: ...
    @overload
    def __call__(self, function: _Keyed3[A, B, C, R], a: A, b: B, c: C, /) -> R: ...
    @overload
    def __call__(self, function: _WithContext0[R], /) -> R: ...
    @overload
    def __call__(self, function: _WithContext1[A, R], a: A, /) -> R: ...
    @overload
    def __call__(self, function: _WithContext2[A, B, R], a: A, b: B, /) -> R: ...


def typed_call(method: Callable[..., Async[Any]]) -> CallFunction:
    """Give a method that makes calls the types of `CallFunction`."""
    return cast(CallFunction, method)


def typed_blocking_call(method: Callable[..., Any]) -> BlockingCallFunction:
    """Give a method that makes calls and blocks the types of `BlockingCallFunction`."""
    return cast(BlockingCallFunction, method)
