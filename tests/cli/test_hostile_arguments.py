"""Whatever is typed: an error in a line or a few, and never a traceback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.cli import serve as serve_command
from holdfast.cli import worker as worker_command
from holdfast.cli.failures import show_errors

STARTED = ("doc-1", "doc-2")
ODD = [
    "", " ", "-", "--", "-1", "0", "1", "nan", "inf", "-inf", "1e999", "1e308", "²", "٣", "9" * 400,
    "0x10", "1_000", "null", "NaN", "{}", "[" * 50_000, '{"a":' * 5_000, '"\\ud800"', '"\\u0000"',
    "1" * 5_000, "\0", "a\0b", "\ud800", "x\udcff", "\x1b[31m", "\u202e", "a\nb", "#", "a#b", "a/b",
    "..", "../..", "/", ".", "x" * 5_000, "é" * 100, "doc-1", "DOC-1", "default", "waiting",
    "0001-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1969-12-31",
    "2026-11-01", "999999999999d", "999999999999.999999d", "0s", "1s", "1e9d", "٣d",
    "1700000000000#doc-1", "0000000000000#x", "9999999999999#x", "٣" * 13 + "#x",
    "1700000000000#" + "x" * 3_000, "1700000000000#\ud800", "1700000000000#\0",
    "00000000-0000-7000-8000-000000000000.1.1", "0" * 36 + ".99999999.99999999",
    "0" * 36 + "." + "9" * 9 + ".1", "0" * 36 + ".1." + "0" * 36 + ".1.1", "-" * 36 + ".1.1",
    "name=value", "=", "name=", "a=b=c", "a=\ud800", "pool=x", "flows", "flows:asking",
    "flows:asking:", "flows.py", "flows.py/", "./flows", "folder", "folder/", "noise.py", "empty",
    "flows:__class__", "flows:asking.nodes", "flows.\0", "\ud800.py", "flows\0.py", ".py", "..py",
    "a..b", "os:path", "os:environ", "x" * 300 + ".py",
]  # fmt: skip
URLS = [
    "", "sqlite", "sqlite:", "sqlite:///", "sqlite:///runs.db", "sqlite:///folder", "sqlite:///noise.py",
    "sqlite:///empty", "sqlite:///nowhere/runs.db", "sqlite:///runs.db/below", "sqlite://:memory:",
    "sqlite:///%00", "sqlite:///%ff", "sqlite:///\ud800", "sqlite:///a\0b",
    "sqlite:///" + "x" * 5_000,
    "sqlite:///runs.db?max_bytes=٣", "sqlite:///runs.db?max_bytes=²", "sqlite:///runs.db?blobs=noise.py",
    "sqlite:///runs.db?blobs=%00", "sqlite:///runs.db?changes=\x1b", "sqlite:///pipe",
    "sqlite:///loop", "sqlite:///new.db", "sqlite:///new.db?blobs=.", "sqlite:///new.db?blobs=folder",
    "sqlite:///" + "x" * 250, "http://[", "dynamodb://", "dynamodb://[", "dynamodb://t?region=",
    "dynamodb://t?region=\0", "dynamodb://t?region=us-east-1&endpoint=http://[", "dynamodb://t?nothing=1",
    "dynamodb://\ud800?region=us-east-1", "ftp://x", "\0", "\ud800", "#", "sqlite:///a#b",
]  # fmt: skip

FILES = [
    "copy.db",
    "runs.db",
    "runs.db/below",
    "pipe",
    "loop",
    "folder",
    "nowhere/copy.db",
    "x" * 250,
]


def odd() -> st.SearchStrategy[str]:
    return st.sampled_from(ODD) | st.text(st.characters(exclude_categories=()), max_size=40)


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


# The first writes a file wherever it is told to, the second supervises a process.
APART = (("init",), ("dev",))
COMMANDS = {name: command for name, command in commands(main) if name not in APART}


@st.composite
def arguments(draw: st.DrawFn, command: click.Command) -> list[str]:
    """Return what may be typed after a command: its own options, with anything for a value."""
    typed: list[str] = []
    for parameter in command.params:
        value = odd()
        if parameter.name == "url":
            value = st.sampled_from(URLS) | odd()
        if parameter.name == "file":
            value = st.sampled_from(FILES) | odd()
        if isinstance(parameter, click.Argument):
            if parameter.required or draw(st.booleans()):
                known = st.just(STARTED[0]) if parameter.name in ("id", "run") else value
                typed.append(draw(known | value))
        elif draw(st.integers(0, 3)) == 0:
            typed.append(parameter.opts[0])
            if not (isinstance(parameter, click.Option) and parameter.is_flag):
                typed.append(draw(value))
    return draw(st.permutations(typed)) if draw(st.integers(0, 4)) == 0 else typed


def invoke(typed: Sequence[str], **given: Any) -> Result:
    """Type something, and answer what is asked."""
    result = CliRunner().invoke(main, typed, input="y\n", **given)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        typed, result.exception, result.exc_info,
    )  # fmt: skip
    assert result.exit_code in (0, 1, 2), typed
    if command_of(typed) not in (
        ("worker",),
        ("serve",),
    ):  # which show where a module of the user's is broken
        assert "Traceback" not in result.output, typed
    shown = result.output.replace("\n", "")
    assert shown.isprintable(), (typed, shown)
    return result


def command_of(typed: Sequence[str]) -> tuple[str, ...]:
    return tuple(typed[:1]) if typed[:1] in (["worker"], ["serve"]) else tuple(typed[:2])


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store, some runs, and what is not a store or a graph."""
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///runs.db")
    (folder / "folder").mkdir()
    (folder / "noise.py").write_bytes(b"\xff\xfe\0noise" * 100)
    (folder / "empty").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    for id in STARTED:
        assert invoke(["run", "start", "flows:asking", "--id", id]).exit_code == 0
    assert invoke(["store", "backup", "sqlite:///runs.db", "copy.db"]).exit_code == 0
    # They would wait for what never comes.
    for name in ("watch", "tokens"):
        monkeypatch.setattr(COMMANDS["run", name], "callback", _ended)
    monkeypatch.setattr(worker_command, "_run_worker", _work)
    monkeypatch.setattr(serve_command, "run_server", lambda serving: None)
    for command in (worker_command, serve_command):
        monkeypatch.setattr(command, "configure_logging", lambda *given: None)
    return folder


