"""A tool: a function with side effects, and its contract about repeated calls."""

from __future__ import annotations

import copy
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
from holdfast.graph.approval import NeedsApproval, tool_approval
from holdfast.graph.lost_types import has_fields
from holdfast.graph.node import AnyFunction, is_sync_function
from holdfast.graph.tool_form import ToolForm
from holdfast.graph.values import is_durable_scalar
from holdfast.model.arguments import Recording, validated_recording
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.policy import ONCE, Retry, validated_retry
from holdfast.model.quota import Quota, validated_tool_quota

__all__ = [
    "UNKNOWN",
    "VOID",
    "Done",
    "ProbeFinding",
    "ProbeVerdict",
    "Tool",
    "contract_of",
    "done",
    "tool",
    "untyped",
]

P = ParamSpec("P")
R = TypeVar("R")

_NAME_CHARS_MAX = 64
_CACHED_TOOLS_MAX = 4_096
_CALL_ID_PREFIX = re.compile(r"=|\d+/")


class Done(msgspec.Struct, frozen=True):
    """The finding of a probe that a call was carried out, with its result."""

    result: Any = None


class ProbeVerdict(enum.Enum):
    """The findings of a probe that a call was not carried out, or that it cannot tell."""

    VOID = "void"
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return self.name


VOID: Final = ProbeVerdict.VOID
"""The finding of a probe that a call was not carried out and never will be.

The probe has invalidated the idempotency key."""
UNKNOWN: Final = ProbeVerdict.UNKNOWN
"""The finding of a probe that it cannot tell. A person has to resolve the call."""

ProbeFinding: TypeAlias = Done | ProbeVerdict
"""What a probe returns: ``done(result)``, `VOID` or `UNKNOWN`."""


def done(result: Any = None) -> Done:
    """Return the finding of a probe that a call was carried out with this result."""
    return Done(result)


class Tool(Generic[P, R]):
    """A function with its contract. It can be called like the function."""

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
        record: Recording | None = None,
        approval: NeedsApproval = False,
    ) -> None:
        if not callable(function):
            raise InvalidRequest(_function_fault(function), field="function")
        self.function = function
        self.name = _name(function) if name is None else name
        if not _is_name(self.name):
            raise InvalidRequest(
                f"the name of a tool must have 1 to {_NAME_CHARS_MAX} characters, without '#', "
                "and must not start with '=' or with a number and a slash, "
                f"got {self.name!r:.80}",
                field="name",
            )
        self.description = inspect.getdoc(function) or "" if description is None else description
        self.at_most_once = _check_bool("at_most_once", at_most_once)
        self.probe = probe
        self.retry = validated_retry(retry)
        self.quota = validated_tool_quota(quota)
        self.record: Recording | None = None if record is None else validated_recording(record)
        self.timeout_ms = None if timeout is None else milliseconds_of(timeout, "timeout")
        self.plain = is_sync_function(function)
        self.signature = _signature(function)
        """The signature of the function; None if it cannot be read."""
        parameters = frozenset(() if self.signature is None else self.signature.parameters)
        self.takes_key = "idempotency_key" in parameters
        """Whether the function takes the idempotency key."""
        self.takes_context = "ctx" in parameters
        """Whether the function takes the context."""
        if at_most_once and self.takes_context:
            raise InvalidRequest(
                f"tool {self.name!r} with at_most_once=True must not take ctx: it could pause "
                "in the middle of the call",
                field="at_most_once",
            )
        if probe is not None and not at_most_once:
            raise InvalidRequest(
                f"tool {self.name!r} has a probe, which needs at_most_once=True",
                field="probe",
            )
        self.approval = tool_approval(approval, self._form)
        """Which calls a person must approve; None if none needs it."""
        functools.update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def positional(self) -> tuple[str, ...]:
        """The names of the parameters that take positional arguments of a call."""
        parameters = () if self.signature is None else self.signature.parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(each.name for each in parameters if each.kind in kinds)

    @functools.cached_property
    def returns(self) -> Any:
        """The annotated return type; Any if there is none."""
        return self._result[0]

    @functools.cached_property
    def remedy(self) -> str | None:
        """What to write so that the return type is known; None if it is annotated."""
        return self._result[1]

    @functools.cached_property
    def _result(self) -> tuple[Any, str | None]:
        return _result_type(self.function)

    def _form(self) -> ToolForm:
        return ToolForm(self.function, name=self.name, signature=self.signature)

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
    record: Recording | None = None,
    approval: NeedsApproval = False,
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
    record: Recording | None = None,
    approval: NeedsApproval = False,
) -> Any:
    """Declare the contract of a function with side effects.

    An ``idempotent`` tool (the default) can be called again with the same ``idempotency_key``
    without a second effect, so a call with an unknown outcome is repeated. ``idempotent=False`` is
    the same as ``at_most_once=True``: a call with an unknown outcome is not repeated. Instead
    ``probe(key)`` finds the outcome: `done`, `VOID` or `UNKNOWN`. ``retry`` and ``timeout`` apply
    to every call. ``quota`` limits the calls of all workers together. ``record`` says which
    arguments the history shows; see `Recording`. No call of a tool with ``record="none"`` shows
    them. With ``approval=True`` a person must approve each call before it is made. A plain function
    of the arguments decides which calls need it: ``approval=lambda amount: amount > 100``. An
    `Approval` also says whom the run asks.

    Raises:
        InvalidRequest: an argument is invalid, or two of them contradict each other.
    """
    once = not _check_bool("idempotent", idempotent) if at_most_once is None else at_most_once
    if not idempotent and not once:
        raise InvalidRequest(
            "at_most_once must not be False for a tool with idempotent=False",
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
            record=record,
            approval=approval,
        )

    return declared if function is None else declared(function)


