"""The keys that verify JSON Web Tokens: a secret, or a set of public keys from a file or a URL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, OctKey, OKPKey, RSAKey

from holdfast.clock import Clock
from holdfast.display import get_logger
from holdfast.errors import InvalidRequest, Unauthenticated
from holdfast.server.options import JwtOptions

__all__ = ["TokenKeys", "open_token_keys"]

_log = get_logger("holdfast.server")

_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_CURVES = {
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
    "Ed25519": "Ed25519",
}
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS_MIN = 2048
_SET_BYTES_MAX = 256 * 1024
_FETCH_SECONDS = 5.0
# How often the set is read again: for a token with an unknown key, and in any case.
_REFETCH_SECONDS_MIN = 60.0
_AGE_SECONDS_MAX = 600.0


class _KeySet(msgspec.Struct):
    """A set of keys as RFC 7517 describes it."""

    keys: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=100)]


def open_token_keys(options: JwtOptions, clock: Clock) -> TokenKeys:
    """Return the keys that the options name.

    Raises:
        InvalidRequest: the set of keys cannot be read, or has no key that can be used.
    """
    if options.secret is not None:
        try:
            key = OctKey.import_key(options.secret_bytes)
        except ValueError as error:  # a public key, which everyone may know
            raise InvalidRequest(f"secret cannot be used: {error}", field="secret") from None
        return TokenKeys({each: [key] for each in _SECRET_ALGORITHMS})
    if options.jwks_url is not None:
        return _FetchedKeys(options.jwks_url, clock)
    try:
        if options.jwks_file is not None:
            given = msgspec.json.decode(Path(options.jwks_file).read_bytes())
        else:
            given = options.jwks
        return TokenKeys(_by_algorithm(given))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the set of public keys cannot be used: {error}") from None


class TokenKeys:
    """The keys of each algorithm. An algorithm without a key is not accepted."""

    def __init__(self, keys: Mapping[str, Sequence[Key]]) -> None:
        self._keys = keys

    async def find(self, algorithm: str, kid: str | None) -> Key:
        """Return the key for a token's algorithm and key id.

        Raises:
            Unauthenticated: there is none, or several without an id that tells them apart.
        """
        fitting = [
            key for key in self._keys.get(algorithm, ()) if kid is None or key.kid in (None, kid)
        ]
        if len(fitting) != 1:
            raise Unauthenticated("the token is not valid")
        return fitting[0]


class _FetchedKeys(TokenKeys):
    """Keys from a URL. While it cannot be read, the last set that was read stays in use."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__({})
        self._url = url
        self._clock = clock
        self._asked_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, algorithm: str, kid: str | None) -> Key:
        if self._age() >= _AGE_SECONDS_MAX:
            fetching = self._begin_fetch()
            if not self._keys:
                await asyncio.shield(fetching)
        try:
            return await super().find(algorithm, kid)
        except Unauthenticated:
            if self._fetching is None and self._age() < _REFETCH_SECONDS_MIN:
                raise
        await asyncio.shield(self._begin_fetch())
        return await super().find(algorithm, kid)

    def _age(self) -> float:
        if self._asked_at is None:
            return _AGE_SECONDS_MAX
        return self._clock.monotonic() - self._asked_at

    def _begin_fetch(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._asked_at = self._clock.monotonic()
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(self._end_fetch)
        return self._fetching

    def _end_fetch(self, task: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            self._keys = _by_algorithm(msgspec.json.decode(await _fetched(self._url)))
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            _log.warning("the public keys of tokens cannot be read: %r", error)


async def _fetched(url: str) -> bytes:
    async with (
        asyncio.timeout(_FETCH_SECONDS),
        httpx.AsyncClient(follow_redirects=False) as client,
        client.stream("GET", url) as response,
    ):
        if response.status_code != 200:
            raise ValueError(f"the server answered with {response.status_code}")
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _SET_BYTES_MAX:
                raise ValueError(f"the set has more than {_SET_BYTES_MAX:,} bytes")
        return bytes(body)


def _by_algorithm(given: Any) -> dict[str, list[Key]]:
    """Return the public keys of a set by the algorithms that they may verify.

    Secret keys are left out: a set is public.

    Raises:
        ValueError: it is not a set, or no key in it can be used.
    """
    keys: dict[str, list[Key]] = {}
    for each in _entries(given):
        if each.get("use", "sig") != "sig" or "verify" not in each.get("key_ops", ["verify"]):
            continue
        try:
            key = JWKRegistry.import_key(each)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        for algorithm in _algorithms_of(key):
            if each.get("alg", algorithm) == algorithm:
                keys.setdefault(algorithm, []).append(key)
    if not keys:
        raise ValueError("it has no public key for signatures")
    return keys


def _entries(given: Any) -> list[dict[str, Any]]:
    """Return the entries of a set of keys.

    Raises:
        ValueError: it is not a set.
    """
    return msgspec.convert(given, _KeySet).keys


def _algorithms_of(key: Key) -> Sequence[str]:
    if isinstance(key, RSAKey):
        return _RSA_ALGORITHMS if key.public_key.key_size >= _RSA_BITS_MIN else ()
    if isinstance(key, ECKey | OKPKey):
        return [name for name, curve in _CURVES.items() if curve == key.curve_name]
    return ()