async def _work(url: str, graphs: Any, settings: Any) -> None:
    async with Holdfast(url, **settings.holdfast) as opened:
        opened.worker(graphs, options=settings.options)


def _ended(**given: Any) -> None:
    """Look at what a run did, but do not follow it."""
    url, tenant, after = given["url"], given["tenant"], given["after"]

    async def look() -> None:
        async with Holdfast(url, tenant=tenant) as opened:
            async for _ in opened.run(given["id"]).events(after=after, follow=False):
                pass
            async for _ in opened.run(given["id"]).tokens(after=after, follow=False):
                pass

    with show_errors():
        asyncio.run(look())


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_argument_causes_a_traceback(place: Path, name: tuple[str, ...], data: Any) -> None:
    invoke([*name, *data.draw(arguments(COMMANDS[name]))])


FAR = "9999-12-31T23:59:59-23:59"


@pytest.mark.parametrize(
    "typed",
    [
        ["run", "cancel", "--all", "--since", FAR],
        ["run", "cancel", "--all", "--until", "0001-01-01T00:00:00+23:59"],
        ["run", "start", "flows:asking", "--start-at", FAR],
        ["run", "start", "flows:asking", "--expires", "inf"],
        ["run", "start", "flows:asking", "--usd", "nan"],
        ["run", "start", "flows:asking", "--tokens", "9" * 400],
        ["run", "start", "flows:asking", "--wall", "999999999999d"],
        ["run", "start", "flows\0.py"],
        ["run", "start", "\ud800.py"],
        ["run", "start", "x" * 300 + ".py"],
        ["run", "extend", "doc-1", "999999999999d"],
        ["run", "history", "doc-1", "--cursor", "\x1b[2J"],
        ["run", "show", "\x1b[2J"],
        ["run", "\x1b[2J"],
        ["--\x1b[2J"],
        ["worker", "flows", "--lease", "inf"],
        ["init", "a\0b"],
        ["init", "\ud800"],
        ["init", "x" * 5_000],
        ["init", "noise.py"],
        ["init", "empty"],
        ["init", "loop"],
        ["dev", "flows.py", "--port", "65536"],
        ["serve", "flows", "--shutdown-delay", "inf"],
        ["worker", "flows", "--concurrency", "9" * 400],
        ["store", "backup", "sqlite:///runs.db", "folder"],
        ["store", "backup", "sqlite:///runs.db", "runs.db/below"],
        ["store", "backup", "sqlite:///pipe", "copy2.db"],
        ["store", "restore", "copy.db", "sqlite:///folder"],
        ["store", "restore", "copy.db", "sqlite:///pipe"],
        ["store", "restore", "copy.db", "sqlite:///runs.db/below"],
        ["store", "restore", "copy.db", "sqlite:///runs.db?blobs=/"],
        ["store", "restore", "pipe", "sqlite:///new.db"],
        ["store", "restore", "x" * 300, "sqlite:///new.db"],
        ["store", "check", "sqlite:///\ud800"],
        ["store", "check", "sqlite:///runs.db?blobs=%00"],
        ["store", "shards", "sqlite:///runs.db", "--grow", "9" * 400],
        ["store", "sweep", "sqlite:///runs.db", "--older-than", "inf"],
        ["store", "backup", "sqlite:///runs.db", "\ud800"],
        ["store", "backup", "sqlite:///runs.db", "x\udcff"],
        ["store", "backup", "sqlite:///runs.db", "a\0b"],
        ["store", "backup", "sqlite:///runs.db", "x" * 300],
        ["store", "restore", "\0", "sqlite:///runs.db"],
        ["store", "restore", "\ud800", "sqlite:///runs.db"],
    ],
    ids=lambda typed: " ".join(typed)[:40].encode("unicode_escape").decode(),
)
def test_what_cannot_be_is_refused_in_a_line(place: Path, typed: list[str]) -> None:
    assert invoke(typed).exit_code in (1, 2)


