"""Code that the two AWS engines share: endpoints, regions, and errors about credentials."""

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

# The credential chain reads files, runs programs and parses their output. Botocore does not wrap
# all errors that occur there.
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
    """Return the address of a service, if it is valid.

    Raises:
        InvalidUrl: the address is not ``http(s)://host[:port]``.
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
    """Return ``region``, or else the region in the variable ``AWS_REGION``, or None.

    Botocore reads only ``AWS_DEFAULT_REGION``, unlike all other AWS tools.

    Raises:
        InvalidUrl: the region cannot be the name of one.
    """
    region = region or os.environ.get("AWS_REGION") or None
    if region is not None and not _REGION.fullmatch(region):
        raise InvalidUrl(
            f"region must be the name of an AWS region, got {region!r:.80}", field="region"
        )
    return region


def credentials_error(error: Exception) -> HoldfastError | None:
    """Return the Holdfast error for a failure to get credentials; None for other failures."""
    if isinstance(error, _MISSING):
        return CredentialsMissing(f"found no AWS credentials: {error}")
    if isinstance(error, _EXPIRED):
        return CredentialsExpired(f"the AWS credentials have expired: {error}; run aws sso login")
    if isinstance(error, kinds.InvalidRegionError):
        return InvalidUrl(str(error), field="region")
    if isinstance(error, kinds.CredentialRetrievalError):
        return credentials_unavailable(error)
    return None


def credentials_unavailable(error: Exception) -> AccessDenied:
    """Return the error for a credential chain that failed."""
    return AccessDenied(f"could not get AWS credentials: {error}")
