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
    │   │   └── PayloadTooLarge   an input or a payload over its limit
    │   ├── InvalidPrompt         messages, tools or parameters that no model can be asked with
    │   ├── InvalidName           an id, a tenant, a signal's or a label's name that cannot be one
    │   └── QuotaTooSmall         more is asked for at once than a quota gives in a whole window
    ├── Refused                   the store understood, and said no
    │   ├── ConditionFailed       the condition of one write did not hold
    │   ├── TransactionCancelled  a condition of a transaction did not hold
    │   ├── ItemDamaged           the stored bytes of an item cannot be read
    │   ├── BlobNotFound          no blob has this name
    │   ├── BlobDamaged           a blob's bytes are not those that were put
    │   ├── ChangesOff            the store was opened without its change feed
    │   ├── ChangesTrimmed        the position asked for is older than what the feed keeps
    │   ├── AlreadyExists         a run of this id was started with another input
    │   ├── RunNotFound           no run of the tenant has this id
    │   ├── RunEnded              the run has ended, or expired, and takes nothing any more
    │   ├── InboxFull             the run has as many signals as it may have (retryable)
    │   ├── NotRetryable          the run has not failed
    │   ├── ExpiryNotLater        the run expires later than that as it is
    │   ├── BudgetShared          the run shares a budget, or has a slice of one
    │   ├── NotAmbiguous          no call of the run waits for somebody to say what became of it
    │   └── SessionBusy           another run of the session goes on
    ├── Unsuccessful              there is no result, since the run did not finish
    │   ├── RunFailed             a node raised, and was not to be tried again
    │   ├── RunCancelled          somebody ended it
    │   ├── RunExpired            nobody ended it in time
    │   └── RunQuarantined        it could not be resumed, again and again
    ├── NodeError                 raised inside a node; the run fails with it unless it is caught
    │   ├── CallError             a call of a node
    │   │   ├── ArgumentsTooLarge its arguments are over their limit
    │   │   ├── BudgetSpent       it may cost more than is left, and its node may not wait
    │   │   ├── CallFailed        it raised, and was not to be made again
    │   │   ├── CallTimedOut      it took longer than it may
    │   │   │   └── HeartbeatTimedOut it did not send a heartbeat in time
    │   │   ├── UnknownTask       no task is registered by this name
    │   │   ├── CallChanged       its key was used before, with other arguments
    │   │   └── NotDone           raised by a tool that is sure that nothing happened
    │   ├── InvalidState          the state does not match its type
    │   ├── ModelError            a model gave no answer that is of use
    │   │   ├── InvalidAnswer     its answer is not JSON, does not fit, or was cut
    │   │   │   └── AnswerTooLarge    it is larger, longer or slower than an answer may be
    │   │   ├── InvalidArguments  a tool was called with arguments that it does not take
    │   │   ├── ModelRefused      the request is wrong, or not allowed
    │   │   ├── ModelUnavailable  throttled, out of order or out of reach (retryable)
    │   │   ├── TurnsSpent        an agent wanted to go on for longer than it may
    │   │   ├── PriceUnknown      a budget in dollars, and nobody said what the model costs
    │   │   └── UnknownModel      no model was given this name
    │   ├── InvalidResult         a node returned what the state cannot take or nobody can keep
    │   │   └── ResultTooLarge    an answer or a state over its limit
    │   ├── NodeTimedOut          a node took longer than it may
    │   ├── NotPausable           a wait in a node that may not wait
    │   ├── ResultTaken           the end of a child that another visit of a node was told
    │   ├── WaitBeyondExpiry      a wait that would outlast the run
    │   └── WaitTimedOut          what a node waited for did not come in time
    ├── ResumeFailed              a worker cannot go on with a run
    │   ├── UnknownNode           it stands at a node that the graph no longer has
    │   └── JournalDamaged        its journal cannot be read
    │       └── RecordTooLarge    a record over what this process may unpack
    └── StoreError                the store cannot be used; a worker waits until it can
        ├── OutcomeUnknown        the answer to a write was lost and cannot be told by reading
        │   └── RunClosing        past its expiry, a run carries out what it holds (retryable)
        ├── StoreUnusable         a person has to mend something first
        │   ├── StoreNotFound     no such table, bucket, file or folder
        │   ├── StoreReadOnly     the file or the folder may not be written
        │   ├── StoreFull         the disk, or the limit set for the file, is used up
        │   ├── StoreCorrupt      the file is not a database, or is damaged
        │   ├── StoreMismatched   made by a newer release, or with other indexes
        │   ├── StoreClosed       used after close()
        │   │   └── StoreReplaced its file was deleted or replaced while it was open
        │   ├── StoreInUse        another process has it open
        │   └── AccessDenied      credentials that are refused, or not allowed to do this
        │       ├── CredentialsMissing
        │       └── CredentialsExpired
        └── StoreUnavailable      try again later (retryable)
            ├── Throttled         the service or the file is too busy
            └── EndpointUnreachable   no connection, or no answer

