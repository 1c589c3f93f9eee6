"""`LogNotifier`: logs that a review waits, and its link."""

from __future__ import annotations

import logging

from holdfast.display import get_logger, printable
from holdfast.errors import InvalidRequest
from holdfast.review.notice import Notice

__all__ = ["LogNotifier"]

_log = get_logger("holdfast.reviews")
_QUESTION_CHARS_MAX = 300


class LogNotifier:
    """Logs each notice: the question, and the link or the command to decide.

    It tells operators, not reviewers: beside other notifiers, it does not count as a notice that
    reached a reviewer.
    """

    def __init__(self, *, level: int = logging.WARNING, link: bool = True) -> None:
        """With ``link=False`` the command is logged instead: a link lets its holder decide.

        Raises:
            InvalidRequest: the level is not one of `logging`.
        """
        if type(level) is not int or not 0 < level <= logging.CRITICAL:
            raise InvalidRequest(
                f"level must be one of logging, such as logging.INFO, got {level!r:.40}",
                field="level",
            )
        self.name = "log"
        self._level = level
        self._shows_link = link

    async def send(self, notice: Notice) -> None:
        """Log a notice."""
        way = notice.link if self._shows_link and notice.link else notice.command
        _log.log(
            self._level,
            "review %s of tenant %s (%s) for %s: %s -> %s",
            notice.review.id,
            notice.review.tenant,
            notice.kind,
            printable(notice.reviewer or "every reviewer"),
            printable(notice.question)[:_QUESTION_CHARS_MAX],
            way,
        )
