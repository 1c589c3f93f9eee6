"""The cookie of a browser that is signed in at the pages."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

from holdfast.access.sessions import SESSION_SECONDS

__all__ = ["expired_cookie", "session_cookie", "session_text"]

# A browser accepts a cookie with this prefix only over https and for the whole host.
_SECURE_NAME, _PLAIN_NAME = "__Host-holdfast", "holdfast_session"


def session_text(connection: ASGIConnection[Any, Any, Any, Any], *, secure: bool) -> str | None:
    """Return what a browser sends as its session; None if it sends none.

    ``secure``: only a cookie counts that neither another host nor a page without https can set.
    """
    return connection.cookies.get(_SECURE_NAME if secure else _PLAIN_NAME)


def session_cookie(text: str, *, secure: bool) -> Cookie:
    """Return the cookie that keeps a browser signed in.

    It is sent with links from other sites, which only show pages, and never with their forms.
    """
    return Cookie(
        key=_SECURE_NAME if secure else _PLAIN_NAME,
        value=text,
        path="/",
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="lax",
        secure=secure,
    )


def expired_cookie(*, secure: bool) -> Cookie:
    """Return the cookie that signs a browser out."""
    cookie = session_cookie("", secure=secure)
    cookie.max_age = 0
    return cookie
