"""`WebhookNotifier`: posts notices as signed JSON to a system of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.moments import utc_text
from holdfast.network.addresses import AllowList
from holdfast.network.json_posts import post_body
from holdfast.network.signed_posts import signed_headers
from holdfast.review.notice import Notice

__all__ = ["WebhookNotifier"]


class WebhookNotifier:
    """Posts each notice to one address, signed as Standard Webhooks describes.

    The header ``webhook-id`` is the id of the notice, the same in every attempt. The receiver gets
    the link of the reviewer, and must pass it on to no one else.
    """

    def __init__(
        self, url: str, *, secret: str, allow: Iterable[str] = (), name: str = "webhook"
    ) -> None:
        """Post to ``url``; the receiver verifies signatures with the ``secret`` (``whsec_…``).

        ``allow`` permits addresses that are not public: ``hooks.internal:8443``.

        Raises:
            InvalidRequest: the secret is not one.
            TargetRefused: the address is not https, or not public.
        """
        self.name = name
        self._allow = AllowList(allow)
        self._allow.check_url(url)
        self._url = url
        self._secret = secret
        try:
            if not isinstance(secret, str) or not secret.startswith("whsec_"):
                raise ValueError
            signed_headers(secret, id="0", body=b"{}", now_ms=0, agent="")
        except Exception:  # without what was given: it is a secret
            raise InvalidRequest(
                "secret must be 'whsec_' and the base64 of random bytes", field="secret"
            ) from None

    async def send(self, notice: Notice) -> None:
        """Post a notice.

        Raises:
            OSError: the receiver cannot be reached, or did not accept the notice.
        """
        body = msgspec.json.encode(_message(notice))
        now_ms = round(notice.at.timestamp() * 1000)
        headers = signed_headers(
            self._secret, id=notice.id, body=body, now_ms=now_ms, agent="holdfast-notices/1"
        )
        await post_body(self._allow, self._url, headers=headers, body=body)


def _message(notice: Notice) -> dict[str, Any]:
    return {
        "type": f"review.{notice.kind}",
        "timestamp": utc_text(notice.at),
        "data": {
            "id": notice.id,
            "kind": notice.kind,
            "reviewer": notice.reviewer,
            "question": notice.question,
            "link": notice.link,
            "command": notice.command,
            "expires_at": None if notice.expires_at is None else utc_text(notice.expires_at),
            "review": notice.review.as_dict(),
        },
    }
