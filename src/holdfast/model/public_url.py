"""The address under which other systems reach the server: ``https://holdfast.example.org``."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.errors import InvalidRequest

__all__ = ["validated_public_url"]

_CHARS_MAX = 1_024


def validated_public_url(url: object) -> str:
    """Return an address to which paths can be appended, without a slash at its end.

    Raises:
        InvalidRequest: it is no http or https address, or has a query, a fragment or credentials.
    """
    if not isinstance(url, str) or len(url) > _CHARS_MAX:
        raise _invalid(url)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise _invalid(url) from None
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable():
        raise _invalid(url)
    return url.rstrip("/")


def _invalid(url: object) -> InvalidRequest:
    return InvalidRequest(
        "public_url must be an address such as https://holdfast.example.org, without credentials, "
        f"query and fragment, got {url!r:.80}",
        field="public_url",
    )
