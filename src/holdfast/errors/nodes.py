"""What is raised inside a node: by what it returns or waits for, by its calls, by models."""

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
    "CallTimedOut",
    "HeartbeatTimedOut",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidResult",
    "InvalidState",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NodeError",
    "NodeTimedOut",
    "NotDone",
    "NotPausable",
    "PriceUnknown",
    "ResultTaken",
    "ResultTooLarge",
    "TurnsSpent",
    "UnknownModel",
    "UnknownTask",
    "WaitBeyondExpiry",
    "WaitTimedOut",
]


class NodeError(HoldfastError):
    """A node did something that it may not do."""

    code = "node_error"


class InvalidState(NodeError):
    """The state does not match its type."""

    code = "invalid_state"


class InvalidResult(NodeError):
    """What the node returned does not fit the state, or cannot be kept."""

    code = "invalid_result"


class ResultTooLarge(InvalidResult):
    """An answer, or the state, has more bytes, before compression, than the limit allows."""

    code = "result_too_large"

    def __init__(
        self, message: str | None = None, *, size: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.size = size
        """What was measured; where counting stopped at the limit, what was counted by then."""
        self.limit = limit
        """The limit that was exceeded."""


class ModelError(NodeError):
    """The model gave no answer that is of use."""

    code = "model_error"


class InvalidAnswer(ModelError):
    """The model's answer is not JSON, does not fit what was asked for, or was cut."""

    code = "invalid_answer"

    def __init__(self, message: str | None = None, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The path to what does not fit; empty where it is the whole."""


class AnswerTooLarge(InvalidAnswer):
    """The model's answer is larger, longer or slower than an answer may be."""

    code = "answer_too_large"

    def __init__(self, message: str | None = None, *, field: str = "", limit: int = 0) -> None:
        super().__init__(message, field=field)
        self.limit = limit
        """The bound that it exceeds; ``field`` says of what."""


class InvalidArguments(ModelError):
    """The model called a tool with arguments that it does not take."""

    code = "invalid_arguments"

    def __init__(self, message: str | None = None, *, tool: str = "", field: str = "") -> None:
        super().__init__(message)
        self.tool = tool
        self.field = field
        """The argument that is at fault; empty where they all are."""


class ModelRefused(ModelError):
    """The request to the model is wrong or not allowed; sent again, it is refused again."""

    code = "model_refused"

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """What the service calls it, such as ValidationException or 401."""


class ModelUnavailable(ModelError):
    """The model cannot answer now; the same call may succeed later."""

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
        """What the service calls it, such as ThrottlingException or 503."""
        self.unpaid = unpaid
        """Whether it is sure that nothing was paid: the service did not even begin."""
        self.retry_after_seconds = retry_after_seconds
        """How long the service asks to wait; None where it does not say."""


class PriceUnknown(ModelError):
    """There is a budget in dollars, and the model has no price."""

    code = "price_unknown"


class TurnsSpent(ModelError):
    """The agent wanted to go on for longer than it may."""

    code = "turns_spent"


class UnknownModel(ModelError):
    """No model was given this name."""

    code = "unknown_model"


class NodeTimedOut(NodeError):
    """The node took longer than its timeout."""

    code = "node_timed_out"


class CallError(NodeError):
    """A call of the node did not come to a result."""

    code = "call_error"


class ArgumentsTooLarge(CallError):
    """The arguments of the call have more bytes than the limit allows; nothing was called."""

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
    """The call may cost more than is left of the run's budget, and its node may not wait."""

    code = "budget_spent"


class CallFailed(CallError):
    """The call raised, and was not to be made again."""

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
        """What kinds of error it raised, the most exact first: ``builtins.ConnectionError`` …"""
        self.trace = trace
        """Where it was raised, where that is known."""

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return whether what was raised is of that kind; also when it was in another process."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.kinds


class CallTimedOut(CallError, TimeoutError):
    """The call took longer than its timeout."""

    code = "call_timed_out"


class HeartbeatTimedOut(CallTimedOut):
    """The function of the call did not send a heartbeat in time."""

    code = "heartbeat_timed_out"


class UnknownTask(CallError):
    """No task is registered by this name."""

    code = "unknown_task"


class CallChanged(CallError):
    """A call under this key was made before, with other arguments."""

    code = "call_changed"


class NotDone(CallError):
    """Nothing happened: raised by a tool that is sure of it, so that it may be called again."""

    code = "not_done"


class NotPausable(NodeError):
    """The node was declared with pausable='no', and so may not wait."""

    code = "not_pausable"


class ResultTaken(NodeError):
    """Another visit of a node was told how the child ended, and it is told once."""

    code = "result_taken"


class WaitBeyondExpiry(NodeError):
    """The wait would outlast the run."""

    code = "wait_beyond_expiry"


class WaitTimedOut(NodeError):
    """What the node waited for did not come in time."""

    code = "wait_timed_out"
