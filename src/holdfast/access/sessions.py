"""`Sessions`: signed texts that let a browser stay signed in, and that guard its forms."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.signing import open_token, sign_token
from holdfast.records.signed_token import UnverifiedToken

__all__ = ["SESSION_SECONDS", "Session", "Sessions"]

SESSION_SECONDS = 12 * 3600
"""How long a browser stays signed in."""
_SESSION, _FORM = "session", "form"


class Session(NamedTuple):
    """Who has signed in with a browser."""

    key: str
    """The id of the API key; empty on a server without authentication."""
    person: str
    """The name that the person chose; empty if the key says it."""


class Sessions:
    """Signs the cookies and the forms of a server's pages with the keys of a store.

    A session only names an API key: a server must check each time that the key is valid.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def open(self, session: Session) -> str:
        """Return a text that stands for a session, for 12 hours."""
        return await self._sign(_SESSION, list(session))

    async def read(self, text: str) -> Session | None:
        """Return the session of a text; None if it is forged or has expired."""
        opened = await self._open(_SESSION, text)
        return Session(*opened.claims) if opened and len(opened.claims) == 2 else None

    async def sign_form(self, holder: str) -> str:
        """Return a text for a form that only this holder may post, for 12 hours."""
        return await self._sign(_FORM, [holder])

    async def has_signed_form(self, text: str, holder: str) -> bool:
        """Return whether the text was signed for a form of this holder, and has not expired."""
        opened = await self._open(_FORM, text)
        if opened is None or len(opened.claims) != 1:
            return False
        return hmac.compare_digest(opened.claims[0].encode(), holder.encode())

    async def _sign(self, purpose: str, claims: list[str]) -> str:
        expires_ms = self._kernel.clock.now_ms() + SESSION_SECONDS * 1000
        return await sign_token(self._kernel, purpose, claims, expires_ms=expires_ms)

    async def _open(self, purpose: str, text: str) -> UnverifiedToken | None:
        opened = await open_token(self._kernel, purpose, text)
        if opened is None or self._kernel.clock.now_ms() >= opened.expires_ms:
            return None
        return opened
