"""Errors for a caller's mistakes. Nothing was sent, and nothing was written."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors.root import HoldfastError

__all__ = [
    "InvalidBlobKey",
    "InvalidGraph",
    "InvalidInput",
    "InvalidItem",
    "InvalidKey",
    "InvalidName",
    "InvalidPrompt",
    "InvalidQuery",
    "InvalidRequest",
    "InvalidTransaction",
    "InvalidUrl",
    "InvalidWrite",
    "ItemTooLarge",
    "PayloadTooLarge",
    "PublicUrlMissing",
    "QuotaTooSmall",
    "ResourceMissing",
    "SignalMisfit",
    "TargetRefused",
    "UnknownSignal",
]


class InvalidRequest(HoldfastError):
    """The request is not valid; nothing was sent, and nothing was written."""

    code = "invalid_request"

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        size: float | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        """The attribute, parameter or key that is wrong, if there is one."""
        self.size = size
        """The size that exceeds a limit."""
        self.limit = limit
        """The limit that was exceeded."""


class InvalidUrl(InvalidRequest):
    """The address of the store cannot be understood."""

    code = "invalid_url"


class InvalidKey(InvalidRequest):
    """A key of an item is empty, too long or not a string."""

    code = "invalid_key"


class InvalidItem(InvalidRequest):
    """An item contains a value that a table cannot store."""

    code = "invalid_item"


class ItemTooLarge(InvalidItem):
    """An item is larger than 400 KB."""

    code = "item_too_large"


class InvalidWrite(InvalidRequest):
    """A write or its condition is not valid."""

    code = "invalid_write"


class InvalidTransaction(InvalidRequest):
    """A transaction has too many writes, too many bytes, or two writes for one key."""

    code = "invalid_transaction"


class InvalidQuery(InvalidRequest):
    """A query has an unknown index, a wrong limit, or the cursor of another query."""

    code = "invalid_query"


class InvalidBlobKey(InvalidRequest):
    """A blob's key cannot be both the name of a file and of an S3 object."""

    code = "invalid_blob_key"


class InvalidGraph(InvalidRequest):
    """The graph cannot be run."""

    code = "invalid_graph"

    def __init__(self, message: str | None = None, *, faults: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)
        """Everything that is wrong with the graph, one sentence each."""


class InvalidInput(InvalidRequest):
    """The input does not match the graph's state."""

    code = "invalid_input"


class PayloadTooLarge(InvalidInput):
    """The input or the payload has more bytes, before compression, than the limit allows."""

    code = "payload_too_large"


class SignalMisfit(InvalidInput):
    """The payload does not fit the type of the signal. The run keeps waiting."""

    code = "signal_misfit"


class UnknownSignal(InvalidRequest):
    """The graph declares its signals, and this one is not among them."""

    code = "unknown_signal"


class InvalidName(InvalidRequest):
    """An id or a name is empty, too long, or has characters that keys and files cannot have."""

    code = "invalid_name"


class InvalidPrompt(InvalidRequest):
    """The messages, tools or parameters are not valid for any model."""

    code = "invalid_prompt"


class QuotaTooSmall(InvalidRequest):
    """One request needs more than the quota permits in a whole window."""

    code = "quota_too_small"


class ResourceMissing(InvalidRequest):
    """A worker's process lacks a model, a quota or a task that one of its graphs needs."""

    code = "resource_missing"

    def __init__(
        self, message: str | None = None, *, graph: str = "", missing: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.graph = graph
        """The name of the graph."""
        self.missing = tuple(missing)
        """What it lacks, such as ``model 'haiku'``."""


class PublicUrlMissing(InvalidRequest):
    """A callback or a link needs the public address of the server, which is not known here."""

    code = "public_url_missing"


class TargetRefused(InvalidRequest):
    """No request must be sent to this address: of a webhook, or of a page to crawl."""

    code = "target_refused"