``code`` is the name that machines read and never changes; ``retryable`` says whether the same call
may succeed later without anybody mending anything. The docstring of a class is its message where
none is given.

What a caller did wrong is in ``requests``, what was refused in ``refusals``, how a run ended or why
it cannot go on in ``runs``, what a node meets in ``nodes``, and what ails a store in ``stores``.
"""

from holdfast.errors.nodes import (
    AnswerTooLarge,
    ArgumentsTooLarge,
    BudgetSpent,
    CallChanged,
    CallError,
    CallFailed,
    CallTimedOut,
    HeartbeatTimedOut,
    InvalidAnswer,
    InvalidArguments,
    InvalidResult,
    InvalidState,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    NodeError,
    NodeTimedOut,
    NotDone,
    NotPausable,
    PriceUnknown,
    ResultTaken,
    ResultTooLarge,
    TurnsSpent,
    UnknownModel,
    UnknownTask,
    WaitBeyondExpiry,
    WaitTimedOut,
)
from holdfast.errors.refusals import (
    AlreadyExists,
    BlobDamaged,
    BlobNotFound,
    BudgetShared,
    ChangesOff,
    ChangesTrimmed,
    ConditionFailed,
    ExpiryNotLater,
    InboxFull,
    ItemDamaged,
    NotAmbiguous,
    NotRetryable,
    Refused,
    RunEnded,
    RunNotFound,
    SessionBusy,
    TransactionCancelled,
)
from holdfast.errors.requests import (
    InvalidBlobKey,
    InvalidGraph,
    InvalidInput,
    InvalidItem,
    InvalidKey,
    InvalidName,
    InvalidPrompt,
    InvalidQuery,
    InvalidRequest,
    InvalidTransaction,
    InvalidUrl,
    InvalidWrite,
    ItemTooLarge,
    PayloadTooLarge,
    QuotaTooSmall,
)
from holdfast.errors.root import HoldfastError
from holdfast.errors.runs import (
    JournalDamaged,
    RecordTooLarge,
    ResumeFailed,
    RunCancelled,
    RunClosing,
    RunExpired,
    RunFailed,
    RunQuarantined,
    UnknownNode,
    Unsuccessful,
)
from holdfast.errors.stores import (
    AccessDenied,
    CredentialsExpired,
    CredentialsMissing,
    EndpointUnreachable,
    OutcomeUnknown,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreMismatched,
    StoreNotFound,
    StoreReadOnly,
    StoreReplaced,
    StoreUnavailable,
    StoreUnusable,
    Throttled,
)

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "AnswerTooLarge",
    "ArgumentsTooLarge",
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
    "HeartbeatTimedOut",
    "HoldfastError",
    "InboxFull",
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
    "ItemDamaged",
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
    "PayloadTooLarge",
    "PriceUnknown",
    "QuotaTooSmall",
    "RecordTooLarge",
    "Refused",
    "ResultTaken",
    "ResultTooLarge",
    "ResumeFailed",
    "RunCancelled",
    "RunClosing",
    "RunEnded",
    "RunExpired",
    "RunFailed",
    "RunNotFound",
    "RunQuarantined",
    "SessionBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreInUse",
    "StoreMismatched",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreUnavailable",
    "StoreUnusable",
    "Throttled",
    "TransactionCancelled",
    "TurnsSpent",
    "UnknownModel",
    "UnknownNode",
    "UnknownTask",
    "Unsuccessful",
    "WaitBeyondExpiry",
    "WaitTimedOut",
]

# Journals name an error by where it is imported from, and have to know it whatever file it is in.
for _name in __all__:
    globals()[_name].__module__ = __name__
