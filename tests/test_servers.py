"""The servers that other tests rely on answer, leave nothing behind, and say why they cannot."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from urllib.parse import urlsplit

import boto3
import pytest

from tests.servers import component, dynamodb_local, moto_server, process

Serve = Callable[[], AbstractContextManager[process.Server]]

each_server = pytest.mark.parametrize(
    "serve", [dynamodb_local.serve, moto_server.serve], ids=["dynamodb_local", "moto_server"]
)


def list_tables(endpoint: str) -> list[str]:
    with closing(boto3.client("dynamodb", endpoint_url=endpoint)) as client:
        return client.list_tables()["TableNames"]


def assert_gone(server: process.Server) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    port = urlsplit(server.endpoint).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@each_server
def test_a_server_answers_and_is_gone_afterwards(serve: Serve) -> None:
    with component.required(), serve() as server:
        os.kill(server.pid, 0)
        assert list_tables(server.endpoint) == []
    assert_gone(server)


@each_server
def test_a_server_is_gone_after_an_error(serve: Serve) -> None:
    with component.required(), pytest.raises(KeyError), serve() as server:
        raise KeyError
    assert_gone(server)


def test_a_server_ends_with_a_parent_that_is_killed() -> None:
    with component.required():
        component.command("setpriv", debian_package="util-linux")
    program = """if True:
        import os, signal
        from tests.servers import moto_server

        with moto_server.serve() as server:
            print(server.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    parent = subprocess.run(
        [sys.executable, "-c", program], cwd=component.CACHE.parent, stdout=subprocess.PIPE
    )
    try:
        watch = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([watch], [], [], process.STOP_SECONDS_MAX)[0], "it still runs"
    finally:
        os.close(watch)


@pytest.mark.parametrize("fixture", ["dynamodb_local", "moto_server"])
def test_the_fixtures_answer(fixture: str, request: pytest.FixtureRequest) -> None:
    assert isinstance(list_tables(request.getfixturevalue(fixture)), list)


def test_moto_serves_s3(moto_server: str) -> None:
    with closing(boto3.client("s3", endpoint_url=moto_server)) as client:
        client.create_bucket(Bucket="holdfast-servers")
        assert "holdfast-servers" in [each["Name"] for each in client.list_buckets()["Buckets"]]


def test_a_server_that_ends_at_once_tells_what_it_printed() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no room left')"]
    with (
        pytest.raises(process.ServerFailed, match=r"(?s)ended.*no room left"),
        process.running(command, port=process.free_port()),
    ):
        pytest.fail("it cannot have answered")


def test_a_server_that_never_answers_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_SECONDS_MAX", 0.1)
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with (
        pytest.raises(process.ServerFailed, match="did not answer in time"),
        process.running(command, port=process.free_port()),
    ):
        pytest.fail("it cannot have answered")


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("", pytest.skip.Exception), ("true", pytest.fail.Exception)],
    ids=["skips at home", "fails in CI"],
)
def test_a_missing_component(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    # Both are caught, since a skip that escaped would skip this test instead of failing it.
    with (
        pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="no java") as caught,
        component.required(),
    ):
        raise component.ComponentMissing("no java")
    assert caught.type is outcome


def test_a_missing_command_is_not_installed_by_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(component.ComponentMissing, match="some-package"):
        component.command("no-such-command", debian_package="some-package")
