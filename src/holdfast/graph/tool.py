"""A tool: a function that does something to the world, and what it promises about that."""

from __future__ import annotations

import enum
import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import (
    Any,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.graph.node import AnyFunction, is_sync_function
from holdfast.graph.values import is_durable_scalar
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.policy import ONCE, Retry, validated_retry
from holdfast.model.quota import Quota, validated_tool_quota

__all__ = ["UNKNOWN", "VOID", "Done", "Tool", "contract_of", "done", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_NAME_CHARS_MAX = 64
_CACHED_TOOLS_MAX = 4_096
_CALL_ID_PREFIX = re.compile(r"=|\d+/")


class Done(msgspec.Struct, frozen=True):
    """What a probe says of a call that was carried out."""

    result: Any = None


class _ProbeFinding(enum.Enum):
    """What else a probe can say."""

    VOID = "void"
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return self.name


VOID: Final = _ProbeFinding.VOID
"""A probe's promise: the call was not carried out, and its key is burned, so it never will be."""
UNKNOWN: Final = _ProbeFinding.UNKNOWN
"""A probe's admission that it cannot tell: a person has to."""

ProbeFinding: TypeAlias = Done | _ProbeFinding


def done(result: Any = None) -> Done:
    """Return what a probe says of a call that was carried out, and came to this result."""
    return Done(result)


class Tool(Generic[P, R]):
    """A function with its contract; it can be called like the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        at_most_once: bool = False,
        probe: Callable[[str], Any] | None = None,
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        quota: Quota | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidRequest(f"a tool is a function, not {function!r:.80}", field="function")
        self.function = function
        self.name = _name(function) if name is None else name
        if not _is_name(self.name):
            raise InvalidRequest(
                f"a tool's name has 1 to {_NAME_CHARS_MAX} letters, no '#' among them, and begins "
                f"neither with '=' nor with a number and a slash: {self.name!r:.80} cannot be one",
                field="name",
            )
        self.description = inspect.getdoc(function) or "" if description is None else description
        self.at_most_once = _check_bool("at_most_once", at_most_once)
        self.probe = probe
        self.retry = validated_retry(retry)
        self.quota = validated_tool_quota(quota)
        self.timeout_ms = None if timeout is None else milliseconds_of(timeout, "timeout")
        self.plain = is_sync_function(function)
        self.signature = _signature(function)
        """What it takes; None where the function does not tell."""
        parameters = frozenset(() if self.signature is None else self.signature.parameters)
        self.takes_key = "idempotency_key" in parameters
        """Whether it wants to be handed its idempotency key."""
        self.takes_context = "ctx" in parameters
        """Whether it wants to be handed the context."""
        if at_most_once and self.takes_context:
            raise InvalidRequest(
                f"the tool {self.name!r} takes ctx, and so could pause in the middle; "
                "one that is called at most once may not",
                field="at_most_once",
            )
        if probe is not None and not at_most_once:
            raise InvalidRequest(
                f"the tool {self.name!r} has a probe, which only one with at_most_once=True needs",
                field="probe",
            )
        functools.update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def returns(self) -> Any:
        """The type that its annotations promise; Any where they promise none."""
        try:
            kind = get_type_hints(self.function).get("return", Any)
        except Exception:  # names that only a type checker knows
            return Any
        return Any if kind is type(None) or isinstance(kind, TypeVar) else kind

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = True,
    at_most_once: bool | None = None,
    probe: Callable[[str], Any] | None = None,
    retry: Retry = ONCE,
    timeout: Duration | None = None,
    quota: Quota | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = True,
    at_most_once: bool | None = None,
    probe: Callable[[str], Any] | None = None,
    retry: Retry = ONCE,
    timeout: Duration | None = None,
    quota: Quota | None = None,
) -> Any:
    """Declare once what may be done with a function that does something to the world.

    ``idempotent`` (the default): called again under the same ``idempotency_key``, it does nothing
    twice, so a call that may have been lost is made again. ``idempotent=False`` is the same as
    ``at_most_once=True``: such a call is never repeated blindly. ``probe(key)`` says what became of
    one: `done`, `VOID` or `UNKNOWN`. ``retry`` and ``timeout`` hold for every call, and ``quota``
    limits how many of them all workers together make.

    Raises:
        InvalidRequest: the parts of the contract contradict each other.
    """
    once = not _check_bool("idempotent", idempotent) if at_most_once is None else at_most_once
    if not idempotent and not once:
        raise InvalidRequest(
            "a tool with idempotent=False is called at most once, so at_most_once cannot be False",
            field="at_most_once",
        )

    def declared(function: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(
            function,
            name=name,
            description=description,
            at_most_once=once,
            probe=probe,
            retry=retry,
            timeout=timeout,
            quota=quota,
        )

    return declared if function is None else declared(function)


def _check_bool(field: str, value: object) -> bool:
    if type(value) is not bool:  # "no" would count as a yes
        raise InvalidRequest(f"{field} is True or False, not {value!r:.80}", field=field)
    return value


def contract_of(function: Any) -> Tool[..., Any]:
    """Return the contract of a function: its own, or that of any function without one."""
    if isinstance(function, Tool):
        return cast(Tool[..., Any], function)
    if _is_module_function(function):
        return _default_contract(function)
    return Tool(cast(AnyFunction, function))


@functools.lru_cache(maxsize=_CACHED_TOOLS_MAX)
def _default_contract(function: AnyFunction) -> Tool[..., Any]:
    return Tool(function)


def _is_module_function(function: Any) -> bool:
    """Return whether a function is that of a module; others may hold on to whole states."""
    if not isinstance(function, types.FunctionType):
        return False
    return "<" not in function.__qualname__  # neither a lambda nor made by another function


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).replace("<locals>.", "")[-_NAME_CHARS_MAX:]


def _is_name(name: object) -> bool:
    """Return whether calls of a tool of that name can be told from all others: see `Lines`."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= _NAME_CHARS_MAX
        or not is_durable_scalar(name)
    ):
        return False
    return "#" not in name and _CALL_ID_PREFIX.match(name) is None


def _signature(function: AnyFunction) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return None
