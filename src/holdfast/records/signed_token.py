"""Signed tokens: ``v1.{payload}.{signature}``, both in base64url.

The payload is a MessagePack array: the id of the key, the time of the expiry, and the claims. The
signature is an HMAC-SHA256 of the purpose and of the payload's text. So a token of one purpose is
no token of another one, and no other spelling of a token is valid.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from holdfast.records.signing_keys import SigningKey

__all__ = ["UnverifiedToken", "parsed_token", "signed_token", "verified_claims"]

_VERSION = "v1"
# Names in a token have at most 128 bytes each.
_CHARS_MAX = 2_048

_encoder = msgspec.msgpack.Encoder()


class _Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    key: str
    expires_ms: int
    claims: list[str]


_decoder = msgspec.msgpack.Decoder(_Payload)


class UnverifiedToken(msgspec.Struct, frozen=True):
    """A token that has the right form. Its signature is not checked yet: trust nothing in it."""

    key: str
    """The id of the key that is said to have signed it."""
    expires_ms: int
    claims: list[str]
    signed: str
    """The text that the signature signs."""
    signature: str


def signed_token(purpose: str, claims: list[str], key: SigningKey, *, expires_ms: int) -> str:
    """Return a token of a purpose, signed with a key."""
    payload = _text(_encoder.encode(_Payload(key.id, expires_ms, claims)))
    signed = f"{_VERSION}.{payload}"
    return f"{signed}.{_signature(purpose, signed, key)}"


def parsed_token(token: str) -> UnverifiedToken | None:
    """Return the parts of a token; None if it does not have the form of one."""
    if len(token) > _CHARS_MAX or not token.isascii():
        return None
    version, _, rest = token.partition(".")
    payload, _, signature = rest.partition(".")
    if version != _VERSION or not payload or not signature:
        return None
    try:
        data = urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        found = _decoder.decode(data)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return UnverifiedToken(
        found.key, found.expires_ms, found.claims, f"{version}.{payload}", signature
    )


def verified_claims(token: UnverifiedToken, purpose: str, key: SigningKey) -> list[str] | None:
    """Return the claims of a token; None if this key did not sign it for this purpose."""
    expected = _signature(purpose, token.signed, key)
    # The texts are compared, not the bytes: base64 has several spellings of the same bytes.
    if token.key != key.id or not hmac.compare_digest(expected, token.signature):
        return None
    return token.claims


def _signature(purpose: str, signed: str, key: SigningKey) -> str:
    # No purpose has a "\0" in its name.
    return _text(hmac.new(key.secret, f"{purpose}\0{signed}".encode(), sha256).digest())


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
