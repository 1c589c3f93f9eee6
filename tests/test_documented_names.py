"""The commands, options, methods and attributes that the documents mention exist."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast import Context, Graph, Holdfast, Run, RunHandle, Worker
from holdfast.cli import main as holdfast_command
from holdfast.testing import FakeContext

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md")])
PAGES.remove(ROOT / "CHANGELOG.md")  # it names what is gone
PLANNED = {"ctx.review"}
# What a page calls by these names: a run is a handle or its row, a context may be a test's.
OBJECTS: dict[str, tuple[type, ...]] = {
    "hf": (Holdfast,),
    "ctx": (Context, FakeContext),
    "run": (RunHandle, Run),
    "worker": (Worker,),
    "graph": (Graph,),
}


def commands(text: str) -> list[str]:
    """Return the calls of the command line in blocks and in backticks, without what is piped."""
    found = re.findall(r"^(?:\$ )?(holdfast [^\n]*)$", text, re.MULTILINE)
    found += re.findall(r"`(holdfast (?:run|store|worker)[^`]*)`", text)
    return [re.split(r" [#|>&]", line)[0].replace("…", "x") for line in found]


def mistake(line: str) -> str | None:
    """Return what is wrong with a call of the command line."""
    command: click.Command = holdfast_command
    words = shlex.split(line)[1:]
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        if found is None:
            return f"there is no such command: {line}"
        command = found
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in known | {"--help"}:
            return f"{word} is not an option: {line}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_exists(page: Path) -> None:
    found = [mistake(line) for line in commands(page.read_text())]
    assert [each for each in found if each] == []


@pytest.mark.parametrize(
    "line", ["holdfast run lists", "holdfast run list --state waiting", "holdfast walk"]
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    assert mistake(line) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_method_exists(page: Path) -> None:
    named = set(re.findall(r"`(?:await )?(hf|ctx|run|worker|graph)\.(\w+)", page.read_text()))
    attributes = {
        each: {name for cls in classes for name in (*dir(cls), *attributes_of(cls))}
        for each, classes in OBJECTS.items()
    }
    missing = {f"{name}.{member}" for name, member in named if member not in attributes[name]}
    files = {each for each in missing if each.endswith(".py")}
    assert missing - files - PLANNED == set()


def attributes_of(cls: type) -> set[str]:
    """Return the attributes that a constructor sets."""
    source = Path(str(inspect.getsourcefile(cls))).read_text()
    return set(re.findall(r"self\.(\w+)(?:: [^=]+)? = ", source))
