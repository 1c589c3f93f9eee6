"""The pytest plugin: the fixture is there after an installation, in every kind of async test."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
FLOW = """
from dataclasses import dataclass
import pytest
from holdfast import Context, Graph, days, signal

@dataclass
class Order:
    id: int = 0
    approved: bool = False

graph = Graph("approval", Order)

@graph.node
async def ask(order: Order, ctx: Context) -> dict[str, bool]:
    return {"approved": await ctx.wait(signal("approved", bool), max_wait=days(5))}

async def approve(kit):
    run = await kit.serves(graph).hf.start(graph, Order(1))
    await kit.skip(days(3))
    await run.signal("approved", True)
    await kit.settled()
    assert await run.result() == Order(1, True)
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A place where the entry points of this project are installed, whatever this venv has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["pytest11"]
    metadata = pytester.mkdir("site") / "holdfast-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    monkeypatch.setenv("PYTHONPATH", f"{pytester.path / 'site'}:{ROOT / 'src'}")
    return pytester


def outcome(pytester: pytest.Pytester, *args: str) -> tuple[dict[str, int], str]:
    done = pytester.runpytest_subprocess("-W", "error", *args)
    return done.parseoutcomes(), done.stdout.str()


def test_pytest_asyncio_in_both_modes_and_in_classes(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        FLOW
        + """
@pytest.mark.asyncio
async def test_marked(holdfast_kit):
    await approve(holdfast_kit)

class TestInClass:
    @pytest.mark.asyncio
    async def test_method(self, holdfast_kit):
        await approve(holdfast_kit)

@pytest.fixture
def kit(holdfast_kit):
    return holdfast_kit

@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2])
async def test_by_another_fixture(kit, number):
    await approve(kit)
"""
    )
    for mode in ("strict", "auto"):
        assert outcome(installed, f"--asyncio-mode={mode}")[0] == {"passed": 4}


def test_anyio(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        FLOW
        + """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_it(holdfast_kit):
    await approve(holdfast_kit)
"""
    )
    installed.makeini("[pytest]")
    assert outcome(installed, "-p", "no:asyncio")[0] == {"passed": 1}


def test_the_kit_is_closed_also_after_a_failure(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        FLOW
        + """
import asyncio
kits = []

@pytest.mark.asyncio
async def test_fails(holdfast_kit):
    kits.append(holdfast_kit)
    await approve(holdfast_kit)
    raise ZeroDivisionError

def test_closed():
    with pytest.raises(Exception, match="closed"):
        asyncio.run(kits[0].hf.start(graph, Order()))
"""
    )
    outcomes, shown = outcome(installed)
    assert outcomes == {"passed": 1, "failed": 1}
    assert "ZeroDivisionError" in shown


def test_a_plain_test_cannot_use_it(installed: pytest.Pytester) -> None:
    installed.makepyfile("def test_plain(holdfast_kit): pass")
    outcomes, shown = outcome(installed)
    assert outcomes == {"errors": 1}
    assert "needs a test that is a coroutine" in shown


def test_it_can_be_left_out(installed: pytest.Pytester) -> None:
    installed.makepyfile("async def test_it(holdfast_kit): pass\ndef test_plain(): pass")
    outcomes, shown = outcome(installed, "-p", "no:holdfast")
    assert outcomes["passed"] == 1
    assert "fixture 'holdfast_kit' not found" in shown


def test_a_session_that_does_not_use_it_does_not_import_the_package() -> None:
    code = "import sys, pytest_holdfast; sys.exit('holdfast' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_unittest(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        FLOW
        + """
import unittest
from holdfast.testing import TestKit

class Approval(unittest.IsolatedAsyncioTestCase):
    async def test_it(self):
        async with TestKit() as kit:
            await approve(kit)
"""
    )
    assert outcome(installed)[0] == {"passed": 1}
