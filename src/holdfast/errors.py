"""Every error that Holdfast raises on purpose.

::

    HoldfastError
    ├── InvalidRequest            the caller's mistake; nothing was sent, nothing was written
    │   ├── InvalidUrl            a store's address that cannot be understood
    │   ├── InvalidKey            an empty, overlong or mistyped key of an item
    │   ├── InvalidItem           a value that an item cannot hold
    │   │   └── ItemTooLarge      an item over 400 KB
    │   ├── InvalidWrite          a write or a condition that makes no sense
    │   ├── InvalidTransaction    too many writes, too many bytes, one key twice
    │   ├── InvalidQuery          an unknown index, a wrong limit, a foreign cursor
    │   ├── InvalidBlobKey        a blob's name that a folder or a bucket cannot hold
    │   ├── InvalidGraph          a graph that cannot be run
    │   ├── InvalidInput          an input that does not fit the graph's state
    │   ├── InvalidPrompt         messages, tools or parameters that no model can be asked with
    │   ├── InvalidName           an id, a tenant, a signal's or a label's name that cannot be one
    │   └── QuotaTooSmall         more is asked for at once than a quota gives in a whole window
    ├── Refused                   the store understood, and said no
    │   ├── ConditionFailed       the condition of one write did not hold
    │   ├── TransactionCancelled  a condition of a transaction did not hold
    │   ├── BlobNotFound          no blob has this name
    │   ├── BlobDamaged           a blob's bytes are not those that were put
    │   ├── ChangesOff            the store was opened without its change feed
    │   ├── ChangesTrimmed        the position asked for is older than what the feed keeps
    │   ├── AlreadyExists         a run of this id was started with another input
    │   ├── RunNotFound           no run of the tenant has this id
    │   ├── RunEnded              the run has ended, or expired, and takes nothing any more
    │   ├── NotRetryable          the run has not failed
    │   ├── ExpiryNotLater        the run expires later than that as it is
    │   ├── BudgetShared          the run shares the budget of the run that started it
    │   ├── NotAmbiguous          no call of the run waits for somebody to say what became of it
    │   └── SessionBusy           another run of the session goes on
    ├── Unsuccessful              there is no result, since the run did not finish
    │   ├── RunFailed             a node raised, and was not to be tried again
    │   ├── RunCancelled          somebody ended it
    │   ├── RunExpired            nobody ended it in time
    │   └── RunQuarantined        it could not be resumed, again and again
    ├── NodeError                 raised inside a node; the run fails with it unless it is caught
    │   ├── CallError             a call of a node
    │   │   ├── BudgetSpent       it may cost more than is left, and its node may not wait
    │   │   ├── CallFailed        it raised, and was not to be made again
    │   │   ├── CallTimedOut      it took longer than it may
    │   │   ├── CallChanged       its key was used before, with other arguments
    │   │   └── NotDone           raised by a tool that is sure that nothing happened
    │   ├── InvalidState          the state does not match its type
    │   ├── ModelError            a model gave no answer that is of use
    │   │   ├── InvalidAnswer     its answer is not JSON, does not fit, or was cut
    │   │   ├── InvalidArguments  a tool was called with arguments that it does not take
    │   │   ├── ModelRefused      the request is wrong, or not allowed
    │   │   ├── ModelUnavailable  throttled, out of order or out of reach (retryable)
    │   │   ├── TurnsSpent        an agent wanted to go on for longer than it may
    │   │   ├── PriceUnknown      a budget in dollars, and nobody said what the model costs
    │   │   └── UnknownModel      no model was given this name
    │   ├── InvalidResult         a node returned what the state cannot take or nobody can keep
    │   ├── NodeTimedOut          a node took longer than it may
    │   ├── NotPausable           a wait in a node that may not wait
    │   ├── ResultTaken           the end of a child that another visit of a node was told
    │   ├── WaitBeyondExpiry      a wait that would outlast the run
    │   └── WaitTimedOut          what a node waited for did not come in time
    ├── ResumeFailed              a worker cannot go on with a run
    │   ├── UnknownNode           it stands at a node that the graph no longer has
    │   └── JournalDamaged        its journal cannot be read
    ├── OutcomeUnknown            the answer to a write was lost and cannot be told by reading
    ├── StoreUnusable             a person has to mend something first
    │   ├── StoreNotFound         no such table, bucket, file or folder
    │   ├── StoreReadOnly         the file or the folder may not be written
    │   ├── StoreFull             the disk, or the limit set for the file, is used up
    │   ├── StoreCorrupt          the file is not a database, or is damaged
    │   ├── StoreMismatched       made by a newer release, or with other indexes
    │   ├── StoreClosed           used after close()
    │   └── AccessDenied          credentials that are refused, or not allowed to do this
    │       ├── CredentialsMissing
    │       └── CredentialsExpired
    └── StoreUnavailable          try again later (retryable)
        ├── Throttled             the service or the file is too busy
        └── EndpointUnreachable   no connection, or no answer

``code`` is the name that machines read and never changes; ``retryable`` says whether the same call
may succeed later without anybody mending anything. The docstring of a class is its message where
none is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "BlobDamaged",
    "BlobNotFound",
    "BudgetShared",
    "BudgetSpent",
    "CallChanged",
    "CallError",
    "CallFailed",
    "CallTimedOut",
    "ChangesOff",
    "ChangesTrimmed",
    "ConditionFailed",
    "CredentialsExpired",
    "CredentialsMissing",
    "EndpointUnreachable",
    "ExpiryNotLater",
    "HoldfastError",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidBlobKey",
    "InvalidGraph",
    "InvalidInput",
    "InvalidItem",
    "InvalidKey",
    "InvalidName",
    "InvalidPrompt",
    "InvalidQuery",
    "InvalidRequest",
    "InvalidResult",
    "InvalidState",
    "InvalidTransaction",
    "InvalidUrl",
    "InvalidWrite",
    "ItemTooLarge",
    "JournalDamaged",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NodeError",
    "NodeTimedOut",
    "NotAmbiguous",
    "NotDone",
    "NotPausable",
    "NotRetryable",
    "OutcomeUnknown",
    "PriceUnknown",
    "QuotaTooSmall",
    "Refused",
    "ResultTaken",
    "ResumeFailed",
    "RunCancelled",
    "RunEnded",
    "RunExpired",
    "RunFailed",
    "RunNotFound",
    "RunQuarantined",
    "SessionBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreFull",
    "StoreMismatched",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreUnavailable",
    "StoreUnusable",
    "Throttled",
    "TransactionCancelled",
    "TurnsSpent",
    "UnknownModel",
    "UnknownNode",
    "Unsuccessful",
    "WaitBeyondExpiry",
    "WaitTimedOut",
]

# An item of a table, as plain Python values (storage/item.py says which).
_Item = Mapping[str, Any]


class HoldfastError(Exception):
    """Holdfast could not do what was asked."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)) or self.code)


