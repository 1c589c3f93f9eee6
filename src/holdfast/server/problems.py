"""Errors as ``application/problem+json`` (RFC 9457): one table from typed errors to statuses."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

from holdfast.display import get_logger
from holdfast.errors import (
    AlreadyExists,
    AlreadyVoted,
    BudgetShared,
    BulkJobEnded,
    BulkJobNotFound,
    CallbackExpired,
    CallbackInvalid,
    ChecksumMismatch,
    DocumentNotFound,
    DocumentWorkflowNotFound,
    ExpiryNotLater,
    FileRejected,
    FileTooLarge,
    Forbidden,
    HoldfastError,
    InboxFull,
    InvalidRequest,
    KeyNotFound,
    LengthRequired,
    NotAmbiguous,
    NotAssigned,
    NotReady,
    NotRetryable,
    PayloadTooLarge,
    ProjectNotFound,
    ProtocolMismatch,
    Refused,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
    ReviewLinkExpired,
    ReviewLinkInvalid,
    ReviewNotFound,
    RunClosing,
    RunEnded,
    RunNotFound,
    SearchIndexDamaged,
    SearchUnavailable,
    SegmentNotFound,
    ServerStopping,
    SessionBusy,
    SignalMisfit,
    StoredFileNotFound,
    StoreError,
    Throttled,
    TooManyRequests,
    Unauthenticated,
    UnknownGraph,
    UnknownSignal,
    Unsuccessful,
    UploadConflict,
    UploadGone,
    UploadInterrupted,
    UploadNotFound,
    UploadsBusy,
    WebhookNotFound,
)
from holdfast.model.json_form import JsonForm
from holdfast.server.expectations import expectation
from holdfast.server.routing import description_of

__all__ = [
    "LEFT",
    "PROBLEM_JSON",
    "RETRY_LATER",
    "STATUSES",
    "TUS_VERSION",
    "Problem",
    "problem_of",
    "status_of",
]

_log = get_logger("holdfast.server")

PROBLEM_JSON = "application/problem+json"
_RETRY_AFTER_SECONDS = 1
LEFT = "holdfast.left"
"""What a request's scope has if the client left before its body had arrived."""
_NO_PATH = "there is no such path; the API is described at /v1/openapi.json"
TUS_VERSION = "1.0.0"
"""The version of tus, the protocol of uploads, that the server has."""
CHECKSUM_MISMATCH = 460
"""A status of tus, which HTTP does not have."""
RETRY_LATER = (429, 503)
"""The statuses whose responses have the header Retry-After."""

# The first class that matches counts, so a subclass stands before its base.
STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (PayloadTooLarge, 413),
    (FileTooLarge, 413),
    (FileRejected, 415),
    (ChecksumMismatch, CHECKSUM_MISMATCH),
    (LengthRequired, 411),
    (ProtocolMismatch, 412),
    (SignalMisfit, 422),
    (UnknownSignal, 422),
    (InvalidRequest, 422),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (RunNotFound, 404),
    (StoredFileNotFound, 404),
    (UploadNotFound, 404),
    (UploadGone, 410),
    (UploadConflict, 409),
    (UploadInterrupted, 408),
    (UploadsBusy, 503),
    (KeyNotFound, 404),
    (CallbackInvalid, 404),
    (WebhookNotFound, 404),
    (ReviewNotFound, 404),
    (ReviewLinkInvalid, 404),
    (ProjectNotFound, 404),
    (DocumentNotFound, 404),
    (DocumentWorkflowNotFound, 404),
    (SegmentNotFound, 404),
    (NotAssigned, 403),
    (CallbackExpired, 410),
    (ReviewLinkExpired, 410),
    (UnknownGraph, 404),
    (BulkJobNotFound, 404),
    (TooManyRequests, 429),
    (InboxFull, 429),
    (NotReady, 503),
    (SearchIndexDamaged, 503),
    (SearchUnavailable, 503),
    (AlreadyExists, 409),
    (BudgetShared, 409),
    (BulkJobEnded, 409),
    (ExpiryNotLater, 409),
    (NotAmbiguous, 409),
    (NotRetryable, 409),
    (AlreadyVoted, 409),
    (ReviewChanged, 409),
    (ReviewClaimed, 409),
    (ReviewDecided, 409),
    (RunEnded, 409),
    (ServerStopping, 503),
    (SessionBusy, 409),
    (Unsuccessful, 409),
    (Refused, 409),
    (RunClosing, 503),
    (Throttled, 503),
    (StoreError, 503),
)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with a request, for programs (``code``) and for people (``detail``)."""

    title: str
    status: int
    code: str
    """The error's name, which never changes."""
    detail: str = ""
    field: str | None = None
    """The argument that is wrong."""
    type: str = "about:blank"
    decision: dict[str, Any] | None = None
    """How the review was decided, by whom and when (``review_decided``): a ReviewDecision."""
    review: dict[str, Any] | None = None
    """The review as it is now (``review_changed``): a Review."""
    difference: tuple[str, ...] = ()
    """What was changed since the review was shown, for people (``review_changed``)."""
    by: str = ""
    """Who has claimed the review (``review_claimed``)."""


