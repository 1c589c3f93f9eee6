"""Mails to a real mail server: what they contain, and servers that refuse, drop, or hang."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any, cast

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from holdfast import Holdfast, ReviewOptions, SmtpNotifier
from holdfast.errors import InvalidRequest, NoAddress
from tests.review.notices import LINK, QUESTION, ask, notice


class Inbox:
    """Keeps mails, and answers as the test says."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.answer = "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd
        if self.answer.startswith("250"):
            self.envelopes.append(envelope)
            mail = message_from_bytes(cast(bytes, envelope.content), policy=default)
            self.mails.append(cast(EmailMessage, mail))
        return self.answer


@contextmanager
def mail_server(inbox: Inbox, **options: Any) -> Iterator[Controller]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Controller(inbox, hostname="127.0.0.1", port=port, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def server(inbox: Inbox) -> Iterator[Controller]:
    with mail_server(inbox, enable_SMTPUTF8=True) as running:
        yield running


def mailer(server: Controller, **options: Any) -> SmtpNotifier:
    given: dict[str, Any] = {"sender": "Holdfast <reviews@example.com>", "encryption": "none"}
    return SmtpNotifier("127.0.0.1", port=server.port, **given | options)


async def test_a_mail_has_text_and_html_and_an_id_of_its_own(
    inbox: Inbox, server: Controller
) -> None:
    await mailer(server, reply_to="help@example.com").send(notice())
    (mail,) = inbox.mails
    assert mail["From"] == "Holdfast <reviews@example.com>"
    assert mail["To"] == "ana@example.com"
    assert mail["Reply-To"] == "help@example.com"
    assert mail["Subject"] == f"Please decide: {QUESTION}"
    assert mail["Message-ID"] == "<ntc_0123@example.com>"
    assert mail["Auto-Submitted"] == "auto-generated"
    text, page = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert page is not None
    assert LINK in text.get_content()
    assert page.get_content().strip() == f"<p>{QUESTION}</p>"
    assert inbox.envelopes[0].rcpt_tos == ["ana@example.com"]
    assert inbox.envelopes[0].mail_from == "reviews@example.com"


async def test_a_mail_keeps_every_character(inbox: Inbox, server: Controller) -> None:
    text = "Genehmigen? 保証 🛡️\n.\n" + "x" * 5_000
    await mailer(server).send(notice(subject="Prüfen 保証", text=text, html=None))
    (mail,) = inbox.mails
    assert mail["Subject"] == "Prüfen 保証"
    assert mail.get_content().replace("\r\n", "\n").rstrip("\n") == text


@pytest.mark.parametrize(
    "reviewer",
    [
        "ana@example.com\r\nBcc: eve@example.com",
        "ana@example.com\nX: y",
        "ana@example.com, eve@example.com",
        "ana@example.com> <eve@example.com",
        "Ana",
        "@",
        "ana@",
        "@example.com",
        "a" * 300 + "@example.com",
    ],
)
async def test_a_name_that_is_no_single_address_gets_no_mail(
    inbox: Inbox, server: Controller, reviewer: str
) -> None:
    with pytest.raises(NoAddress):
        await mailer(server).send(notice(reviewer=reviewer))
    assert inbox.mails == []


async def test_a_subject_cannot_add_headers(inbox: Inbox, server: Controller) -> None:
    with pytest.raises(ValueError, match="linefeed"):
        await mailer(server).send(notice(subject="x\r\nBcc: eve@example.com"))
    assert inbox.mails == []


async def test_addresses_come_from_a_dict_or_a_function(inbox: Inbox, server: Controller) -> None:
    book = {"ana": "ana@example.com"}
    for addresses in (book, book.get):
        sender = mailer(server, address_of=addresses, everyone="all@example.com")
        await sender.send(notice(reviewer="ana"))
        await sender.send(notice(reviewer=None))
        with pytest.raises(NoAddress):
            await sender.send(notice(reviewer="bob"))
    await mailer(server, address_of={"ANA": "a@example.com"}).send(notice(reviewer="Ana"))
    with pytest.raises(NoAddress):
        await mailer(server).send(notice(reviewer=None))
    told = [envelope.rcpt_tos for envelope in inbox.envelopes]
    assert told == [*[["ana@example.com"], ["all@example.com"]] * 2, ["a@example.com"]]


@pytest.mark.parametrize("answer", ["451 try later", "550 no such mailbox", "554 spam"])
async def test_a_refused_mail_is_an_error(inbox: Inbox, server: Controller, answer: str) -> None:
    inbox.answer = answer
    with pytest.raises(OSError, match=answer[:3]):
        await mailer(server).send(notice())


async def test_no_server_is_an_error(inbox: Inbox) -> None:
    with mail_server(inbox) as gone:
        sender = mailer(gone)
    with pytest.raises(ConnectionRefusedError) as refused:
        await sender.send(notice())
    assert refused.value.__notes__ == [f"mail server {gone.hostname}:{gone.port}"]


@asynccontextmanager
async def odd_server(*, drops: bool) -> AsyncIterator[int]:
    """Run a server that drops each connection, or never says anything."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not drops:
            await reader.read()
        writer.close()

    running = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


@pytest.mark.parametrize("drops", [True, False], ids=["drops", "hangs"])
async def test_a_server_that_drops_or_hangs_is_an_error(drops: bool) -> None:
    async with odd_server(drops=drops) as port:
        sender = SmtpNotifier(
            "127.0.0.1", port=port, sender="r@example.com", encryption="none", timeout=0.2
        )
        with pytest.raises(smtplib.SMTPServerDisconnected):
            await sender.send(notice())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-keyout", str(file), "-out", f"{file}.crt", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    file.write_bytes(file.read_bytes() + Path(f"{file}.crt").read_bytes())
    return file


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
async def test_a_login_needs_an_encrypted_connection_that_is_checked(
    inbox: Inbox, certificate: Path, encryption: str
) -> None:
    logins: list[LoginPassword] = []

    def authenticate(
        server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
    ) -> AuthResult:
        logins.append(data)
        return AuthResult(success=data.password == b"secret", handled=False)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    how: dict[str, Any] = (
        {"tls_context": context, "require_starttls": True, "auth_required": True}
        if encryption == "starttls"
        else {"ssl_context": context, "auth_require_tls": False}
    )
    trusting = ssl.create_default_context(cafile=str(certificate))
    with mail_server(inbox, authenticator=authenticate, **how) as running:
        options: dict[str, Any] = {"encryption": encryption, "username": "holdfast"}
        await mailer(running, tls=trusting, password="secret", **options).send(notice())
        assert len(inbox.mails) == 1
        with pytest.raises(OSError, match="535"):
            await mailer(running, tls=trusting, password="wrong", **options).send(notice())
        with pytest.raises(ssl.SSLCertVerificationError):
            await mailer(running, password="secret", **options).send(notice())
    assert {login.password for login in logins} == {b"secret", b"wrong"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sender": "nobody"}, "sender"),
        ({"sender": "a@example.com\r\nBcc: b@example.com"}, "sender"),
        ({"encryption": "ssl"}, "encryption"),
        ({"username": "ana", "encryption": "none", "password": "x"}, "encryption"),
        ({"username": "ana"}, "password"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 60}, "timeout"),
        ({"address_of": 3}, "address_of"),
        ({"everyone": "all"}, "everyone"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"sender": "r@example.com"}
    with pytest.raises(InvalidRequest) as refused:
        SmtpNotifier("mail.example", **given | options)
    assert refused.value.field == field


def test_a_password_is_not_shown() -> None:
    made = SmtpNotifier("mail.example", sender="r@example.com", username="ana", password="secret")
    assert "secret" not in repr(made)


async def test_a_run_that_waits_for_a_review_sends_a_mail(
    tmp_path: Path, inbox: Inbox, server: Controller
) -> None:
    options = ReviewOptions(notifiers=[mailer(server)])
    async with Holdfast(
        f"sqlite:///{tmp_path}/runs.db", reviews=options, public_url="https://reviews.example"
    ) as hf:
        id = await ask(hf, assignees=["ana@example.com"])
        async with hf.reviews.notify(), asyncio.timeout(20):
            while not (await hf.reviews.get(id)).trail:
                await hf.clock.sleep(0.02)
    (mail,) = inbox.mails
    body = mail.get_body(("plain",))
    assert body is not None
    token = body.get_content().partition("https://reviews.example/r/")[2].split()[0]
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf:
        assert await hf.reviews.open_link(token) == ("default", id, "ana@example.com")
