"""Callbacks: tokens that let any system send one signal to one run."""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.signalling import send_signal
from holdfast.engine.runs.signing import open_token, sign_token
from holdfast.errors import CallbackExpired, CallbackInvalid, RunEnded, RunNotFound
from holdfast.model.run import SignalReceipt
from holdfast.records.head import Head
from holdfast.records.keys import RunKey
from holdfast.records.signing_keys import TOKEN_LIFETIME_MS_MAX

__all__ = ["accept_callback", "open_callback", "sign_callback"]

_PURPOSE = "callback"
_CLAIMS = 5
_NONCE_CHARS = 12


async def sign_callback(kernel: Kernel, head: Head, signal: str, span_ms: int | None) -> str:
    """Return a token for a signal to a run; it expires with the run, or after a time."""
    now_ms = kernel.clock.now_ms()
    expires_ms = min(head.expires_ms, now_ms + TOKEN_LIFETIME_MS_MAX)
    if span_ms is not None:
        expires_ms = min(expires_ms, now_ms + span_ms)
    nonce = kernel.ids.new().replace("-", "")[-_NONCE_CHARS:]
    claims = [head.key.tenant, head.key.id, head.generation, signal, nonce]
    return await sign_token(kernel, _PURPOSE, claims, expires_ms=expires_ms)


async def open_callback(kernel: Kernel, token: str) -> tuple[str, ...]:
    """Return what a token says: tenant, id and generation of its run, signal and nonce.

    Raises:
        CallbackInvalid: the token is not one of this store.
        CallbackExpired: the token has expired.
    """
    opened = await open_token(kernel, _PURPOSE, token)
    if opened is None or len(opened.claims) != _CLAIMS:
        raise CallbackInvalid
    if kernel.clock.now_ms() >= opened.expires_ms:
        raise CallbackExpired
    return tuple(opened.claims)


async def accept_callback(
    kernel: Kernel, workers: LocalWorkers, token: str, payload: Any, *, key: bytes
) -> SignalReceipt:
    """Send the signal of a token to its run. The same token and key send it once.

    Raises:
        CallbackInvalid: the token is not one of this store, or its run is gone.
        CallbackExpired: the token has expired, or the run takes no more signals.
        AlreadyExists: the key was used with another payload.
        SignalMisfit, UnknownSignal: the payload does not fit the signal.
        PayloadTooLarge, InvalidInput, InboxFull, RunClosing: as in `RunHandle.signal`.
    """
    tenant, id, generation, signal, nonce = await open_callback(kernel, token)
    # With the nonce: two addresses are two signals, even with equal bodies.
    digest = hashlib.sha256(nonce.encode() + b"\0" + key).hexdigest()[:32]
    try:
        return await send_signal(
            kernel,
            workers,
            RunKey(tenant, id),
            name=signal,
            id=f"callback-{digest}",
            payload=payload,
            generation=generation,
        )
    except RunNotFound:  # as for a forged token: an answer must not tell which runs there are
        raise CallbackInvalid from None
    except RunEnded as ended:
        raise CallbackExpired(f"the run takes no more signals: it is {ended.status}") from None
