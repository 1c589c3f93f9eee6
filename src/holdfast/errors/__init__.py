"""Every error that Holdfast raises on purpose.

::

    HoldfastError
    ├── InvalidRequest            the caller's mistake; nothing was sent or written
    │   ├── InvalidUrl            a store's address that cannot be understood
    │   ├── InvalidKey            an item's key is empty, too long or not a string
    │   ├── InvalidItem           a value that an item cannot contain
    │   │   └── ItemTooLarge      an item over 400 KB
    │   ├── InvalidWrite          a write or a condition that is not valid
    │   ├── InvalidTransaction    too many writes or bytes, or two writes for one key
    │   ├── InvalidQuery          an unknown index, a wrong limit or cursor
    │   ├── InvalidBlobKey        a blob's key that a folder or a bucket cannot store
    │   ├── InvalidGraph          a graph that cannot be run
    │   ├── InvalidInput          an input that does not match the graph's state
    │   │   ├── PayloadTooLarge   an input or a payload over its limit
    │   │   └── SignalMisfit      a payload that does not fit the type of its signal
    │   ├── InvalidPrompt         messages, tools or parameters that no model accepts
    │   ├── InvalidName           an id or a name that is not valid
    │   ├── FileRejected          a file that is damaged, hostile or not supported
    │   ├── NotConfigured         a step needs what is not installed or configured here
    │   ├── PublicUrlMissing      a callback, but no public address of the server
    │   ├── QuotaTooSmall         one request needs more than a quota permits in a window
    │   ├── ResourceMissing       a worker lacks a model, quota or task of its graphs
    │   ├── FileTooLarge          a file that is larger than this process accepts
    │   ├── ChecksumMismatch      bytes that do not have their checksum
    │   ├── LengthRequired        a file without its length
    │   ├── ProtocolMismatch      a request of another version of tus
    │   ├── TargetRefused         an address that must not be contacted
    │   └── UnknownSignal         a signal that the graph does not declare
    ├── Refused                   a valid request was refused
    │   ├── ConditionFailed       the condition of one write did not hold
    │   ├── TransactionCancelled  a condition of a transaction did not hold
    │   ├── ItemDamaged           the stored bytes of an item cannot be read
    │   ├── BlobNotFound          no blob has this key
    │   ├── BlobDamaged           a blob's bytes differ from those that were put
    │   ├── ChangesOff            the store has no change feed
    │   ├── ChangesTrimmed        the position is older than the oldest change
    │   ├── AlreadyExists         a run of this id was started with another input
    │   ├── RunNotFound           no run of the tenant has this id
    │   ├── RunEnded              the run has ended or expired, and accepts nothing more
    │   ├── InboxFull             the run's inbox is full (retryable)
    │   ├── NotRetryable          the run has not failed
    │   ├── ExpiryNotLater        the run already expires later
    │   ├── BudgetShared          the run uses the budget of its parent
    │   ├── NotAmbiguous          no such call waits for an operator to resolve it
    │   ├── SessionBusy           another run of the session is still active
    │   ├── BulkJobNotFound       no bulk job of the tenant has this id
    │   ├── BulkJobEnded          the bulk job has ended
    │   ├── UnknownGraph          the server has no graph of this name
    │   ├── KeyNotFound           no API key has this id
    │   ├── Unauthenticated       the request has no valid API key or token
    │   ├── Forbidden             the caller's role or tenant does not permit it
    │   ├── ServerStopping        the server stops: connect again (retryable)
    │   ├── CallbackInvalid       no such callback: forged, malformed, or its run is gone
    │   ├── CallbackExpired       the callback has expired, or its run has ended
    │   ├── WebhookNotFound       the tenant has no webhook of this id
    │   ├── ReviewNotFound        the tenant has no review of this id
    │   ├── ReviewDecided         the review was decided before
    │   ├── ReviewChanged         the review was changed since it was shown
    │   ├── ReviewClaimed         another reviewer has claimed the review
    │   ├── AlreadyVoted          the reviewer has voted before
    │   ├── NotAssigned           the review is assigned to other people
    │   ├── NoAddress             a notifier has no address of a reviewer
    │   ├── ReviewLinkInvalid     no such link: forged, malformed, or its review is gone
    │   ├── ReviewLinkExpired     the link to a review has expired
    │   ├── ProjectNotFound       the tenant has no project of this id
    │   ├── DocumentNotFound      the tenant has no document of this id
    │   ├── DocumentWorkflowNotFound  no document of the tenant has a workflow of this id
    │   ├── SegmentNotFound       the workflow has no segment of this index yet
    │   ├── IdTaken               the id of a project, document or workflow is in use
    │   ├── StatusRefused         a workflow of a document cannot change to this status
    │   ├── SearchNotConfigured   the store has no search over segments
    │   ├── SearchUnavailable     the search does not respond now (retryable)
    │   ├── SearchIndexDamaged    the search index cannot be read, and must be built again
    │   ├── StoredFileNotFound    the tenant has no file at this address
    │   ├── UploadNotFound        the tenant has no upload of this id
    │   ├── UploadGone            the upload has expired or was terminated
    │   ├── UploadConflict        the upload does not continue at this offset
    │   ├── UploadInterrupted     the bytes stopped arriving (retryable)
    │   ├── UploadsBusy           this process receives too many files (retryable)
    │   ├── NotReady              the server shuts down, or cannot use its store (retryable)
    │   ├── ExtractionFailed      no text could be made of an image or a recording
    │   │   └── ExtractionUnavailable the engine or the service does not answer (retryable)
    │   └── TooManyRequests       the caller sends too many requests (retryable)
    ├── Unsuccessful              the run did not finish, so there is no result
    │   ├── RunFailed             a node failed, and is not tried again
    │   ├── RunCancelled          a caller cancelled it
    │   ├── RunExpired            it did not end before its expiry
    │   └── RunQuarantined        it could not be resumed several times in a row
    ├── NodeError                 raised inside a node; the run fails unless it is caught
    │   ├── CallError             a call of a node
    │   │   ├── ArgumentsTooLarge its arguments are over their limit
    │   │   ├── BudgetSpent       it may cost more than is left, and may not wait
    │   │   ├── CallFailed        it failed, and is not tried again
    │   │   │   └── CallRejected  a reviewer did not approve it
    │   │   ├── CallTimedOut      it took longer than its timeout
    │   │   │   └── HeartbeatTimedOut it sent no heartbeat in time
    │   │   ├── UnknownTask       the program does not declare a task of this name
    │   │   ├── CallChanged       its key was used before, or it is not what was approved
    │   │   └── NotDone           raised by a tool that certainly did nothing
    │   ├── InvalidState          the state does not match its type
    │   ├── MapFailed             more items of a map failed than it tolerates
    │   ├── ModelError            a model returned no usable answer
    │   │   ├── InvalidAnswer     its answer is not JSON, does not match, or was cut off
    │   │   │   └── AnswerTooLarge    it is larger, longer or slower than permitted
    │   │   ├── InvalidArguments  it called a tool with arguments that are not accepted
    │   │   ├── ModelRefused      the service refused the request
    │   │   ├── ModelUnavailable  throttled, failing or unreachable (retryable)
    │   │   ├── TurnsSpent        an agent needed more turns than it is permitted
    │   │   ├── PriceUnknown      a budget in dollars, and a model without a price
    │   │   └── UnknownModel      the graph does not declare a model of this name
    │   ├── InvalidResult         a node's result does not match the state
    │   │   └── ResultTooLarge    a result or a state over its limit
    │   ├── NodeTimedOut          a node took longer than its timeout
    │   ├── NotAwaited            a node did not await what it asked of its context
    │   ├── NotPausable           a wait in a node that may not wait
    │   │   └── WaitInsideTimeout a wait inside of a timeout that cannot end it
    │   ├── ResultTaken           another visit of a node took the child's result
    │   ├── UnknownItem           a map asks for an item function that the graph does not have
    │   ├── WaitBeyondExpiry      a sleep that would outlast the run
    │   └── WaitTimedOut          what a node waited for did not arrive in time
    ├── ServerUnavailable         a server does not respond, or failed (retryable)
    ├── InvalidResponse           a response that this client cannot read
    ├── ResumeFailed              a worker cannot resume a run
    │   ├── UnknownNode           it is at a node that the graph no longer has
    │   └── JournalDamaged        its journal cannot be read
    │       └── RecordTooLarge    a record larger than this process may decompress
    └── StoreError                the store cannot be used; a worker waits until it can
        ├── OutcomeUnknown        the response to a write was lost
        │   └── RunClosing        an expired run still processes what it has (retryable)
        ├── StoreUnusable         an operator must correct something first
        │   ├── StoreNotFound     no such table, bucket, file or folder
        │   ├── StoreReadOnly     the file or the folder may not be written
        │   ├── StoreFull         the disk is full, or the file has reached its limit
        │   ├── StoreCorrupt      the file is not a database, or is damaged
        │   ├── StoreMismatched   created by a newer release, or with other indexes
        │   ├── StoreClosed       used after close()
        │   │   └── StoreReplaced its file was deleted or replaced while it was open
        │   ├── StoreInUse        another process has it open
        │   └── AccessDenied      the credentials are refused, or not sufficient
        │       ├── CredentialsMissing
        │       └── CredentialsExpired
        └── StoreUnavailable      try again later (retryable)
            ├── Throttled         the service or the file is too busy
            └── EndpointUnreachable   no connection, or no response

``code`` is a name for programs and never changes. ``retryable`` says whether the same call may
succeed later without a correction. The docstring of a class is its default message.

The module ``requests`` has the errors for mistakes of callers, ``refusals`` for refused requests,
``reviews`` for reviews, ``documents`` for documents, ``search`` for searches, ``uploads`` for files
and uploads, ``extraction`` for files and for the services that make text of images and speech,
``service`` for what a server refuses, ``runs`` for runs that did not finish, ``nodes`` for code
inside nodes, ``stores`` for the store.
"""

