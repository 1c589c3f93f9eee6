"""Verifies JSON Web Tokens. The only module besides `token_keys` that needs holdfast[jwt]."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry, deserialize_compact

from holdfast.clock import Clock
from holdfast.display import printable
from holdfast.errors import InvalidRequest, Unauthenticated
from holdfast.model.api_key import KEY_ROLES, KeyRole
from holdfast.model.names import validated_tenant
from holdfast.server.caller import Identity
from holdfast.server.options import JwtOptions
from holdfast.server.token_keys import open_token_keys

__all__ = ["TokenVerifier"]

_TOKEN_CHARS_MAX = 8192
_SUBJECT_CHARS_MAX = 128
# Every other parameter is refused: some name a key (jwk, jku, x5c, x5u), and crit may change what
# a signature means.
_HEADER = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_NOT_VALID = "the token is not valid"


class _Registry(JWSRegistry):
    """Algorithms by name. `TokenKeys` decides which are accepted."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


_REGISTRY = _Registry(strict_check_header=False)


class TokenVerifier:
    """Accepts the tokens that the options describe, and no others."""

    def __init__(self, options: JwtOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._keys = open_token_keys(options, clock)

    async def verify(self, text: str) -> Identity:
        """Return whom a token stands for.

        Raises:
            Unauthenticated: it is forged, expired, or not for this server.
        """
        try:
            return self._identity(text, await self._claims(text))
        except (JoseError, InvalidRequest, ValueError, TypeError, KeyError, RecursionError):
            raise Unauthenticated(_NOT_VALID) from None

    async def _claims(self, text: str) -> dict[str, Any]:
        if len(text) > _TOKEN_CHARS_MAX or text.count(".") != 2:
            raise Unauthenticated(_NOT_VALID)
        header = _header_of(text)
        algorithm, kid = header["alg"], header.get("kid")
        key = await self._keys.find(algorithm, kid)
        read = deserialize_compact(text, key, [algorithm], _REGISTRY)
        return msgspec.json.decode(read.payload or b"", type=dict[str, Any])

    def _identity(self, text: str, claims: Mapping[str, Any]) -> Identity:
        options, now = self._options, self._clock.now_ms() / 1000
        expires, begins = _time(claims["exp"]), _time(claims.get("nbf", 0))
        if begins > now + options.leeway_seconds or not self._is_addressed(claims):
            raise Unauthenticated(_NOT_VALID)
        if now >= expires + options.leeway_seconds:
            raise Unauthenticated("the token has expired")
        subject = claims.get("sub", "token")
        if type(subject) is not str:
            raise Unauthenticated(_NOT_VALID)
        return Identity(
            f"token:{printable(subject[:_SUBJECT_CHARS_MAX])}",
            validated_tenant(claims[options.tenant_claim]),
            _strongest_role(claims[options.role_claim]),
            text,
            subject,
        )

    def _is_addressed(self, claims: Mapping[str, Any]) -> bool:
        """Return whether a token is from the expected issuer, and for this server."""
        audience: Any = claims.get("aud")
        listed = cast("list[Any]", audience) if isinstance(audience, list) else [audience]
        if self._options.audience not in listed:  # a token for others is refused, too
            return False
        return self._options.issuer is None or claims.get("iss") == self._options.issuer


def _header_of(text: str) -> dict[str, str]:
    header = msgspec.json.decode(_decoded(text.partition(".")[0]), type=dict[str, str])
    if not header.keys() <= _HEADER or header.get("typ", "JWT").lower() not in _TYPES:
        raise Unauthenticated(_NOT_VALID)
    return header


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _time(claim: object) -> float:
    if type(claim) not in (int, float) or not math.isfinite(cast(float, claim)):
        raise Unauthenticated(_NOT_VALID)
    return cast(float, claim)


def _strongest_role(claim: object) -> KeyRole:
    listed = cast("list[Any]", claim) if isinstance(claim, list) else [claim]
    held: list[KeyRole] = [role for role in KEY_ROLES if role in listed]
    if not held:
        raise Unauthenticated(_NOT_VALID)
    return held[-1]
