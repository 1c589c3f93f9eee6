"""Identifies callers by API keys and tokens, and counts what they ask."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from holdfast.app import Holdfast
from holdfast.errors import InvalidRequest, TooManyRequests, Unauthenticated
from holdfast.model.api_key import ApiKey
from holdfast.server.caller import Identity
from holdfast.server.key_cache import KeyCache, digest_of, remember
from holdfast.server.options import JwtOptions, Rate, ServerOptions
from holdfast.server.throttling import Throttle

if TYPE_CHECKING:
    from holdfast.server.tokens import TokenVerifier

__all__ = ["Credentials"]

_KEY_PREFIX = "hf_"
_CREDENTIAL_CHARS_MAX = 8192


class Credentials:
    """Admits callers with valid credentials, as often as their rates permit."""

    def __init__(self, hf: Holdfast, options: ServerOptions) -> None:
        self._keys = KeyCache(hf)
        self._tokens = None if options.jwt is None else _token_verifier(options.jwt, hf)
        self._callers = _throttle(options.key_rate, hf)
        self._tenants = _throttle(options.tenant_rate, hf)
        self._failures = Throttle(options.failure_rate, hf.clock)
        # What was valid when it was last used.
        self._admitted: OrderedDict[bytes, None] = OrderedDict()
        self._at_once: Counter[str] = Counter()
        self._at_once_max = options.requests_at_once_max

    async def admit(self, header: str | None, *, address: str) -> Identity:
        """Return whom the header ``Authorization`` stands for, and count the request.

        Raises:
            Unauthenticated: there are no valid credentials.
            TooManyRequests: the caller, its tenant or its address has used its rate.
        """
        return await self._admit(_credential_of(header), address)

    async def admit_key(self, text: str, *, address: str) -> Identity:
        """Return whom an API key stands for that a person signs in with.

        Raises:
            Unauthenticated: it is not a valid API key.
            TooManyRequests: as `admit`.
        """
        text = text.strip()
        # Not a token: a session is valid for as long as its key, and a token cannot be revoked.
        is_key = text.startswith(_KEY_PREFIX) and len(text) <= _CREDENTIAL_CHARS_MAX
        return await self._admit(text if is_key else _KEY_PREFIX, address)

    async def admit_session(self, key: str) -> Identity:
        """Return whom the API key of a session stands for, and count the request.

        Raises:
            Unauthenticated: the key was revoked or has expired.
            TooManyRequests: as `admit`.
        """
        if not key:
            raise Unauthenticated("sign in with an API key")
        return self._counted(_identity_of_key(await self._keys.verify_id(key), ""))

    async def _admit(self, text: str, address: str) -> Identity:
        digest = digest_of(text)
        if digest not in self._admitted:
            # An attacker must not lock out callers that share its address.
            self._failures.check(address)
        try:
            identity = await self.identify(text)
        except Unauthenticated:
            self._admitted.pop(digest, None)
            self._failures.count(address)
            raise
        remember(self._admitted, digest, None)
        return self._counted(identity)

    def _counted(self, identity: Identity) -> Identity:
        if self._callers is not None:
            self._callers.admit(identity.caller)
        if self._tenants is not None:
            self._tenants.admit(identity.tenant)
        return identity

    async def identify(self, text: str) -> Identity:
        """Return whom a key or a token stands for.

        Raises:
            Unauthenticated: it is not valid.
        """
        if text.startswith(_KEY_PREFIX):
            return _identity_of_key(await self._keys.verify(text), text)
        if self._tokens is None:
            raise Unauthenticated("the credentials are not valid")
        return await self._tokens.verify(text)

    def open_request(self, caller: str) -> None:
        """Count a request that begins; `close_request` must follow.

        Raises:
            TooManyRequests: the caller has too many open requests.
        """
        if self._at_once[caller] >= self._at_once_max:
            raise TooManyRequests(f"at most {self._at_once_max} requests may be open at once")
        self._at_once[caller] += 1

    def close_request(self, caller: str) -> None:
        """Count a request that ended."""
        self._at_once[caller] -= 1
        if self._at_once[caller] <= 0:
            del self._at_once[caller]


def _credential_of(header: str | None) -> str:
    scheme, _, text = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(text) <= _CREDENTIAL_CHARS_MAX:
        raise Unauthenticated("send an API key or a token: Authorization: Bearer …")
    return text.strip()


def _identity_of_key(key: ApiKey, text: str) -> Identity:
    return Identity(f"key:{key.id}", key.tenant, key.role, text, key.name)


def _throttle(rate: Rate | None, hf: Holdfast) -> Throttle | None:
    return None if rate is None else Throttle(rate, hf.clock)


def _token_verifier(options: JwtOptions, hf: Holdfast) -> TokenVerifier:
    try:
        from holdfast.server.tokens import TokenVerifier  # an extra of its own
    except ImportError:
        raise InvalidRequest(
            "tokens need joserfc; install it with: pip install 'holdfast[jwt]'", field="jwt"
        ) from None
    return TokenVerifier(options, hf.clock)
