"""Addresses of web pages that callers name. Whether one may be contacted is decided later."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.errors import InvalidRequest

__all__ = ["page_name", "validated_web_address"]

_BYTES_MAX = 2048


def validated_web_address(address: object) -> str:
    """Return the address of a page.

    The crawler resolves the name and refuses private networks each time that it connects: a name
    may resolve to another address by then.

    Raises:
        InvalidRequest: it is no address of a page, is too long, or has credentials.
    """
    host: str | None = None
    is_web = has_user = False
    if isinstance(address, str) and address.isprintable() and " " not in address:
        try:
            parts = urlsplit(address)
            _ = parts.port
            host, is_web = parts.hostname, parts.scheme in ("http", "https")
            has_user = parts.username is not None or parts.password is not None
        except ValueError:
            host = None
    if not host or not is_web or not isinstance(address, str) or has_user:
        raise InvalidRequest(
            "address must be that of a page, such as https://example.com/terms, without "
            f"credentials, got {'one with credentials' if has_user else repr(address)[:200]}",
            field="address",
        )
    if len(address.encode()) > _BYTES_MAX:
        raise InvalidRequest(f"address must have at most {_BYTES_MAX:,} bytes", field="address")
    return address


def page_name(address: str) -> str:
    """Return the name of a document that is the page of an address."""
    return address.encode()[:512].decode(errors="ignore").replace("/", "\u2215")
