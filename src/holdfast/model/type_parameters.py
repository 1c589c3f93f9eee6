"""The type parameters of the public classes. A class that is named without one means `Any`.

Python 3.11 knows no defaults of type parameters, and type checkers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    InputT = TypeVar("InputT", contravariant=True, default=Any)
    PayloadT = TypeVar("PayloadT", default=Any)
    ResultT = TypeVar("ResultT", covariant=True, default=Any)
    StateT = TypeVar("StateT", default=Any)
    ValueT = TypeVar("ValueT", covariant=True, default=Any)
else:
    from typing import TypeVar

    InputT = TypeVar("InputT", contravariant=True)
    PayloadT = TypeVar("PayloadT")
    ResultT = TypeVar("ResultT", covariant=True)
    StateT = TypeVar("StateT")
    ValueT = TypeVar("ValueT", covariant=True)

__all__ = ["InputT", "PayloadT", "ResultT", "StateT", "ValueT"]
