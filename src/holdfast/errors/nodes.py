"""Errors raised inside a node: about its result, its waits, its calls and its models."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors.root import HoldfastError

__all__ = [
    "AnswerTooLarge",
    "ArgumentsTooLarge",
    "BudgetSpent",
    "CallChanged",
    "CallError",
    "CallFailed",
    "CallRejected",
    "CallTimedOut",
    "HeartbeatTimedOut",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidResult",
    "InvalidState",
    "MapFailed",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NodeError",
    "NodeTimedOut",
    "NotAwaited",
    "NotDone",
    "NotPausable",
    "PriceUnknown",
    "ResultTaken",
    "ResultTooLarge",
    "TurnsSpent",
    "UnknownItem",
    "UnknownModel",
    "UnknownTask",
    "WaitBeyondExpiry",
    "WaitInsideTimeout",
    "WaitTimedOut",
]


class NodeError(HoldfastError):
    """A node failed, or did something that is not permitted."""

    code = "node_error"


class InvalidState(NodeError):
    """The state does not match its type."""

    code = "invalid_state"


class InvalidResult(NodeError):
    """The node's result does not match the state, or cannot be stored."""

    code = "invalid_result"


class ResultTooLarge(InvalidResult):
    """A result, or the state, has more bytes, before compression, than the limit permits."""

    code = "result_too_large"

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """The size in bytes, or the count at which measuring stopped."""
        self.limit = limit
        """The limit that was exceeded."""


class ModelError(NodeError):
    """The model returned no usable answer."""

    code = "model_error"


class InvalidAnswer(ModelError):
    """The model's answer is not JSON, does not match the schema, or was cut off."""

    code = "invalid_answer"

    def __init__(
        self, message: str | None = None, *, field: str = "", flags: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.field = field
        """The path to the wrong value; empty if it is the whole answer."""
        self.flags = flags
        """What a guardrail flagged, if it replaced the answer; see `Answer.flags`."""


class AnswerTooLarge(InvalidAnswer):
    """The model's answer is larger, longer or slower than permitted."""

    code = "answer_too_large"

    def __init__(self, message: str | None = None, *, field: str = "", limit: int = 0) -> None:
        super().__init__(message, field=field)
        self.limit = limit
        """The limit that was exceeded; ``field`` says which."""


class InvalidArguments(ModelError):
    """The model called a tool with arguments that the tool does not accept."""

    code = "invalid_arguments"

    def __init__(self, message: str | None = None, *, tool: str = "", field: str = "") -> None:
        super().__init__(message)
        self.tool = tool
        self.field = field
        """The wrong argument; empty if all are wrong."""


class ModelRefused(ModelError):
    """The model's service refused the request; repeating it does not help."""

    code = "model_refused"

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """The service's name for the error, such as ValidationException or 401."""


class ModelUnavailable(ModelError):
    """The model is not available now; the same call may succeed later."""

    code = "model_unavailable"
    retryable = True

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: str = "",
        retry_after_seconds: float | None = None,
        unpaid: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """The service's name for the error, such as ThrottlingException or 503."""
        self.unpaid = unpaid
        """Whether the call certainly cost nothing, because the service did not begin it."""
        self.retry_after_seconds = retry_after_seconds
        """How long the service asks to wait; None if it does not say."""


class PriceUnknown(ModelError):
    """The run has a budget in dollars, and the price of the model is unknown."""

    code = "price_unknown"


class TurnsSpent(ModelError):
    """The agent needed more turns than it is permitted."""

    code = "turns_spent"


class UnknownModel(ModelError):
    """The graph does not declare a model of this name, or no model can have the name."""

    code = "unknown_model"


class NodeTimedOut(NodeError):
    """The node took longer than its timeout."""

    code = "node_timed_out"


class CallError(NodeError):
    """A call of the node has no result."""

    code = "call_error"


class ArgumentsTooLarge(CallError):
    """The arguments of the call have more bytes than the limit permits; nothing was called."""

    code = "arguments_too_large"

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """How many bytes the arguments have."""
        self.limit = limit
        """The limit that was exceeded."""


class BudgetSpent(CallError):
    """The call may cost more than the rest of the run's budget, and its node may not wait."""

    code = "budget_spent"


class CallFailed(CallError):
    """The call raised an error, and is not tried again."""

    code = "call_failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        kinds: Sequence[str] = (),
        reason: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """The message of the error that it raised."""
        self.kinds = tuple(kinds)
        """The classes of the error, the most specific first: ``builtins.ConnectionError`` …"""
        self.trace = trace
        """The traceback of the error, if it is known. It is also a note of this error."""

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return whether the error is of a class, even if another process raised it."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.kinds


class CallRejected(CallFailed):
    """A reviewer did not approve the call, or did not answer in time; nothing was called."""

    code = "call_rejected"

    def __init__(
        self,
        message: str | None = None,
        *,
        kinds: Sequence[str] = (),
        reason: str = "",
        status: str = "rejected",
        by: str | None = None,
        comment: str = "",
    ) -> None:
        super().__init__(message, kinds=kinds, reason=reason)
        self.status = status
        """How its review ended: ``rejected``, ``expired`` or ``withdrawn``."""
        self.by = by
        """Who decided; None if the time was up."""
        self.comment = comment
        """What the reviewer wrote."""


class CallTimedOut(CallError, TimeoutError):
    """The call took longer than its timeout."""

    code = "call_timed_out"


class HeartbeatTimedOut(CallTimedOut):
    """The function of the call did not send a heartbeat in time."""

    code = "heartbeat_timed_out"


class UnknownTask(CallError):
    """The program does not declare a task of this name."""

    code = "unknown_task"


class CallChanged(CallError):
    """A call with this key was made before, with other arguments, or is not what was approved."""

    code = "call_changed"


class NotDone(CallError):
    """The tool certainly did nothing, so it may be called again; tools raise this error."""

    code = "not_done"


class NotAwaited(NodeError):
    """The node finished, and did not await something that it asked of its context."""

    code = "not_awaited"


class NotPausable(NodeError):
    """The node was declared with pausable='no', and so may not wait."""

    code = "not_pausable"


class ResultTaken(NodeError):
    """Another visit of a node already took the result of the child, which is given once."""

    code = "result_taken"


class WaitBeyondExpiry(NodeError):
    """The sleep would outlast the run: start it with a longer ``expires``, or extend it."""

    code = "wait_beyond_expiry"


class WaitInsideTimeout(NotPausable):
    """The node waits inside of asyncio.timeout or wait_for, which cannot end a wait."""

    code = "wait_inside_timeout"


class WaitTimedOut(NodeError):
    """What the node waited for did not come in time."""

    code = "wait_timed_out"


class MapFailed(NodeError):
    """More items of a map failed than it tolerates."""

    code = "map_failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        map: str = "",
        failed: int = 0,
        total: int = 0,
        tolerated: int = 0,
    ) -> None:
        super().__init__(message)
        self.map = map
        """The id of the map in its run."""
        self.failed = failed
        """How many items failed before the rest was cancelled."""
        self.total = total
        self.tolerated = tolerated
        """How many items may fail."""


class UnknownItem(NodeError):
    """A map asks for an item function that the graph does not have, or for an unknown graph."""

    code = "unknown_item"
