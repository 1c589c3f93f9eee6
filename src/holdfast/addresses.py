"""Addresses as they may be shown: in errors, logs and reprs, without credentials."""

from __future__ import annotations

import re

__all__ = ["HIDDEN", "without_credentials"]

HIDDEN = "***"
"""Stands where a secret stood."""

# What an address has between "//" and "@" names who logs in. A password that holds a "/" is looked
# for a little further, and so that the time stays in proportion to the text.
_USER = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#@:]{0,256}:[^\s@]{0,256}@)")
# The same inside of another address, where it is an option.
_QUOTED_USER = re.compile(r"(?<=%3A%2F%2F)(?:(?!%2F)[^\s/?#&])*(?:@|%40)", re.IGNORECASE)


def without_credentials(text: object) -> str:
    """Return a text with the credentials of every address in it hidden: ``http://***@host``."""
    shown = str(text)
    if "//" in shown:
        shown = _USER.sub(f"{HIDDEN}@", shown)
    return _QUOTED_USER.sub(f"{HIDDEN}%40", shown) if "%" in shown else shown
