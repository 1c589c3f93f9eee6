"""What a page, or the header X-Robots-Tag, asks robots not to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["ROBOT_NAME", "RobotsTags", "header_tags", "meta_tags"]

ROBOT_NAME = "holdfast"
"""The name by which pages and robots.txt address the crawler."""

# Directives with a value. Before any other colon stands the name of a robot.
_WITH_VALUE = frozenset(
    {"max-image-preview", "max-snippet", "max-video-preview", "unavailable_after"}
)


class RobotsTags(NamedTuple):
    """What robots must not do with a page."""

    noindex: bool = False
    """Its text must not be used."""
    nofollow: bool = False
    """Its links must not be followed."""

    def __or__(self, other: object) -> RobotsTags:
        if not isinstance(other, RobotsTags):
            return NotImplemented
        return RobotsTags(self.noindex or other.noindex, self.nofollow or other.nofollow)


def meta_tags(content: str) -> RobotsTags:
    """Return what the content of a meta element says."""
    words = {word.strip().lower() for word in content.split(",")}
    return RobotsTags(bool(words & {"noindex", "none"}), bool(words & {"nofollow", "none"}))


def header_tags(values: Iterable[str]) -> RobotsTags:
    """Return what the values of X-Robots-Tag say to all robots, and to this one."""
    tags = RobotsTags()
    for value in values:
        heard = True
        for part in value.split(","):
            name, colon, rest = part.partition(":")
            if colon and name.strip().lower() not in _WITH_VALUE:
                heard = name.strip().lower() == ROBOT_NAME
                part = rest
            if heard:
                tags |= meta_tags(part)
    return tags
