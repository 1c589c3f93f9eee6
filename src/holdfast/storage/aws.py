"""What the two engines of AWS share: addresses, regions, and credentials that cannot be had."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from botocore import exceptions as kinds

from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    CredentialsMissing,
    HoldfastError,
    InvalidUrl,
)
from holdfast.redaction import without_credentials

__all__ = [
    "CHAIN_ERRORS",
    "configured_region",
    "credentials_error",
    "credentials_unavailable",
    "validate_endpoint",
]

# The chain reads files, runs programs and parses what they say: not all that goes wrong there is
# wrapped by botocore.
CHAIN_ERRORS = (kinds.BotoCoreError, kinds.ClientError, OSError, ValueError)

_HOST = re.compile(r"[\w.:-]+")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_MISSING = (
    kinds.ConfigParseError,
    kinds.InvalidConfigError,
    kinds.NoAuthTokenError,
    kinds.NoCredentialsError,
    kinds.PartialCredentialsError,
    kinds.ProfileNotFound,
)
_EXPIRED = (kinds.LoginError, kinds.SSOError, kinds.TokenRetrievalError)


def validate_endpoint(endpoint: str) -> str:
    """Return the address of a service.

    Raises:
        InvalidUrl: it is not ``http(s)://host[:port]``.
    """
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        host.encode("idna")
        usable = parts.scheme in ("http", "https") and _HOST.fullmatch(host) and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
        raise InvalidUrl(
            "an endpoint must be http(s)://host[:port] and nothing more, got "
            f"{without_credentials(repr(endpoint)):.80}",
            field="endpoint",
        )
    return endpoint


def configured_region(region: str | None) -> str | None:
    """Return the region that was named, here or in ``AWS_REGION``.

    All tools of AWS know that variable but botocore, which knows only ``AWS_DEFAULT_REGION``.

    Raises:
        InvalidUrl: no region has such a name.
    """
    region = region or os.environ.get("AWS_REGION") or None
    if region is not None and not _REGION.fullmatch(region):
        raise InvalidUrl(f"no region has the name {region!r:.80}", field="region")
    return region


def credentials_error(error: Exception) -> HoldfastError | None:
    """Return what a failure to find credentials comes down to; None where it is another one."""
    if isinstance(error, _MISSING):
        return CredentialsMissing(f"no credentials: {error}")
    if isinstance(error, _EXPIRED):
        return CredentialsExpired(f"{error} (aws sso login renews them)")
    if isinstance(error, kinds.InvalidRegionError):
        return InvalidUrl(str(error), field="region")
    if isinstance(error, kinds.CredentialRetrievalError):
        return credentials_unavailable(error)
    return None


def credentials_unavailable(error: Exception) -> AccessDenied:
    """Return the error for a chain that broke where it should have given credentials."""
    return AccessDenied(f"credentials could not be had: {error}")
