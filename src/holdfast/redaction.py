"""Removes the credentials of addresses from text for errors, logs and reprs.

Texts come from outside and may be hostile. Each pattern takes time in proportion to the text, and
`excerpt` reads only slightly more of a long text than it may return.
"""

from __future__ import annotations

import functools
import re

__all__ = [
    "REDACTED",
    "excerpt",
    "has_callback",
    "is_secret_name",
    "without_callbacks",
    "without_credentials",
]

REDACTED = "***"
"""Replaces a secret."""

# How far behind its cut an excerpt looks for the end of a credential.
_BEYOND_LETTERS = 1_000
# Each character plain, escaped as in JSON, or percent-encoded up to five times. The counts are
# bounded: an unbounded `\\*/` takes quadratic time in a row of backslashes.
_SLASH = r"(?:\\{0,4}/|%(?:25){0,4}2F)"
_COLON = r"(?::|%(?:25){0,4}3A)"
_AT = r"(?:@|%(?:25){0,4}40)"
# From "//" to the next space or "://". It also matches addresses without credentials, so that no
# text is scanned twice. In the query of another address, "&" ends it, too.
_ADDRESS = re.compile(
    rf"\\{{0,4}}/{_SLASH}(?:[^\s:%]++|(?!{_COLON}{_SLASH}{_SLASH})\S)*+"
    rf"|%(?:25){{0,4}}2F{_SLASH}(?:[^\s:%&]++|(?!{_COLON}{_SLASH}{_SLASH})[^\s&])*+",
    re.IGNORECASE,
)
_BEGINS = re.compile(rf"{_SLASH}{_SLASH}", re.IGNORECASE)
_HOST_ENDS = re.compile(rf"{_SLASH}|[?#]|%(?:25){{0,4}}(?:3F|23)", re.IGNORECASE)
_LOGS_IN = re.compile(rf"{_AT}|{_COLON}", re.IGNORECASE)
_TO_LAST_AT = re.compile(rf".*(?P<at>{_AT})", re.IGNORECASE | re.DOTALL)
# An option in the query of an address. A quote ends the value if it ends the address.
_VALUE = r"(?:[^\s&#\"<>'%]++|'(?![\s,;:.)\]}]|$)|%)*+"
_OPTION = re.compile(rf"(?P<before>[?&;](?P<name>[\w.-]{{1,64}})=){_VALUE}")
_QUOTED_VALUE = _VALUE.replace("|%)", "|(?!%(?:25){0,4}26)%)")
_QUOTED_OPTION = re.compile(
    r"(?P<before>%(?:25){0,4}(?:3F|26|3B)(?P<name>[\w.-]{1,64})%(?:25){0,4}3D)" + _QUOTED_VALUE,
    re.IGNORECASE,
)
# The address of a callback. In an excerpt only a part of its token may be left.
_CALLBACK_WORD = "callbacks"
_CALLBACK_BYTES = _CALLBACK_WORD.encode()
_CALLBACK = re.compile(
    rf"(?P<before>{_SLASH}v1{_SLASH}{_CALLBACK_WORD}{_SLASH})"
    r"v1\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)?",
    re.IGNORECASE | re.ASCII,
)
_SECRET_NAMES = re.compile(
    r"pass(?:w|phrase|$)|pwd|secret|token|credential|signature|^sig$|api[._-]?key|access[._-]?key",
    re.IGNORECASE,
)
_MORE_SECRET_NAMES = re.compile(
    r"auth(?:orization|[._-]?header|$)|bearer|cookie|private[._-]?key|\bjwt\b|^pw$"
    r"|(?:^|[._-])(?:pin|ssn|cvv|cvc)$|card[._-]?number|session[._-]?id",
    re.IGNORECASE,
)
_NAME_LETTERS_MAX = 128
_CACHED_NAMES_MAX = 4_096
_SPACE = re.compile(r"\s")


def without_credentials(text: object) -> str:
    """Return a text without the credentials of the addresses in it: ``http://***@host``.

    The tokens of callbacks are such credentials, too.
    """
    return _redacted(str(text), cut=False)


def without_callbacks(text: str) -> str:
    """Return a text without the tokens of the callbacks in it: ``http://host/v1/callbacks/***``."""
    if _CALLBACK_WORD not in text:
        return text
    return _CALLBACK.sub(rf"\g<before>{REDACTED}", text)


def has_callback(data: bytes) -> bool:
    """Return whether bytes contain the address of a callback."""
    if _CALLBACK_BYTES not in data:
        return False
    return _CALLBACK.search(data.decode("latin-1")) is not None


def excerpt(text: str, letters_max: int, *, end: bool = False) -> str:
    """Return the beginning or the ``end`` of a text, without the credentials of addresses in it.

    A credential that the cut would split is hidden as a whole. The work is bounded by
    ``letters_max``, however long the text is.
    """
    window = letters_max + _BEYOND_LETTERS
    if len(text) <= window:
        shown = _redacted(text, cut=False)
        return shown[-letters_max:] if end else shown[:letters_max]
    if not end:
        return _redacted(text[:window], cut=True)[:letters_max]
    # What comes before the first space may be the rest of a credential.
    tail = text[-window:]
    space = _SPACE.search(tail)
    return _redacted(tail[space.start() :], cut=False)[-letters_max:] if space else REDACTED


def is_secret_name(name: str) -> bool:
    """Return whether the value under a name is a secret, such as ``password`` or ``X-Api-Key``."""
    return _is_secret_name(name[:_NAME_LETTERS_MAX])


@functools.lru_cache(maxsize=_CACHED_NAMES_MAX)
def _is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAMES.search(name) or _MORE_SECRET_NAMES.search(name))


def _redacted(text: str, *, cut: bool) -> str:
    """Hide credentials; in a text that was ``cut``, also those that may go on behind its end."""

    def hide(found: re.Match[str]) -> str:
        return _redacted_address(found[0], open_end=cut and found.end() == len(text))

    text = without_callbacks(text)
    if "//" in text or "/\\" in text or "%" in text:
        text = _ADDRESS.sub(hide, text)
    if "=" in text:
        text = _OPTION.sub(_redacted_option, text)
    return _QUOTED_OPTION.sub(_redacted_option, text) if "%" in text else text


def _redacted_address(address: str, *, open_end: bool) -> str:
    begins = _BEGINS.match(address)
    at = 0 if begins is None else begins.end()
    host_ends = _HOST_ENDS.search(address, at)
    host = address[at : host_ends.start() if host_ends else len(address)]
    # A password may contain "/" and "@". So may a path, but then no ":" or "@" is before it.
    if _LOGS_IN.search(host) is None and (host_ends is not None or not open_end):
        return address
    if open_end:
        return address[:at] + REDACTED
    last = _TO_LAST_AT.match(address, at)
    return address if last is None else address[:at] + REDACTED + address[last.start("at") :]


def _redacted_option(found: re.Match[str]) -> str:
    if _SECRET_NAMES.search(found["name"]) is None:
        return found[0]
    return found["before"] + REDACTED
