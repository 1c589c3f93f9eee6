"""Reads the responses of a server: JSON, or a problem that becomes a typed error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import httpx
import msgspec

from holdfast.errors import (
    Forbidden,
    HoldfastError,
    InvalidRequest,
    InvalidResponse,
    PayloadTooLarge,
    ServerUnavailable,
    TooManyRequests,
    Unauthenticated,
)
from holdfast.errors.registry import error_class
from holdfast.model.json_form import JsonForm
from holdfast.model.review import Review, ReviewDecision

__all__ = ["error_of", "json_of", "retry_after_seconds"]

_RETRY_AFTER_SECONDS_MAX = 300.0
_CHARS_MAX = 200
# What a status means where no problem says more: a proxy, or a request that no handler saw.
_CLASSES: dict[int, type[HoldfastError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    413: PayloadTooLarge,
    415: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
}
# Members of a problem that are not attributes of an error.
_OF_PROBLEM = frozenset({"type", "title", "status", "detail", "instance", "code"})
# Members that are more than text and numbers.
_FORMS: dict[str, type[JsonForm]] = {"decision": ReviewDecision, "review": Review}


def json_of(response: httpx.Response) -> Any:
    """Return the body of a response; None if it has none.

    Raises:
        InvalidResponse: the body is not JSON.
    """
    if not response.content:
        return None
    try:
        return msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        raise InvalidResponse(
            f"{response.request.url.path} answered with something other than JSON: is "
            f"{response.request.url.host} a Holdfast server?"
        ) from None


def error_of(response: httpx.Response) -> HoldfastError:
    """Return the error that a response tells, in the class that the library would raise."""
    problem = _problem_of(response)
    code, detail = problem.get("code"), problem.get("detail")
    message = detail if isinstance(detail, str) and detail else _described(response)
    known = error_class(code) if isinstance(code, str) else None
    kind = known or _CLASSES.get(response.status_code)
    if kind is None:
        kind = ServerUnavailable if response.status_code >= 500 else InvalidResponse
        message = f"{_described(response)}: {message}"
    error = kind(message)
    for name, value in problem.items():
        if name not in _OF_PROBLEM and name in vars(error):
            setattr(error, name, _member(name, value))
    if isinstance(error, TooManyRequests):
        error.retry_after_seconds = retry_after_seconds(response) or error.retry_after_seconds
    return error


def _member(name: str, value: Any) -> Any:
    """Return a member of a problem as the error has it; None if this release cannot read it."""
    if name in _FORMS:
        with suppress(InvalidRequest):
            return _FORMS[name].from_dict(value)
        return None
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value


def retry_after_seconds(response: httpx.Response) -> float | None:
    """Return how long the server asks to wait; None if it does not say so in seconds."""
    text = response.headers.get("retry-after", "")
    return min(float(text), _RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else None


def _problem_of(response: httpx.Response) -> dict[str, Any]:
    try:
        problem: object = msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        return {}
    return cast(dict[str, Any], problem) if isinstance(problem, dict) else {}


def _described(response: httpx.Response) -> str:
    request = response.request
    return f"{request.method} {request.url.path:.{_CHARS_MAX}} answered {response.status_code}"