def _check_bool(field: str, value: object) -> bool:
    if type(value) is not bool:  # "no" would count as True
        raise InvalidRequest(f"{field} must be True or False, got {value!r:.80}", field=field)
    return value


def contract_of(function: Any) -> Tool[..., Any]:
    """Return the contract of a function; the default contract if it declares none."""
    if isinstance(function, Tool):
        return cast(Tool[..., Any], function)
    if _is_module_function(function):
        return _default_contract(function)
    return Tool(cast(AnyFunction, function))


def untyped(function: Any) -> Tool[..., Any]:
    """Return the contract of a function for a caller who needs only the stored form of results."""
    contract = contract_of(function)
    if contract.remedy is None:
        return contract
    contract = copy.copy(contract)
    contract.remedy = None
    return contract


@functools.lru_cache(maxsize=_CACHED_TOOLS_MAX)
def _default_contract(function: AnyFunction) -> Tool[..., Any]:
    return Tool(function)


def _is_module_function(function: Any) -> bool:
    """Return whether a function belongs to a module.

    Others are not cached: their closures may keep whole states alive.
    """
    if not isinstance(function, types.FunctionType):
        return False
    return "<" not in function.__qualname__  # neither a lambda nor a nested function


def _function_fault(given: Any) -> str:
    """Return what is wrong with a value in the place of a function; close a coroutine."""
    if not inspect.iscoroutine(given):
        return f"a tool must be a function, got {given!r:.80}: write ctx.call(function, arguments…)"
    given.close()  # or Python would warn that it was never awaited
    name = given.__name__
    return f"a tool must be a function, got the coroutine {name}(…): write ctx.call({name}, …)"


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).replace("<locals>.", "")[-_NAME_CHARS_MAX:]


def _result_type(function: Any) -> tuple[Any, str | None]:
    """Return the annotated return type, and what to write if there is none."""
    while isinstance(function, functools.partial):
        function = cast(Any, function).func
    if inspect.isclass(function):
        return (function if has_fields(function) else Any), None
    if not inspect.isroutine(function) and not hasattr(function, "__wrapped__"):
        function = type(function).__call__
    name = str(getattr(function, "__name__", "fetch"))
    try:
        hints = get_type_hints(function)
    except Exception:  # names that exist only for type checkers
        return Any, (
            f"the annotation of {name} names a type that is not found: define the type in the "
            "module of the function, outside of other functions"
        )
    if "return" in hints:
        kind = hints["return"]
        return (Any if kind is type(None) or isinstance(kind, TypeVar) else kind), None
    if name == "<lambda>":
        return Any, "call a function with an annotation, def fetch(…) -> {type}, and no lambda"
    return Any, f"annotate the result, def {name}(…) -> {{type}}"


def _is_name(name: object) -> bool:
    """Return whether call ids can contain a name: see `CallIds`."""
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
    except (TypeError, ValueError):  # a builtin without a signature
        return None