def test_standard_input_may_be_anything(place: Path) -> None:
    for given_bytes in (b"\xff\xfe", b"\0", b"[" * 100_000, b"1" * 10_000, b"", b'"\\ud800"'):
        result = CliRunner().invoke(
            main, ["run", "signal", "doc-1", "answer", "-"], input=given_bytes
        )
        assert isinstance(result.exception, SystemExit), given_bytes[:20]
        assert result.exit_code in (1, 2)


# What the shell does to a command, around one that works.
ODD_PLACES = {
    "closed input": "holdfast run signal doc-1 answer - <&-",
    "full output": "holdfast run list > /dev/full",
    "full output for machines": "holdfast run list --json > /dev/full",
    "deleted folder": "mkdir x && cd x && rmdir ../x && holdfast store create sqlite:///new.db",
    "deleted folder, target": "mkdir x && cd x && rmdir ../x && holdfast run start flows:asking",
    "closed errors": "holdfast run show nothing 2>&-",
}


@pytest.mark.parametrize("line", ODD_PLACES.values(), ids=ODD_PLACES)
def test_no_shell_causes_a_traceback(place: Path, line: str) -> None:
    if "/dev/full" in line and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    script = f'holdfast() {{ "{sys.executable}" -m holdfast "$@"; }}; {line}'
    environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{place}/runs.db"}
    done = subprocess.run(
        ["sh", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr or "2>&-" in line
