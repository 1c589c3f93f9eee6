"""Addresses of pages in one canonical form, so that a page is visited once."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

__all__ = ["Origin", "canonical_address", "origin_of", "resolved_link", "site_of"]

_CHARS_MAX = 2_048
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_AUTHORITY = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_TRACKING = re.compile(
    r"utm_\w+|gclid|gbraid|wbraid|dclid|fbclid|msclkid|yclid|twclid|igshid|mc_cid|mc_eid|_ga|_gl|_hsenc"
    r"|_hsmi|mkt_tok|ref_src|vero_id",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Origin(NamedTuple):
    """A server, as robots.txt knows it."""

    scheme: str
    authority: str

    @property
    def robots_address(self) -> str:
        """The address of its robots.txt."""
        return f"{self.scheme}://{self.authority}/robots.txt"


def canonical_address(address: str) -> str | None:
    """Return an http or https address in its canonical form; None if it is no such address.

    Without a fragment, a default port and parameters that only track; the host in lower case, the
    path without ``.`` and ``..``, and with the same characters escaped. The order of parameters
    stays: servers may depend on it. An address with credentials is none.
    """
    if len(address) > _CHARS_MAX:
        return None
    try:
        url = httpx.URL(address.strip())
        if url.scheme not in _DEFAULT_PORTS or not url.host or url.userinfo:
            return None
        path, _, query = url.raw_path.decode("ascii").partition("?")
        authority = url.netloc.decode("ascii").lower().removesuffix(_DEFAULT_PORTS[url.scheme])
        if not _AUTHORITY.fullmatch(authority):
            return None
        clean = f"{url.scheme}://{authority}{_clean_path(path)}"
    except (httpx.InvalidURL, ValueError, TypeError):
        return None
    kept = [part for part in query.split("&") if part and not _tracks(part)]
    clean += "?" + _same_escapes("&".join(kept)) if kept else ""
    return clean if len(clean) <= _CHARS_MAX else None


def resolved_link(link: str, *, seen_from: str) -> str | None:
    """Return the canonical address that a link or a redirect of a page leads to, or None."""
    if len(link) > _CHARS_MAX:
        return None
    try:
        return canonical_address(str(httpx.URL(seen_from).join(link.strip())))
    except (httpx.InvalidURL, ValueError, TypeError):
        return None


def origin_of(address: str) -> Origin:
    """Return the server of a canonical address."""
    parts = urlsplit(address)
    return Origin(parts.scheme, parts.netloc)


def site_of(address: str) -> str:
    """Return what pages of one site have in common: the host and its port, without ``www.``."""
    return urlsplit(address).netloc.removeprefix("www.")


def _tracks(parameter: str) -> bool:
    return _TRACKING.fullmatch(parameter.partition("=")[0]) is not None


def _clean_path(path: str) -> str:
    segments: list[str] = []
    given = _same_escapes(path).removeprefix("/").split("/")
    for segment in given:
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    if given[-1] in (".", ".."):
        segments.append("")
    return "/" + "/".join(segments)


def _same_escapes(text: str) -> str:
    def same(found: re.Match[str]) -> str:
        byte = int(found[1], 16)
        return chr(byte) if byte in _UNRESERVED else f"%{found[1].upper()}"

    return _ESCAPE.sub(same, text)
