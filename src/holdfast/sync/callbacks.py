# Generated from src/holdfast/webhooks/callbacks.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Callbacks`; the async one is `holdfast.webhooks.callbacks.Callbacks`."""

from __future__ import annotations

from typing import Any

from holdfast.model.run import SignalReceipt
from holdfast.portal import Portal
from holdfast.webhooks.callbacks import Callbacks as AsyncCallbacks

__all__ = ["Callbacks"]


class Callbacks:
    """Callbacks of one store: `Context.callback` makes their addresses, a server accepts them."""

    def __init__(self, portal: Portal, callbacks: AsyncCallbacks) -> None:
        self._portal = portal
        self._callbacks = callbacks

    @property
    def public_url(self) -> str | None:
        """The address under which other systems reach the server; None if it is not known."""
        return self._callbacks.public_url

    def check(self, token: str) -> None:
        """Check a token, before the body of its request is read.

        Raises:
            CallbackInvalid: the token is not one of this store.
            CallbackExpired: the token has expired.
        """
        self._portal.call(self._callbacks.check, token)

    def accept(self, token: str, payload: Any, *, key: str | None = None) -> SignalReceipt:
        """Send the payload as the signal for which a token was made.

        A server does this for each POST; call it if your own web framework takes the requests. The
        same ``key``, or without one the same payload, sends the signal once.

        Raises:
            CallbackInvalid: the token is not one of this store, or its run is gone.
            CallbackExpired: the token has expired, or the run takes no more signals.
            AlreadyExists: the key was used with another payload.
            SignalMisfit: the payload does not fit the type of the signal.
            PayloadTooLarge: the payload has more bytes than ``signal_bytes_max``.
            InboxFull: the run's inbox is full.
        """
        return self._portal.call(self._callbacks.accept, token, payload, key=key)

    def rotate_keys(self, *, revoke: bool = False) -> str:
        """Let a new key sign callbacks; return its id.

        What the old keys have signed stays valid until it expires. With ``revoke``, all earlier
        addresses stop working: within a minute in other processes.
        """
        return self._portal.call(self._callbacks.rotate_keys, revoke=revoke)
