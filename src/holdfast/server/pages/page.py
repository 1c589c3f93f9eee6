"""Makes pages: handlers that answer with HTML, also when they fail, and the headers of pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib.resources import files
from typing import Any, Literal, cast
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Request, Response
from litestar.datastructures import Cookie
from litestar.enums import MediaType
from litestar.handlers import HTTPRouteHandler

from holdfast.display import get_logger
from holdfast.errors import ReviewLinkExpired
from holdfast.model.review import ReviewDecision
from holdfast.server.pages.shown_data import visible
from holdfast.server.problems import Problem, problem_of
from holdfast.server.roles import Role

__all__ = [
    "IMAGE_POLICY",
    "STYLESHEET",
    "STYLESHEET_NAME",
    "PageRequest",
    "address",
    "page",
    "redirected",
    "rendered",
]

_log = get_logger("holdfast.server")

PageRequest = Request[Any, Any, Any]

STYLESHEET = (files("holdfast.server.pages") / "style.css").read_bytes()
STYLESHEET_NAME = f"style-{hashlib.sha256(STYLESHEET).hexdigest()[:16]}.css"

# No script, no picture, nothing of another site, and no frame around a page.
_POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
IMAGE_POLICY = f"{_POLICY}; img-src 'self'"
"""The policy of a page that shows pictures of this server."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex, nofollow",
}
_NOW_SECONDS = 5
# A browser names the origin of a form only if the policy lets it name the page's address there.
_REFERRER, _SECRET_REFERRER = "same-origin", "no-referrer"
_SECRET_PATHS = "/r/"

_TITLES = {
    "review_link_invalid": (
        "This link is not valid",
        "The address is incomplete or was changed, or the review is gone. Ask the person who sent "
        "it for a new link.",
    ),
    "review_link_expired": (
        "This link has expired",
        "It can no longer be used. If the decision is still needed, ask for a new link.",
    ),
    "review_not_found": (
        "There is no such review",
        "It may have been removed with its run, or it belongs to another tenant.",
    ),
    "project_not_found": (
        "There is no such project",
        "It may have been deleted, or it belongs to another tenant.",
    ),
    "document_not_found": (
        "There is no such document",
        "It may have been deleted, or it belongs to another tenant.",
    ),
    "document_workflow_not_found": (
        "There is no such processing",
        "The document was not processed, or this processing of it was deleted.",
    ),
    "segment_not_found": (
        "There is no such segment",
        "The document has fewer segments.",
    ),
}
_TITLES_BY_STATUS = {
    400: "This request cannot be read",
    403: "This is not permitted",
    404: "There is no such page",
    408: "The form took too long to arrive",
    409: "This cannot be done",
    413: "The form is too large",
    415: "This request cannot be read",
    422: "This request cannot be read",
    429: "Too many requests",
    500: "Something went wrong",
    503: "The server cannot answer now",
}
# What an error says of the store is for the people who run the server, not for every reviewer.
_TEXTS_BY_STATUS = {
    500: "It is not your mistake. The people who run this server find the cause in its log.",
    503: "Wait a moment, and open the page again. It then shows whether your answer was counted.",
}


def _when(moment: datetime) -> str:
    return f"{moment.day} {moment:%b %Y, %H:%M} UTC"


def _distance(moment: datetime, now: datetime) -> str:
    """Return how far a point in time is from now: ``in 3 days``, ``2 hours ago``."""
    seconds = (moment - now).total_seconds()
    count, unit = abs(seconds), "second"
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if abs(seconds) >= size:
            count, unit = abs(seconds) / size, name
            break
    if unit == "second" and count < _NOW_SECONDS:
        return "just now"
    shown = f"{round(count)} {unit}{'' if round(count) == 1 else 's'}"
    return f"in {shown}" if seconds > 0 else f"{shown} ago"


def _shortened(text: str, chars: int) -> str:
    """Return the beginning of a text that is too long for its place."""
    return text if len(text) <= chars else f"{text[: chars - 1].rstrip()}…"