from holdfast.errors.documents import (
    DocumentNotFound,
    DocumentWorkflowNotFound,
    IdTaken,
    ProjectNotFound,
    SegmentNotFound,
    StatusRefused,
)
from holdfast.errors.extraction import (
    ExtractionFailed,
    ExtractionUnavailable,
    FileRejected,
    NotConfigured,
)
from holdfast.errors.nodes import (
    AnswerTooLarge,
    ArgumentsTooLarge,
    BudgetSpent,
    CallChanged,
    CallError,
    CallFailed,
    CallRejected,
    CallTimedOut,
    HeartbeatTimedOut,
    InvalidAnswer,
    InvalidArguments,
    InvalidResult,
    InvalidState,
    MapFailed,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    NodeError,
    NodeTimedOut,
    NotAwaited,
    NotDone,
    NotPausable,
    PriceUnknown,
    ResultTaken,
    ResultTooLarge,
    TurnsSpent,
    UnknownItem,
    UnknownModel,
    UnknownTask,
    WaitBeyondExpiry,
    WaitInsideTimeout,
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
    PublicUrlMissing,
    QuotaTooSmall,
    ResourceMissing,
    SignalMisfit,
    TargetRefused,
    UnknownSignal,
)
from holdfast.errors.reviews import (
    AlreadyVoted,
    NoAddress,
    NotAssigned,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
    ReviewLinkExpired,
    ReviewLinkInvalid,
    ReviewNotFound,
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
from holdfast.errors.search import SearchIndexDamaged, SearchNotConfigured, SearchUnavailable
from holdfast.errors.service import (
    BulkJobEnded,
    BulkJobNotFound,
    CallbackExpired,
    CallbackInvalid,
    Forbidden,
    InvalidResponse,
    KeyNotFound,
    NotReady,
    ServerStopping,
    ServerUnavailable,
    TooManyRequests,
    Unauthenticated,
    UnknownGraph,
    WebhookNotFound,
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
from holdfast.errors.uploads import (
    ChecksumMismatch,
    FileTooLarge,
    LengthRequired,
    ProtocolMismatch,
    StoredFileNotFound,
    UploadConflict,
    UploadGone,
    UploadInterrupted,
    UploadNotFound,
    UploadsBusy,
)

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "AlreadyVoted",
    "AnswerTooLarge",
    "ArgumentsTooLarge",
    "BlobDamaged",
    "BlobNotFound",
    "BudgetShared",
    "BudgetSpent",
    "BulkJobEnded",
    "BulkJobNotFound",
    "CallChanged",
    "CallError",
    "CallFailed",
    "CallRejected",
    "CallTimedOut",
    "CallbackExpired",
    "CallbackInvalid",
    "ChangesOff",
    "ChangesTrimmed",
    "ChecksumMismatch",
    "ConditionFailed",
    "CredentialsExpired",
    "CredentialsMissing",
    "DocumentNotFound",
    "DocumentWorkflowNotFound",
    "EndpointUnreachable",
    "ExpiryNotLater",
    "ExtractionFailed",
    "ExtractionUnavailable",
    "FileRejected",
    "FileTooLarge",
    "Forbidden",
    "HeartbeatTimedOut",
    "HoldfastError",
    "IdTaken",
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
    "InvalidResponse",
    "InvalidResult",
    "InvalidState",
    "InvalidTransaction",
    "InvalidUrl",
    "InvalidWrite",
    "ItemDamaged",
    "ItemTooLarge",
    "JournalDamaged",
    "KeyNotFound",
    "LengthRequired",
    "MapFailed",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NoAddress",
    "NodeError",
    "NodeTimedOut",
    "NotAmbiguous",
    "NotAssigned",
    "NotAwaited",
    "NotConfigured",
    "NotDone",
    "NotPausable",
    "NotReady",
    "NotRetryable",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PriceUnknown",
    "ProjectNotFound",
    "ProtocolMismatch",
    "PublicUrlMissing",
    "QuotaTooSmall",
    "RecordTooLarge",
    "Refused",
    "ResourceMissing",
    "ResultTaken",
    "ResultTooLarge",
    "ResumeFailed",
    "ReviewChanged",
    "ReviewClaimed",
    "ReviewDecided",
    "ReviewLinkExpired",
    "ReviewLinkInvalid",
    "ReviewNotFound",
    "RunCancelled",
    "RunClosing",
    "RunEnded",
    "RunExpired",
    "RunFailed",
    "RunNotFound",
    "RunQuarantined",
    "SearchIndexDamaged",
    "SearchNotConfigured",
    "SearchUnavailable",
    "SegmentNotFound",
    "ServerStopping",
    "ServerUnavailable",
    "SessionBusy",
    "SignalMisfit",
    "StatusRefused",
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
    "StoredFileNotFound",
    "TargetRefused",
    "Throttled",
    "TooManyRequests",
    "TransactionCancelled",
    "TurnsSpent",
    "Unauthenticated",
    "UnknownGraph",
    "UnknownItem",
    "UnknownModel",
    "UnknownNode",
    "UnknownSignal",
    "UnknownTask",
    "Unsuccessful",
    "UploadConflict",
    "UploadGone",
    "UploadInterrupted",
    "UploadNotFound",
    "UploadsBusy",
    "WaitBeyondExpiry",
    "WaitInsideTimeout",
    "WaitTimedOut",
    "WebhookNotFound",
]

# Journals name an error by where it is imported from, and have to know it whatever file it is in.
for _name in __all__:
    globals()[_name].__module__ = __name__
