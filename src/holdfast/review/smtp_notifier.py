"""`SmtpNotifier`: sends notices as mails, through a mail server."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Literal, cast

from holdfast.errors import InvalidRequest, NoAddress
from holdfast.model.durations import Duration, seconds_of
from holdfast.review.notice import Notice

__all__ = ["SmtpNotifier"]

_PORTS: Mapping[str, int] = {"starttls": 587, "tls": 465, "none": 25}
_THREADS_MAX = 8
_ADDRESS_CHARS_MAX = 254
_SECONDS_MAX = 15.0


class SmtpNotifier:
    """Sends a mail to each reviewer, through a mail server.

    Every attempt of a notice has the same ``Message-ID``. A mail is text, with a page of HTML if
    the template has one.
    """

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        port: int | None = None,
        encryption: Literal["starttls", "tls", "none"] = "starttls",
        username: str | None = None,
        password: str | None = None,
        reply_to: str | None = None,
        everyone: str | None = None,
        address_of: Mapping[str, str] | Callable[[str], str | None] | None = None,
        timeout: Duration = 10,
        tls: ssl.SSLContext | None = None,
        name: str = "smtp",
    ) -> None:
        """Send through the server at ``host``, from the address ``sender``.

        The connection is encrypted after it is made (``starttls``), from the beginning (``tls``) or
        not at all. ``address_of`` tells the addresses of reviewers: a dict, or a function, which
        may block and returns None if there is none. By default a reviewer's name is their address,
        if it is one. ``everyone`` is the address, such
        as a mailing list, that is told of reviews without assignees. ``timeout`` limits each step
        of the exchange; ``tls`` is the context that checks the server's certificate.

        Raises:
            InvalidRequest: an argument is wrong; ``field`` says which.
        """
        if encryption not in _PORTS:
            raise InvalidRequest(
                f"encryption must be starttls, tls or none, got {encryption!r:.40}",
                field="encryption",
            )
        if not isinstance(host, str) or not host or not host.isprintable():
            raise InvalidRequest(f"host must be a host's name, got {host!r:.80}", field="host")
        if (username is None) != (password is None):
            raise InvalidRequest("pass username and password, or neither", field="password")
        if username is not None and encryption == "none":
            raise InvalidRequest(
                "username needs encryption: the password would be readable on the network",
                field="encryption",
            )
        book: object = address_of
        if not isinstance(book, Mapping | None) and not callable(book):
            raise InvalidRequest(
                f"address_of must be a dict or a function, got {address_of!r:.80}",
                field="address_of",
            )
        self._seconds = seconds_of(timeout, "timeout")
        if not 0 < self._seconds <= _SECONDS_MAX:
            raise InvalidRequest(
                f"timeout must be more than 0 and at most {_SECONDS_MAX:g} s, got {timeout!r:.40}",
                field="timeout",
            )
        self.name = name
        self._host = host
        self._port = _PORTS[encryption] if port is None else port
        self._encryption = encryption
        self._login = None if username is None or password is None else (username, password)
        self._sender = checked_address(sender, "sender")
        self._reply_to = None if reply_to is None else checked_address(reply_to, "reply_to")
        self._everyone = None if everyone is None else checked_address(everyone, "everyone")
        self._address_of = _looked_up(address_of)
        self._tls = tls
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="holdfast-smtp")

    def __repr__(self) -> str:
        # Without the password.
        return f"SmtpNotifier({self._host!r}, port={self._port}, sender={str(self._sender)!r})"

    async def send(self, notice: Notice) -> None:
        """Send a notice as a mail.

        Raises:
            NoAddress: there is no address of the reviewer.
            OSError: the server does not answer, or refused the mail; a note names the server.
        """
        # Not a library of its own: one mail is a few round trips, and threads are enough for that.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._deliver, notice)

    def _deliver(self, notice: Notice) -> None:
        to = self._recipient(notice.reviewer)
        message = self._message(notice, to)
        try:
            with self._connect() as server:
                if self._encryption == "starttls":
                    server.starttls(context=self._context())
                if self._login is not None:
                    server.login(*self._login)
                server.send_message(message, self._sender.addr_spec, [to.addr_spec])
        except OSError as error:
            error.add_note(f"mail server {self._host}:{self._port}")
            raise

    def _connect(self) -> smtplib.SMTP:
        if self._encryption == "tls":
            return smtplib.SMTP_SSL(
                self._host, self._port, timeout=self._seconds, context=self._context()
            )
        return smtplib.SMTP(self._host, self._port, timeout=self._seconds)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _recipient(self, reviewer: str | None) -> Address:
        if reviewer is None:
            if self._everyone is None:
                raise NoAddress("the notifier has no address of everyone: pass everyone=…")
            return self._everyone
        found = reviewer if self._address_of is None else self._address_of(reviewer)
        try:
            return checked_address(found, "address")
        except InvalidRequest:
            raise NoAddress(f"the notifier has no address of {reviewer!r:.80}") from None

    def _message(self, notice: Notice, to: Address) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["Subject"] = notice.subject
        message["From"] = self._sender
        message["To"] = to
        if self._reply_to is not None:
            message["Reply-To"] = self._reply_to
        message["Date"] = format_datetime(notice.at)
        message["Message-ID"] = f"<{notice.id}@{self._sender.domain}>"
        # So that no absence notice answers it.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(notice.text)
        if notice.html is not None:
            message.add_alternative(notice.html, subtype="html")
        return message


def _looked_up(
    book: Mapping[str, str] | Callable[[str], str | None] | None,
) -> Callable[[str], object] | None:
    """Return the function that finds the address of a name, for which a dict may stand."""
    if not isinstance(book, Mapping):
        return book
    known = cast(Mapping[str, str], book)
    addresses = {name.casefold(): address for name, address in known.items()}
    return lambda name: addresses.get(name.casefold())  # upper and lower case are the same


def checked_address(value: object, field: str) -> Address:
    """Return the mail address in a text: ``ana@example.com`` or ``Ana <ana@example.com>``.

    Raises:
        InvalidRequest: it is not one; in particular, it must be one line.
    """
    text = value if isinstance(value, str) else ""
    shown, _, rest = text.rpartition("<") if text.endswith(">") else ("", "", f"{text}>")
    spec = rest.removesuffix(">")
    try:
        if len(spec) > _ADDRESS_CHARS_MAX or not text.isprintable() or "<" in shown + spec:
            raise ValueError
        address = Address(display_name=shown.strip().strip('"'), addr_spec=spec)
        if not address.username or "." not in f".{address.domain}" or not address.domain:
            raise ValueError
    except (ValueError, IndexError, MessageError):
        raise InvalidRequest(
            f"{field} must be a mail address such as ana@example.com, got {value!r:.80}",
            field=field,
        ) from None
    return address