def _size(count: int) -> str:
    """Return a number of bytes as people read it."""
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{size:.3g} {unit}"


_environment = Environment(
    loader=PackageLoader("holdfast.server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Any] = {
    "distance": _distance,
    "shortened": _shortened,
    "size": _size,
    "visible": visible,
    "when": _when,
}
_environment.filters.update(_FILTERS)


def page(
    method: Literal["GET", "POST"], path: str, *, role: Role
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a page of a function. A page is not part of the API, and errors are pages, too."""
    return HTTPRouteHandler(
        path,
        http_method=["GET", "HEAD"] if method == "GET" else method,
        status_code=200,
        media_type=MediaType.HTML,
        opt={"role": role, "page": True},
        exception_handlers={Exception: _error_page},
        include_in_schema=False,
    )


def rendered(
    request: PageRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """Return a page from a template."""
    text = _environment.get_template(template).render(
        root=_root(request), stylesheet=STYLESHEET_NAME, **context
    )
    return Response(
        text.encode(errors="replace"),
        status_code=status,
        media_type=MediaType.HTML,
        headers={**_HEADERS, "Referrer-Policy": _referrer_policy(request), **(headers or {})},
    )


def redirected(
    request: PageRequest, path: str, *, cookies: Iterable[Cookie] = ()
) -> Response[bytes]:
    """Return the answer to a form that was carried out: the browser reads a page with GET."""
    return Response(
        b"",
        status_code=303,
        media_type=MediaType.HTML,
        headers={
            **_HEADERS,
            "Referrer-Policy": _referrer_policy(request),
            "Location": address(request, path),
        },
        cookies=list(cookies),
    )


def address(request: PageRequest, path: str) -> str:
    """Return the address of a page, below the place where the server is mounted."""
    return f"{quote(_root(request))}{path}"


def _root(request: PageRequest) -> str:
    scope = cast("dict[str, Any]", request.scope)
    return str(scope.get("root_path", "")).rstrip("/")


def _referrer_policy(request: PageRequest) -> str:
    path = str(request.scope["path"]).removeprefix(_root(request))
    return _SECRET_REFERRER if path.startswith(_SECRET_PATHS) else _REFERRER


def _ended_review(decision: ReviewDecision[Any]) -> tuple[str, str]:
    """Return the title and the text for a link that has expired because its review is decided.

    Who decided is not for every person who finds an old link.
    """
    if decision.status == "expired":
        text = f"It expired at {_when(decision.at)}; the run went on without an approval."
        return "This review has expired", text
    text = f"It was {decision.status} at {_when(decision.at)}. There is nothing left to do."
    return "This review is decided", text


def _error_page(request: PageRequest, error: Exception) -> Response[Any]:
    """Return the page that says what is wrong; its status is that of the API."""
    answer = problem_of(request, error)
    problem = msgspec.json.decode(answer.content, type=Problem)
    headers = {name: answer.headers[name] for name in answer.headers if name != "Content-Type"}
    if problem.status == 401:
        path = str(request.scope["path"]).removeprefix(_root(request))
        context = {"with_key": True, "next": path, "error": "", "name": "", "problem": ""}
        if request.cookies:
            context["problem"] = "Your session has ended, or its key was revoked."
        return rendered(request, "sign_in.html", context, status=401, headers=headers)
    title, text = _TITLES.get(
        problem.code,
        (
            _TITLES_BY_STATUS.get(problem.status, problem.title),
            _TEXTS_BY_STATUS.get(problem.status, problem.detail),
        ),
    )
    if isinstance(error, ReviewLinkExpired) and error.decision is not None:
        title, text = _ended_review(error.decision)
    if problem.status == 503:
        route = cast("dict[str, Any]", request.scope).get("path_template")  # the path is a secret
        _log.warning("%s %s cannot be answered now: %s", request.method, route, problem.detail)
    return rendered(
        request,
        "message.html",
        {"title": title, "text": text, "detail": ""},
        status=problem.status,
        headers=headers,
    )
