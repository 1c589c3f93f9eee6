"""`Callbacks`: accepts what other systems post to the addresses of `Context.callback`."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.callbacks import accept_callback, open_callback
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.signing import rotate_signing_keys
from holdfast.errors import CallbackInvalid, InvalidInput, InvalidRequest
from holdfast.model.public_url import validated_public_url
from holdfast.model.run import SignalReceipt

__all__ = ["Callbacks"]

_KEY_CHARS_MAX = 1_024


class Callbacks:
    """Callbacks of one store: `Context.callback` makes their addresses, a server accepts them."""

    def __init__(self, kernel: Kernel, workers: LocalWorkers) -> None:
        self._kernel = kernel
        self._workers = workers

    @property
    def public_url(self) -> str | None:
        """The address under which other systems reach the server; None if it is not known."""
        return self._kernel.public_url

    def set_public_url(self, url: str) -> None:
        """Set the address with which `Context.callback` begins.

        Raises:
            InvalidRequest: it is no http or https address.
        """
        self._kernel.public_url = validated_public_url(url)

    async def check(self, token: str) -> None:
        """Check a token, before the body of its request is read.

        Raises:
            CallbackInvalid: the token is not one of this store.
            CallbackExpired: the token has expired.
        """
        if not isinstance(token, str):
            raise CallbackInvalid
        await open_callback(self._kernel, token)

    async def accept(self, token: str, payload: Any, *, key: str | None = None) -> SignalReceipt:
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
        if not isinstance(token, str):
            raise CallbackInvalid
        return await accept_callback(
            self._kernel, self._workers, token, payload, key=_key_bytes(key, payload)
        )

    async def rotate_keys(self, *, revoke: bool = False) -> str:
        """Let a new key sign callbacks; return its id.

        What the old keys have signed stays valid until it expires. With ``revoke``, all earlier
        addresses stop working: within a minute in other processes.
        """
        return (await rotate_signing_keys(self._kernel, revoke=revoke)).id


def _key_bytes(key: str | None, payload: Any) -> bytes:
    """Return what makes two requests the same; a given key is never equal to a payload's."""
    if key is None:
        try:
            data = msgspec.json.encode(payload, order="deterministic")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"the payload: {error}", field="payload") from None
        return b"payload\0" + hashlib.sha256(data).digest()
    if not isinstance(key, str) or not 1 <= len(key) <= _KEY_CHARS_MAX:
        raise InvalidRequest(
            f"key must be a text of 1 to {_KEY_CHARS_MAX:,} characters, got {key!r:.80}",
            field="key",
        )
    return b"key\0" + key.encode(errors="surrogatepass")
