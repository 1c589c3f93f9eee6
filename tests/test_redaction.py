"""Addresses are shown without their credentials: in errors, in failures and in reprs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, redaction
from holdfast.cli import main
from holdfast.errors import CallFailed, EndpointUnreachable, HoldfastError, InvalidUrl
from holdfast.model.failure import failure_of
from holdfast.redaction import is_secret_name, without_credentials
from holdfast.storage.dynamodb.credentials import ConnectionSettings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host/path", "http://***@host/path"),
        ("http://secret@host", "http://***@host"),
        ("http://:secret@host", "http://***@host"),
        ("http://user:se@cr@et@host", "http://***@host"),
        ("http://user:sec/ret@host", "http://***@host"),
        ("url='HTTP://user:secret@host:80'", "url='HTTP://***@host:80'"),
        ("a http://u:secret@h b https://v:secret@i c", "a http://***@h b https://***@i c"),
        ("dynamodb://t?endpoint=http://u:secret@h", "dynamodb://t?endpoint=http://***@h"),
        (
            "dynamodb://t?endpoint=http%3A%2F%2Fu%3Asecret%40h",
            "dynamodb://t?endpoint=http%3A%2F%2F***%40h",
        ),
        ("http://u:p@s/secret@host/x", "http://***@host/x"),
        (r'{"url":"http:\/\/u:secret@h\/x"}', r'{"url":"http:\/\/***@h\/x"}'),
        ("//u:secret@host", "//***@host"),
        ("http%253A%252F%252Fu%253Asecret%2540h", "http%253A%252F%252F***%2540h"),
        ("http%3a%2f%2fu%3asecret%40h&region=x@y", "http%3a%2f%2f***%40h&region=x@y"),
        ("a,http://u:secret@h,http://v:secret@i", "a,http://***@h,http://***@i"),
        ("https://h/x?a=b&password=secret&c=d", "https://h/x?a=b&password=***&c=d"),
        (
            "got 'https://h/x?X-Amz-Signature=secret', not",
            "got 'https://h/x?X-Amz-Signature=***', not",
        ),
        ("https://h/x?access_token=se'cr%26et#top", "https://h/x?access_token=***#top"),
        (
            "t?url=https%3A%2F%2Fh%3Fpwd%3Dsecret%26a%3Db",
            "t?url=https%3A%2F%2Fh%3Fpwd%3D***%26a%3Db",
        ),
        ("dynamodb://t?region=eu-west-1&kms_key=1", "dynamodb://t?region=eu-west-1&kms_key=1"),
        (
            "at https://h:80/x/v1/callbacks/v1.a-_9.b9. Yes",
            "at https://h:80/x/v1/callbacks/***. Yes",
        ),
        ("/v1/callbacks/v1.abc", "/v1/callbacks/***"),
        (
            "https://h/?to=https%3A%2F%2Fh%2Fv1%2Fcallbacks%2Fv1.a.b&c=d",
            "https://h/?to=https%3A%2F%2Fh%2Fv1%2Fcallbacks%2F***&c=d",
        ),
        (
            r'{"url":"http:\/\/h\/v1\/callbacks\/v1.a.b"}',
            r'{"url":"http:\/\/h\/v1\/callbacks\/***"}',
        ),
        ("https://h/v1/callbacks/{token}", "https://h/v1/callbacks/{token}"),
        ("http://host/a@b", "http://host/a@b"),
        ("somebody@example.com", "somebody@example.com"),
        ("sqlite:////var/lib/runs@2.db", "sqlite:////var/lib/runs@2.db"),
        ("", ""),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert str(EndpointUnreachable(text)) == (shown or str(EndpointUnreachable()))


@pytest.mark.parametrize(
    "text", ["://:", "/", "://a:", "://@", "%3A%2F%2Fa", "//:@ ", "%2F", "\\/"]
)
def test_each_part_of_a_text_is_looked_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[int] = []
    hide = vars(redaction)["_redacted_address"]

    def counted(address: str, *, open_end: bool) -> str:
        handed.append(len(address))
        return hide(address, open_end=open_end)

    monkeypatch.setattr(redaction, "_redacted_address", counted)
    without_credentials(text * 10_000)
    assert 0 < sum(handed) <= len(text) * 10_000


def test_it_takes_time_in_proportion_to_the_text() -> None:
    for text in (
        "://",
        "://a:",
        "%3A%2F%2F",
        "a@",
        "://@",
        "a:/",
        "\\",
        "%25",
        "%",
        "?a=",
        "'",
        "/v1/callbacks",
        "/v1/callbacks/v1.a.",
    ):
        assert len(without_credentials(text * 200_000)) > 0


def test_what_is_recorded_of_an_error_shows_none() -> None:
    try:
        try:
            raise OSError("407 from http://user:secret@proxy:3128")
        except OSError as error:
            raise ConnectionError("no way past http://user:secret@proxy:3128") from error
    except ConnectionError as error:
        failure = failure_of(error)
    assert "proxy:3128" in failure.message
    assert "secret" not in f"{failure} {CallFailed(failure.message, trace=failure.trace)!r}"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://user:secret@table",
        "dynamodb://table?endpoint=http://user:secret@host",
        "dynamodb://table?endpoint=http%3A%2F%2Fuser%3Asecret%40host",
        "dynamodb://table?endpoint=http://:secret@host",
        "dynamodb://table?region=eu-west-1&endpoint=http://user:secret@host/" + "x" * 300,
        "postgres://user:secret@host/db",
        "dynamodb://table?bucket=b&bucket_endpoint=http://user:secret@host",
    ],
)
def test_a_stores_address_shows_none(url: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidUrl, HoldfastError)) as refused:
        Holdfast(url)
    assert "secret" not in f"{refused.value!r}{refused.value}"
    shown = CliRunner().invoke(main, ["store", "check", url])
    assert shown.exit_code != 0
    assert "secret" not in shown.output


def test_a_route_shows_none() -> None:
    assert "secret" not in repr(ConnectionSettings("http://user:secret@proxy:3128", None))


@pytest.mark.parametrize(
    "name",
    ["pw", "auth", "pin", "user_pin", "ssn", "cvv", "card_number", "cardNumber", "session_id"],
)
def test_names_of_secrets_that_are_no_credentials_of_addresses(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["author", "spinner", "opinion", "card", "session", "pwned", "x"])
def test_names_that_only_resemble_those_of_secrets(name: str) -> None:
    assert not is_secret_name(name)
