"""HTTP requests as Lambda gets them, as ASGI has them, and the way back for the responses.

API Gateway, function URLs and load balancers each have their own form:

=========== ============================================= ==========================================
form        who sends it                                  how it is told
=========== ============================================= ==========================================
2.0         HTTP APIs, function URLs                      ``version`` is ``2.0``
1.0         REST APIs, HTTP APIs on request               ``httpMethod``
alb         application load balancers                    ``requestContext`` has ``elb``
=========== ============================================= ==========================================
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote, urlencode

from holdfast.errors import InvalidRequest
from holdfast.integrations.aws_lambda.invocation import shape_of

__all__ = ["Headers", "HttpRequest", "answer_of", "http_request_of", "scope_of"]

Form: TypeAlias = Literal["2.0", "1.0", "alb", "alb with multi-value headers"]
Headers: TypeAlias = list[tuple[bytes, bytes]]

_TEXT_TYPES = ("text/", "application/json", "application/problem+json", "application/javascript")


class HttpRequest(NamedTuple):
    """A request, whatever form it came in."""

    form: Form
    method: str
    path: str
    """With the prefix, and encoded as in the URL."""
    prefix: str
    """The part of the path that the server does not know, such as the stage."""
    query: bytes
    headers: Headers
    body: bytes
    client: str

    @property
    def is_safe(self) -> bool:
        """Whether it changes nothing, as HTTP says."""
        return self.method in ("GET", "HEAD", "OPTIONS")


def http_request_of(event: Any, *, base_path: str = "") -> HttpRequest:
    """Return the request of an event.

    Raises:
        InvalidRequest: it is none, or its body is not what it says.
    """
    match event:
        case {"version": "2.0", "requestContext": {"http": {"method": str(method)}}}:
            return _from_version_2(event, method, base_path)
        case {"httpMethod": str(method), "path": str(), "requestContext": dict()}:
            return _from_version_1(event, method, base_path)
        case _:
            raise InvalidRequest(
                "event must be a request of API Gateway, of a function URL or of a load balancer, "
                f"got {shape_of(event)}",
                field="event",
            )


def _from_version_2(event: Any, method: str, base_path: str) -> HttpRequest:
    context = event["requestContext"]
    headers = [*_pairs(event.get("headers"))]
    if cookies := event.get("cookies"):
        headers.append((b"cookie", "; ".join(map(str, cookies)).encode("latin-1", "replace")))
    path = str(event.get("rawPath") or "/")
    return HttpRequest(
        form="2.0",
        method=method,
        path=path,
        prefix=_prefix(path, base_path, context.get("stage")),
        query=str(event.get("rawQueryString") or "").encode("latin-1", "replace"),
        headers=headers,
        body=_body(event),
        client=str(context["http"].get("sourceIp") or ""),
    )


def _from_version_1(event: Any, method: str, base_path: str) -> HttpRequest:
    context = event["requestContext"]
    path, prefix = _staged(event["path"] or "/", context.get("path"))
    is_alb = "elb" in context
    several = event.get("multiValueHeaders")
    headers = [*_pairs(several or event.get("headers"))]
    queries = _values(event.get("multiValueQueryStringParameters"))
    queries = queries or _values(event.get("queryStringParameters"))
    # A load balancer leaves queries as they are in the URL, API Gateway decodes them.
    query = "&".join(f"{name}={value}" for name, value in queries) if is_alb else urlencode(queries)
    if is_alb:
        forwarded = next((v for n, v in headers if n == b"x-forwarded-for"), b"").decode("latin-1")
        client = forwarded.rpartition(",")[2].strip()  # the last one is from the balancer itself
    else:
        client = str(_dict(context.get("identity")).get("sourceIp") or "")
    form: Form = "1.0" if not is_alb else "alb with multi-value headers" if several else "alb"
    return HttpRequest(
        form=form,
        method=method,
        path=path,
        prefix=prefix or _prefix(path, base_path, None),
        query=query.encode("latin-1", "replace"),
        headers=headers,
        body=_body(event),
        client=client,
    )


def scope_of(request: HttpRequest) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    headers = dict(reversed(request.headers))  # the first of each name
    host, _, port = headers.get(b"host", b"").decode("latin-1").partition(":")
    scheme = headers.get(b"x-forwarded-proto", b"https").decode("latin-1")
    path = unquote(request.path)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method.upper(),
        "scheme": scheme,
        "path": path,
        "raw_path": quote(path).encode(),
        "root_path": request.prefix,
        "query_string": request.query,
        "headers": request.headers,
        "client": (request.client, 0) if request.client else None,
        "server": (host, int(port) if port.isdecimal() else 443),
        "state": {},
    }


def answer_of(form: Form, *, status: int, headers: Headers, body: bytes) -> dict[str, Any]:
    """Return a response in the form that fits its request."""
    text = _text_of(headers, body)
    answer: dict[str, Any] = {
        "statusCode": status,
        "body": base64.b64encode(body).decode() if text is None else text,
        "isBase64Encoded": text is None,
    }
    named = [(n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in headers]
    if form == "2.0":
        answer["cookies"] = [value for name, value in named if name == "set-cookie"]
        named = [pair for pair in named if pair[0] != "set-cookie"]
        answer["headers"] = {name: ", ".join(values) for name, values in _grouped(named)}
    elif form == "alb":
        answer["headers"] = {name: values[-1] for name, values in _grouped(named)}
    else:
        answer["multiValueHeaders"] = dict(_grouped(named))
    return answer


def _grouped(named: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, value in named:
        grouped.setdefault(name, []).append(value)
    return grouped.items()


def _text_of(headers: Headers, body: bytes) -> str | None:
    """Return a body as text; None if it has to be sent in base64."""
    found = {name.lower(): value for name, value in headers}
    kind = found.get(b"content-type", b"").decode("latin-1").lower()
    if body and (b"content-encoding" in found or not kind.startswith(_TEXT_TYPES)):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _staged(path: str, whole_path: Any) -> tuple[str, str]:
    """Return the path of a REST API as callers write it, and the stage with which it begins."""
    if isinstance(whole_path, str) and whole_path.endswith(path):
        return whole_path, whole_path.removesuffix(path)
    return path, ""


def _prefix(path: str, base_path: str, stage: Any) -> str:
    """Return what precedes the server's own paths: the base path, or a stage that has a name."""
    stage = "" if stage in (None, "", "$default") else f"/{stage}"
    for prefix in (base_path, stage):
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            return prefix
    return ""


def _body(event: Any) -> bytes:
    body = event.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise InvalidRequest(f"body must be text, got {shape_of(body)}", field="body")
    if event.get("isBase64Encoded") is not True:
        return body.encode(errors="replace")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("body must be in base64", field="body") from None


def _pairs(headers: Any) -> Iterator[tuple[bytes, bytes]]:
    for name, value in _values(headers):
        yield name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace")


def _values(given: Any) -> list[tuple[str, str]]:
    """Return names with their values, from a mapping of values or of lists of values."""
    pairs: list[tuple[str, str]] = []
    for name, value in _dict(given).items():
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        pairs += [(str(name), str(each)) for each in values]
    return pairs


def _dict(given: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}
