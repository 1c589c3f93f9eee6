"""The route to which other systems post callbacks. The signed token is all that it needs."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from litestar import Request, Response
from litestar.exceptions import ClientException, HTTPException
from litestar.params import PathParameter

from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["CALLBACKS"]

Token = Annotated[str, PathParameter(description="The token of the address.", max_length=2048)]

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_FORM_FIELDS_MAX = 1_000
# The first of these that a request has says which requests are the same.
_KEY_HEADERS = ("idempotency-key", "webhook-id")


class CallbackReceipt(msgspec.Struct, frozen=True):
    """What became of a callback."""

    repeated: bool
    """Whether the run had it already."""


@route(
    "POST",
    "/v1/callbacks/{token:str}",
    role="public",
    tag="callbacks",
    status=202,
    conflicts=True,
    fails=(410, 429),
    reads=(_JSON, _FORM),
    also={200: CallbackReceipt},
    returns=CallbackReceipt,
)
async def accept_callback(
    services: ServicesOf, request: Request[Any, Any, Any], token: Token
) -> Response[CallbackReceipt]:
    """Send the body to a run as the signal that its node waits for.

    The address is from `ctx.callback`, and needs no credentials. The body is JSON, a form or empty.
    Requests with the same `Idempotency-Key` or `Webhook-Id`, or without these with the same body,
    count once.
    """
    services.callback_rates.admit(hashlib.sha256(token.encode()).hexdigest())
    await services.hf.callbacks.check(token)  # who has no token must not make the server read
    payload = _payload(_content_type(request), await request.body())
    key = next((request.headers[name] for name in _KEY_HEADERS if name in request.headers), None)
    receipt = await services.hf.callbacks.accept(token, payload, key=key or None)
    return Response(CallbackReceipt(receipt.repeated), status_code=200 if receipt.repeated else 202)


def _content_type(request: Request[Any, Any, Any]) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _payload(content_type: str, body: bytes) -> Any:
    """Return the payload in the body of a request; refuse with 400 or 415 what cannot be read."""
    if not body:
        return None
    if content_type == _FORM:
        try:
            fields = parse_qs(
                body.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX
            )
        except ValueError:
            raise ClientException("the body must be a form in UTF-8") from None
        return {name: kept if len(kept) > 1 else kept[0] for name, kept in fields.items()}
    if content_type in ("", _JSON) or content_type.endswith("+json"):
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError):
            raise ClientException("the body must be JSON") from None
    raise HTTPException(
        f"the body must be JSON or a form, got {content_type!r:.80}", status_code=415
    )


CALLBACKS = (accept_callback,)