class InvalidRequest(HoldfastError):
    """The request is malformed; nothing was sent, nothing was written."""

    code = "invalid_request"

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        size: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        """The attribute, parameter or key that is at fault, where one is."""
        self.size = size
        """What was measured, where a limit was exceeded."""
        self.limit = limit
        """The limit that was exceeded."""


class InvalidUrl(InvalidRequest):
    """The address of the store cannot be understood."""

    code = "invalid_url"


class InvalidKey(InvalidRequest):
    """A key of an item is empty, too long or not a string."""

    code = "invalid_key"


class InvalidItem(InvalidRequest):
    """An item holds a value that the table cannot keep."""

    code = "invalid_item"


class ItemTooLarge(InvalidItem):
    """An item is larger than 400 KB."""

    code = "item_too_large"


class InvalidWrite(InvalidRequest):
    """A write or its condition makes no sense."""

    code = "invalid_write"


class InvalidTransaction(InvalidRequest):
    """A transaction has too many writes, too many bytes, or one key twice."""

    code = "invalid_transaction"


class InvalidQuery(InvalidRequest):
    """A query names an unknown index, a wrong limit or a foreign cursor."""

    code = "invalid_query"


class InvalidBlobKey(InvalidRequest):
    """A blob's key cannot be the name of a file and of an object alike."""

    code = "invalid_blob_key"


class InvalidGraph(InvalidRequest):
    """The graph cannot be run."""

    code = "invalid_graph"

    def __init__(self, message: str | None = None, *, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)
        """Everything that is wrong with it, one sentence each."""


class InvalidInput(InvalidRequest):
    """The input does not fit the graph's state."""

    code = "invalid_input"


class InvalidName(InvalidRequest):
    """An id or a name is empty, too long, or has characters that keys and files cannot have."""

    code = "invalid_name"


class InvalidPrompt(InvalidRequest):
    """No model can be asked with these messages, tools or parameters."""

    code = "invalid_prompt"


class QuotaTooSmall(InvalidRequest):
    """More is asked for at once than the quota gives in a whole window."""

    code = "quota_too_small"


class Refused(HoldfastError):
    """The store understood the request and refused it."""

    code = "refused"


class ConditionFailed(Refused):
    """The condition of the write did not hold; nothing was written."""

    code = "condition_failed"

    def __init__(self, message: str | None = None, *, item: _Item | None = None) -> None:
        super().__init__(message)
        self.item = item
        """The item that stood in the way; None where there was none."""


class TransactionCancelled(Refused):
    """A condition of the transaction did not hold; nothing was written."""

    code = "transaction_cancelled"

    def __init__(
        self,
        message: str | None = None,
        *,
        failed: Sequence[int] = (),
        items: Mapping[int, _Item] | None = None,
    ) -> None:
        super().__init__(message)
        self.failed = tuple(failed)
        """Positions, in the transaction, of the writes whose condition did not hold."""
        self.items: Mapping[int, _Item] = dict(items or {})
        """The items that stood in the way, by those positions."""


class BlobNotFound(Refused):
    """No blob has this key."""

    code = "blob_not_found"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class BlobDamaged(Refused):
    """The blob's bytes are not those that were put."""

    code = "blob_damaged"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ChangesOff(Refused):
    """The store was opened without its change feed."""

    code = "changes_off"