def status_of(error: HoldfastError) -> int:
    """Return the status of the response to a request that raised this error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def problem_of(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Return the response to a request that raised an error."""
    if isinstance(error, HoldfastError):
        wait = getattr(error, "retry_after_seconds", _RETRY_AFTER_SECONDS)
        headers = {"Retry-After": f"{wait:.0f}"} if error.retryable else {}
        if isinstance(error, ProtocolMismatch):
            headers["Tus-Version"] = TUS_VERSION
        return _response(_problem_of_ours(error), headers=headers)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _response(_problem_of_request(request, error), headers=error.headers)
    scope = cast("dict[str, Any]", request.scope)
    if isinstance(error, InternalServerException) and LEFT in scope:
        return _response(Problem("Bad Request", 400, "bad_request", "The body did not arrive."))
    # Not the path: that of a callback is a secret.
    route = scope.get("path_template") or "a request without a route"
    _log.exception("%s %s failed", request.method, route, exc_info=error)
    return _response(Problem("Internal Server Error", 500, "internal", "See the server's log."))


def _problem_of_ours(error: HoldfastError) -> Problem:
    status = status_of(error)
    if status == 500:
        _log.error("no status is known for %s: %s", type(error).__name__, error)
    field = getattr(error, "field", None)
    title = _title(status)
    return Problem(title, status, error.code, str(error), field, **_members_of(error))


def _title(status: int) -> str:
    return "Checksum Mismatch" if status == CHECKSUM_MISMATCH else HTTPStatus(status).phrase


def _members_of(error: HoldfastError) -> dict[str, Any]:
    """Return what the problem of an error tells besides its text: its attributes, as JSON."""
    if isinstance(error, ReviewDecided):
        return {"decision": _shown(error.decision)}
    if isinstance(error, ReviewChanged):
        return {"review": _shown(error.review), "difference": error.difference}
    return {"by": error.by} if isinstance(error, ReviewClaimed) else {}


def _shown(value: JsonForm | None) -> dict[str, Any] | None:
    return None if value is None else value.as_dict()


def _problem_of_request(request: Request[Any, Any, Any], error: HTTPException) -> Problem:
    """Return the problem of a request that no handler has seen."""
    status, field, detail = error.status_code, None, error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        wrong = cast("list[dict[str, str]]", error.extra)[0]
        field = wrong.get("key")
        told = wrong.get("message", detail)
        detail = f"{field}: {told}{_expected(request, field, told)}" if field else told
    elif isinstance(error, NotFoundException):
        detail = _NO_PATH
    elif isinstance(error, MethodNotAllowedException):
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        allowed = sorted(headers.get("allow", "").split(", "))
        detail = f"this path has no method {request.method!r:.20}; it has {', '.join(allowed)}"
    title = HTTPStatus(status).phrase
    return Problem(title, status, title.lower().replace(" ", "_"), detail, field)


def _expected(request: Request[Any, Any, Any], field: str, told: str) -> str:
    """Return which values a parameter may have, if it is one of an enumeration."""
    scope = cast("dict[str, Any]", request.scope)
    route = description_of(scope.get("route_handler"))
    kind, _ = route.parameters.get(field, (None, None)) if route else (None, None)
    return expectation(kind, told)


def _response(problem: Problem, *, headers: Mapping[str, str] | None = None) -> Response[Any]:
    sent = {"Cache-Control": "no-store", **(headers or {})}
    if problem.status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    if problem.status in RETRY_LATER:
        sent.setdefault("Retry-After", str(_RETRY_AFTER_SECONDS))
    return Response(
        msgspec.json.encode(problem),
        status_code=problem.status,
        media_type=PROBLEM_JSON,
        headers=sent,
    )
