"""The options of a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from holdfast.errors import InvalidRequest

__all__ = ["JwtOptions", "Rate", "ServerOptions"]

# As long as the hash of HS256: a shorter secret is easier to guess than the hash.
_SECRET_BYTES_MIN = 32
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


_COUNTS = (
    "requests_at_once_max",
    "body_bytes_max",
    "json_depth_max",
    "url_bytes_max",
    "header_bytes_max",
    "headers_max",
    "stream_messages_max",
    "stream_bytes_max",
    "followers_max",
    "file_bytes_max",
    "uploads_at_once_max",
)
_SECONDS = ("body_seconds", "header_seconds", "heartbeat_seconds", "list_poll_seconds")


def _check_jwks_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise InvalidRequest(
        "jwks_url must start with https://: who can change the answer can sign tokens",
        field="jwks_url",
    )


def _check_origin(origin: str) -> None:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
        raise _invalid("cors_origins", "exact origins such as 'https://app.example.com'", origin)


def _check_network(proxy: str) -> None:
    try:
        ip_network(proxy)
    except ValueError:
        expected = "addresses and networks such as '10.1.0.0/16'"
        raise _invalid("trusted_proxies", expected, proxy) from None


def _check_token(token: object) -> None:
    # Not quoted: it is a secret.
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise InvalidRequest("metrics_token must be text in ASCII", field="metrics_token")
    if not token or " " in token:
        raise InvalidRequest(
            "metrics_token must be one word: a header cannot carry another", field="metrics_token"
        )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType]


def _invalid(field: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{field} must be {expected}, got {value!r:.80}", field=field)


@dataclass(frozen=True, slots=True)
class Rate:
    """How many requests are admitted."""

    per_second: float
    """In the long run."""
    burst: int
    """At once, after a time without requests."""

    def __post_init__(self) -> None:
        if not (_is_number(self.per_second) and self.per_second > 0):
            raise _invalid("per_second", "a positive number", self.per_second)
        if type(self.burst) is not int or self.burst < 1:
            raise _invalid("burst", "an integer of at least 1", self.burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtOptions:
    """Which JSON Web Tokens a server accepts. Needs holdfast[jwt].

    Name exactly one source of keys: a ``secret``, or a set of public keys. Tokens that are signed
    with a public key must name their ``audience``: the same issuer signs tokens for other services.
    """

    secret: str | bytes | None = field(default=None, repr=False)
    """At least 32 bytes, shared with the issuer. Tokens must be signed with HS256, 384 or 512."""
    jwks: Mapping[str, Any] | None = None
    """A set of public keys (RFC 7517)."""
    jwks_file: str | Path | None = None
    """The file that has the set; it is read once."""
    jwks_url: str | None = None
    """The address of the set, with https unless it is on this machine. A token with an unknown key
    makes the server read the set again, at most once a minute."""
    audience: str | None = None
    """What the claim ``aud`` must name."""
    issuer: str | None = None
    """What the claim ``iss`` must be; None accepts any."""
    tenant_claim: str = "tenant"
    """The claim with the caller's tenant; ``*`` is every tenant."""
    role_claim: str = "role"
    """The claim with the caller's role, or with a list of roles, of which the strongest counts."""
    leeway_seconds: float = 30.0
    """How far the issuer's clock may differ."""

    def __post_init__(self) -> None:
        given = [self.secret, self.jwks, self.jwks_file, self.jwks_url]
        if sum(each is not None for each in given) != 1:
            raise InvalidRequest(
                "pass exactly one of secret, jwks, jwks_file and jwks_url", field="jwt"
            )
        if self.secret is not None and len(self.secret_bytes) < _SECRET_BYTES_MIN:
            raise InvalidRequest(
                f"secret must have at least {_SECRET_BYTES_MIN} bytes, "
                f"got {len(self.secret_bytes)}",
                field="secret",
            )
        if self.secret is None and self.audience is None:
            raise InvalidRequest(
                "audience must be set with public keys: their issuer may sign tokens for other "
                "services",
                field="audience",
            )
        if self.jwks_url is not None:
            _check_jwks_url(self.jwks_url)
        if not (_is_number(self.leeway_seconds) and 0 <= self.leeway_seconds <= 300):
            raise _invalid("leeway_seconds", "a number from 0 to 300", self.leeway_seconds)

    @property
    def secret_bytes(self) -> bytes:
        """The secret; empty if there is none."""
        return self.secret.encode() if isinstance(self.secret, str) else self.secret or b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server answers: who may ask, and how much."""

    authentication: bool = False
    """Whether a request needs an API key or a token. Without it, every caller is an admin: the
    server must then be reachable from this machine only."""
    jwt: JwtOptions | None = None
    """Which tokens are accepted besides API keys."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides localhost under which a server without authentication may be asked. Without
    this check, a web page could drive it through a name that resolves to this machine."""
    cors_origins: tuple[str, ...] = ()
    """The origins, such as ``https://app.example.com``, from which pages may call the server."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies. ``holdfast serve`` takes the address of a caller from
    their header X-Forwarded-For. Without it, all callers behind a proxy share its address, and so
    the ``failure_rate``: one that fails often keeps new ones out."""
    key_rate: Rate | None = Rate(100, 200)
    """The rate of one key, or of one subject of tokens. It counts in this process, and only with
    authentication, like all rates."""
    tenant_rate: Rate | None = Rate(500, 1000)
    """The rate of all callers of one tenant together."""
    failure_rate: Rate = Rate(5, 50)
    """The rate of requests without valid credentials from one address."""
    requests_at_once_max: int = 1000
    """How many requests and streams of one caller may be open at once."""
    metrics_token: str | None = field(default=None, repr=False)
    """A bearer token that may read ``/metrics``, and nothing else."""
    body_bytes_max: int = 4 * 1024 * 1024
    """The limit on the body of a request."""
    body_seconds: float = 30.0
    """How long a request may take to send its body."""
    json_depth_max: int = 64
    """How deeply values may be nested."""
    url_bytes_max: int = 8192
    """The limit on the path and the query of a request."""
    header_bytes_max: int = 32 * 1024
    """The limit on all headers of a request together."""
    headers_max: int = 100
    """The limit on the number of headers."""
    header_seconds: float = 10.0
    """How long a request may take to send its headers."""
    heartbeat_seconds: float = 15.0
    """How long a stream may be silent before it sends a heartbeat."""
    stream_messages_max: int = 4096
    """How many messages of a run the server keeps for its followers. A follower that is further
    behind than the others by more than that has to connect again."""
    stream_bytes_max: int = 4 * 1024 * 1024
    """How many bytes of messages of a run the server keeps for its followers."""
    list_poll_seconds: float = 2.0
    """How often the server reads a list of runs, or the processing of a document, that is
    followed."""
    followers_max: int = 10_000
    """How many streams the server has open at a time."""
    file_bytes_max: int = 1024**3
    """The limit on a file that is uploaded."""
    uploads_at_once_max: int = 32
    """How many files the server receives at a time. Each holds up to 12 MB in memory."""
    document_buckets: tuple[str, ...] = ()
    """Buckets of S3 from which callers may add documents, with the credentials of this process."""
    webhooks: bool = True
    """Whether the server delivers webhooks."""
    webhook_allow: tuple[str, ...] = ()
    """Addresses to which webhooks may be sent although they are not public: networks
    (``10.1.0.0/16``), and hosts with ports (``hooks.internal:8443``)."""

    def __post_init__(self) -> None:
        if self.jwt is not None and not self.authentication:
            raise InvalidRequest("authentication must be True with jwt", field="authentication")
        for name in ("allowed_hosts", "cors_origins", "trusted_proxies", "document_buckets"):
            value: object = getattr(self, name)
            parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (None,)
            if not all(type(each) is str for each in parts):
                raise _invalid(name, "a tuple of strings", parts)
        for origin in self.cors_origins:
            _check_origin(origin)
        for proxy in self.trusted_proxies:
            _check_network(proxy)
        if self.metrics_token is not None:
            _check_token(self.metrics_token)
        for name in _COUNTS:
            count: Any = getattr(self, name)
            if type(count) is not int or count < 1:
                raise _invalid(name, "an integer of at least 1", count)
        for name in _SECONDS:
            seconds: Any = getattr(self, name)
            if not (_is_number(seconds) and seconds > 0):
                raise _invalid(name, "a positive number", seconds)