class ChangesTrimmed(Refused):
    """The position is older than what the change feed keeps."""

    code = "changes_trimmed"


class AlreadyExists(Refused):
    """A run of this id was started with another input."""

    code = "already_exists"


class RunNotFound(Refused):
    """There is no run of this id."""

    code = "run_not_found"


class RunEnded(Refused):
    """The run has ended and takes nothing any more."""

    code = "run_ended"

    def __init__(self, message: str | None = None, *, status: str = "") -> None:
        super().__init__(message)
        self.status = status
        """How it ended: finished, failed, cancelled, expired, quarantined or promoted."""


class NotRetryable(Refused):
    """Only a run that failed or is quarantined can be retried."""

    code = "not_retryable"


class ExpiryNotLater(Refused):
    """The run expires later than that as it is, and an expiry is never shortened."""

    code = "expiry_not_later"


class BudgetShared(Refused):
    """The run has no budget of its own, but shares that of the run that started it."""

    code = "budget_shared"


class NotAmbiguous(Refused):
    """No such call of the run waits for somebody to say what became of it."""

    code = "not_ambiguous"


class SessionBusy(Refused):
    """Another run of the session goes on."""

    code = "session_busy"

    def __init__(self, message: str | None = None, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run
        """The id of the run that stands in front."""


class Unsuccessful(HoldfastError):
    """The run did not finish, so there is no result."""

    code = "unsuccessful"

    def __init__(self, message: str | None = None, *, kind: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """The class of the error that ended the run, where one did."""
        self.trace = trace
        """Where it was raised, where that is known."""


class RunFailed(Unsuccessful):
    """The run failed."""

    code = "run_failed"


class RunCancelled(Unsuccessful):
    """The run was cancelled."""

    code = "run_cancelled"


class RunExpired(Unsuccessful):
    """The run expired."""

    code = "run_expired"


class RunQuarantined(Unsuccessful):
    """The run could not be resumed several times in a row, and waits for somebody to look at it."""

    code = "run_quarantined"


class NodeError(HoldfastError):
    """A node did something that it may not do."""

    code = "node_error"


class InvalidState(NodeError):
    """The state does not match its type."""

    code = "invalid_state"


class InvalidResult(NodeError):
    """What the node returned does not fit the state, or cannot be kept."""

    code = "invalid_result"


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


class BudgetSpent(CallError):
    """The call may cost more than is left of the run's budget, and its node may not wait."""

    code = "budget_spent"


class CallFailed(CallError):
    """The call raised, and was not to be made again."""

    code = "call_failed"

    def __init__(
        self, message: str | None = None, *, kinds: Sequence[str] = (), trace: str = ""
    ) -> None:
        super().__init__(message)
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


class ResumeFailed(HoldfastError):
    """The run cannot be gone on with."""

    code = "resume_failed"


class UnknownNode(ResumeFailed):
    """The run stands at a node that the graph does not have."""

    code = "unknown_node"


class JournalDamaged(ResumeFailed):
    """The journal of the run cannot be read."""

    code = "journal_damaged"


class OutcomeUnknown(HoldfastError):
    """The answer to a write was lost, and what stands now does not tell whether it was applied.

    It may have been applied and overwritten since, or may never have arrived.
    """

    code = "outcome_unknown"

    def __init__(self, message: str | None = None, *, item: _Item | None = None) -> None:
        super().__init__(message)
        self.item = item
        """What stood under the key when it was read back, if it could be read."""


class StoreUnusable(HoldfastError):
    """The store cannot be used until somebody mends it."""

    code = "store_unusable"


class StoreNotFound(StoreUnusable):
    """There is no such table, bucket, file or folder."""

    code = "store_not_found"


class StoreReadOnly(StoreUnusable):
    """The store may not be written."""

    code = "store_read_only"


class StoreFull(StoreUnusable):
    """There is no room left for the store."""

    code = "store_full"


class StoreCorrupt(StoreUnusable):
    """The store's file is not a database, or is damaged."""

    code = "store_corrupt"


class StoreMismatched(StoreUnusable):
    """The store was made by a newer release or with other indexes."""

    code = "store_mismatched"


class StoreClosed(StoreUnusable):
    """The store was used after it was closed."""

    code = "store_closed"


class AccessDenied(StoreUnusable):
    """The credentials were refused, or do not allow this."""

    code = "access_denied"


class CredentialsMissing(AccessDenied):
    """No credentials were found anywhere that the AWS command line looks."""

    code = "credentials_missing"


class CredentialsExpired(AccessDenied):
    """The credentials have expired."""

    code = "credentials_expired"


class StoreUnavailable(HoldfastError):
    """The store cannot answer now; the same call may succeed later."""

    code = "store_unavailable"
    retryable = True


class Throttled(StoreUnavailable):
    """The store is too busy, and stayed so for the whole retry budget."""

    code = "throttled"


class EndpointUnreachable(StoreUnavailable):
    """No connection to the endpoint, or no answer from it."""

    code = "endpoint_unreachable"
