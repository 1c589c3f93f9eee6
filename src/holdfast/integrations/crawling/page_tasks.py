"""What passes between a crawl and the process that reads pages."""

from __future__ import annotations

import struct

import msgspec

__all__ = ["LENGTH", "PageAnswer", "PageContents", "PageTask"]

LENGTH = struct.Struct(">I")
"""Stands before each frame."""


class PageTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and how much of it."""

    address: str
    """The address of the page: its links are relative to it."""
    content_type: str
    charset: str
    """As the server names it; may be empty or wrong."""
    links_max: int
    text_chars_max: int


class PageContents(msgspec.Struct, frozen=True, kw_only=True):
    """What a page has."""

    title: str = ""
    text: str = ""
    links: tuple[str, ...] = ()
    noindex: bool = False
    nofollow: bool = False


class PageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a task."""

    contents: PageContents | None = None
    error: str = ""
