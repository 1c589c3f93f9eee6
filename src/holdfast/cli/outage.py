"""Answers requests with 503 while ``holdfast dev`` has no server, so that no caller hangs."""

from __future__ import annotations

import select
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from socket import SHUT_WR, socket, socketpair

import msgspec

__all__ = ["answer_outage"]

# A request with a head that is longer, or arrives more slowly, gets its answer before its end.
_HEAD_BYTES_MAX = 64 * 1024
_REQUEST_SECONDS = 2.0
_READ_BYTES = 16 * 1024


@contextmanager
def answer_outage(on: socket, reason: str) -> Generator[None]:
    """Answer each connection to a socket that listens; the reason says why there is no server.

    At the end, new connections wait in the socket's backlog for the next server.
    """
    answer = _answer(reason)
    stopping, stop = socketpair()
    # The servers share the socket's flags, and need it like this as well.
    on.setblocking(False)
    answering = threading.Thread(target=_accept, args=(on, stopping, answer), daemon=True)
    answering.start()
    try:
        yield
    finally:
        stop.close()
        answering.join()
        stopping.close()


def _accept(on: socket, stopping: socket, answer: bytes) -> None:
    while True:
        ready, _, _ = select.select([on, stopping], [], [])
        if stopping in ready:
            return
        with suppress(OSError):  # the client has left
            connection, _ = on.accept()
            threading.Thread(target=_respond, args=(connection, answer), daemon=True).start()


def _respond(connection: socket, answer: bytes) -> None:
    with suppress(OSError), connection:
        connection.settimeout(_REQUEST_SECONDS)
        head = b""
        with suppress(TimeoutError):
            while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES_MAX:
                if not (part := connection.recv(_READ_BYTES)):
                    break
                head += part
        connection.sendall(answer)
        connection.shutdown(SHUT_WR)
        # What is closed with unread bytes is reset, and the client may lose the answer.
        while connection.recv(_READ_BYTES):
            pass


def _answer(reason: str) -> bytes:
    problem = {
        "title": "Service Unavailable",
        "status": 503,
        "code": "code_broken",
        "detail": f"{reason}; dev waits for a change of a Python file",
    }
    body = msgspec.json.encode(problem)
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Retry-After: 1",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body
