"""`SlackNotifier`: posts notices to incoming webhooks, of Slack and of compatible services.

The address of an incoming webhook is a secret: who knows it can post to its channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest, NoAddress
from holdfast.network.addresses import AllowList
from holdfast.network.json_posts import post_body
from holdfast.review.notice import Notice

__all__ = ["SlackNotifier"]

_TEXT_CHARS_MAX = 2_900
_URL_CHARS_MAX = 3_000


class SlackNotifier:
    """Posts each notice to a channel, with a button that opens the review.

    In a channel of their own, reviewers get their links. In the channel for all, the button opens
    the page for people who can sign in.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        channels: Mapping[str, str] | None = None,
        links: bool = False,
        allow: Iterable[str] = (),
        name: str = "slack",
    ) -> None:
        """Post to the incoming webhook at ``url``, or to that of a reviewer in ``channels``.

        Without ``url``, reviewers who are not in ``channels`` have no address. With ``links=True``
        the channel for all gets the links of reviewers, too: all who read it can decide in their
        names. ``allow`` permits addresses that are not public, such as a server of your own:
        ``chat.internal:8065``.

        Raises:
            InvalidRequest: there is no address.
            TargetRefused: an address is not https, or not public.
        """
        self.name = name
        self._allow = AllowList(allow)
        self._url = url
        self._channels = {name.casefold(): each for name, each in (channels or {}).items()}
        self._links = links
        if url is None and not self._channels:
            raise InvalidRequest("pass url or channels", field="url")
        for each in (url, *self._channels.values()):
            if each is not None:
                self._allow.check_url(each)

    async def send(self, notice: Notice) -> None:
        """Post a notice.

        Raises:
            NoAddress: there is no channel for the reviewer.
            OSError: the service cannot be reached, or refused the notice.
        """
        url = self._channels.get(_name(notice), self._url)
        if url is None:
            raise NoAddress
        body = msgspec.json.encode(self._message(notice))
        headers = {"content-type": "application/json", "user-agent": "holdfast-notices/1"}
        await post_body(self._allow, url, headers=headers, body=body)

    def _message(self, notice: Notice) -> dict[str, Any]:
        # The question comes from a run: it must not mention people or make links.
        question = _escaped(notice.question)
        subject = _escaped(notice.subject)
        who = f" (for {_escaped(notice.reviewer)})" if notice.reviewer else ""
        facts = f"Run {_escaped(notice.review.run)} of {_escaped(notice.review.graph)}{who}"
        if notice.expires_at is not None:
            facts += f" · decide before {notice.expires_at:%Y-%m-%d %H:%M} UTC"
        blocks: list[dict[str, Any]] = [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*{_kind_text(notice)}*"}},
            {"type": "section", "text": {"type": "plain_text", "text": _cut(notice.question)}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": facts[:_TEXT_CHARS_MAX]}]},
        ]
        is_own = self._links or _name(notice) in self._channels
        link = notice.link if is_own else notice.page
        if link is not None and len(link) <= _URL_CHARS_MAX:
            button = {
                "type": "button",
                "text": {"type": "plain_text", "text": "Open the review"},
                "url": link,
            }
            blocks.append({"type": "actions", "elements": [button]})
            fallback = f"{subject}\n{question}\n<{_escaped(link)}|Open the review>"
        else:
            command = {"type": "plain_text", "text": notice.command[:_TEXT_CHARS_MAX]}
            blocks.append({"type": "context", "elements": [command]})
            fallback = f"{subject}\n{question}\n{_escaped(notice.command)}"
        return {"text": fallback[: 4 * _TEXT_CHARS_MAX], "blocks": blocks}


def _name(notice: Notice) -> str:
    """Return the name of the reviewer, in which upper and lower case are the same."""
    return (notice.reviewer or "").casefold()


def _kind_text(notice: Notice) -> str:
    return {
        "requested": "A decision is needed",
        "reassigned": "A decision was assigned",
        "edited": "A decision was edited, and needs your vote again",
        "reminder": "A decision is still needed",
        "escalation": "A decision is overdue",
    }[notice.kind]


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"


def _escaped(text: str) -> str:
    """Return text with the three characters escaped that Slack's markup gives a meaning."""
    return _cut(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
