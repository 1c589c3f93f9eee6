"""Targets: how graphs are named on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli.targets import load_graph, load_graphs
from holdfast.errors import InvalidGraph


def names(*targets: str) -> list[str]:
    return [graph.name for graph in load_graphs(targets)]


def package(folder: Path) -> None:
    (folder / "shop" / "inner").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "inner" / "__init__.py").write_text("")
    (folder / "shop" / "inner" / "flows.py").write_text("from flows import counting, asking\n")


def test_the_forms_of_a_target(folder: Path) -> None:
    package(folder)
    assert names("flows") == [
        "counting",
        "asking",
        "approving",
        "failing",
        "stubborn",
        "speaking",
        "parent",
        "selling",
        "deciding",
    ]
    assert names("flows:asking") == ["asking"]
    assert names("flows:all_of_them") == ["counting", "asking"]
    assert names("shop.inner.flows") == ["counting", "asking"]
    assert names("shop.inner.flows:asking") == ["asking"]
    assert names("flows.py") == names("flows")
    assert names("./flows.py:failing") == ["failing"]
    assert names(f"{folder}/flows.py:all_of_them") == ["counting", "asking"]
    assert names("shop:inner.flows.counting") == ["counting"]


def test_a_graph_that_is_named_twice_is_there_once(folder: Path) -> None:
    package(folder)
    assert names("flows:counting", "flows.py", "shop.inner.flows") == names("flows")


def test_a_file_finds_its_neighbours_and_need_not_have_the_name_of_a_module(folder: Path) -> None:
    (folder / "far").mkdir()
    (folder / "far" / "neighbour.py").write_text("from flows import counting\n")
    (folder / "far" / "my-flow.py").write_text("from neighbour import counting\n")
    assert names("far/my-flow.py") == ["counting"]
    assert names("far/my-flow.py", "flows:counting") == ["counting"]


def test_files_of_the_same_name_are_different_files(folder: Path) -> None:
    for place, graph in (("a", "counting"), ("b", "asking"), ("c", "failing")):
        (folder / place).mkdir()
        (folder / place / "flow.py").write_text(f"from flows import {graph}\n")
    assert names("a/flow.py", "b/flow.py", "c/flow.py") == ["counting", "asking", "failing"]


def test_a_file_does_not_stand_in_for_a_module_of_the_same_name(folder: Path) -> None:
    standard = sys.modules["json"]
    (folder / "json.py").write_text("from flows import counting\n")
    assert names("json.py") == ["counting"]
    assert sys.modules["json"] is standard


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "there is no module 'nowhere', neither in"),
        ("nowhere.at.all:graph", "there is no module 'nowhere'"),
        ("flows.inner", "there is no module 'flows.inner'"),
        ("nowhere.py", "there is no file"),
        ("far/away", "there is no file"),
        ("my-flow", "'my-flow' is not the name of a module; a file ends with .py"),
        ("flows:missing", "flows has no 'missing'"),
        ("flows:", "'flows:' is not a target; targets look like this:"),
        (":asking", "':asking' is not a target"),
        ("flows:number", "flows:number must be a graph or a list of them, got 7"),
        ("flows:nothing", "there is no graph in flows:nothing"),
        ("flows:__name__", "flows:__name__ must contain only graphs, got 'f'"),
        ("json", "there is no graph in json"),
    ],
)
def test_what_cannot_be_found_is_said(folder: Path, target: str, message: str) -> None:
    with pytest.raises(click.ClickException) as caught:
        load_graphs([target])
    assert message in caught.value.message


def test_an_error_in_a_module_is_shown_with_its_place(folder: Path) -> None:
    (folder / "broken.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    (folder / "importing.py").write_text("import nowhere_to_be_found\n")
    for target in ("broken", "broken.py"):
        with pytest.raises(click.ClickException) as caught:
            load_graphs([target])
        shown = caught.value.message
        assert "cannot be imported:" in shown
        assert f'File "{folder}/broken.py", line 2, in f' in shown
        assert "ZeroDivisionError: division by zero" in shown
        assert "importlib" not in shown
        assert "targets.py" not in shown
    with pytest.raises(click.ClickException) as caught:
        load_graphs(["importing"])
    assert "importing cannot be imported:" in caught.value.message
    assert "No module named 'nowhere_to_be_found'" in caught.value.message


def test_graphs_that_cannot_be_run_are_refused(folder: Path) -> None:
    (folder / "empty.py").write_text("from holdfast import Graph\ngraph = Graph('empty', dict)\n")
    with pytest.raises(InvalidGraph, match="the graph has no nodes"):
        load_graphs(["empty"])
    (folder / "twin.py").write_text((folder / "flows.py").read_text())
    with pytest.raises(click.ClickException, match="two graphs 'counting' of version 1"):
        load_graphs(["flows", "twin"])


def test_one_graph_is_one(folder: Path) -> None:
    assert load_graph("flows:asking").name == "asking"
    with pytest.raises(click.ClickException) as caught:
        load_graph("flows:all_of_them")
    assert caught.value.message == (
        "flows:all_of_them has several graphs: counting (version 1), asking (version 2); "
        "name one of them: flows:attribute"
    )


@pytest.mark.parametrize("target", ["here/flow.py", "./flow.py", "flow"])
def test_a_folder_does_not_stand_in_for_what_is_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """What the library imports later, or a module of the user does, is what is installed."""
    (folder / "here").mkdir()
    for place in (folder, folder / "here"):
        (place / "flow.py").write_text("import wave, msgspec, click\nfrom flows import counting\n")
        for name in ("wave", "msgspec", "click", "holdfast", "sqlite3", "aiohttp"):
            (place / f"{name}.py").write_text("raise SystemExit('somebody else is imported')\n")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    before = list(sys.path)
    assert names(target) == ["counting"]
    assert sys.path[: len(before)] == before
    assert Path(sys.modules["wave"].__file__ or "").parent != folder


@pytest.mark.parametrize("way", [("-m", "holdfast"), ("-mholdfast",), ("-Bm", "holdfast")])
def test_the_working_folder_is_not_first_for_python_m(folder: Path, way: tuple[str, ...]) -> None:
    """Also where Holdfast is imported as a package first, with all that it imports."""
    for name in ("click", "msgspec", "sqlite3", "asyncio", "typing", "zstandard"):
        (folder / f"{name}.py").write_text("raise SystemExit('somebody else is imported')\n")
    command = [sys.executable, *way, "run", "start", "flows:counting", "--url", "sqlite:///runs.db"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 1  # the run's id: the target was found in the folder


@pytest.mark.parametrize("arguments", [["-m", "app"], ["-m", "app", "-m", "holdfast"]])
def test_a_program_that_imports_holdfast_keeps_its_folder(
    folder: Path, arguments: list[str]
) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "__init__.py").write_text("import holdfast\n")
    (folder / "app" / "__main__.py").write_text("import sys, flows; print(sys.path[0])\n")
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{folder.resolve()}\n", "")


def test_a_module_that_is_hidden_by_an_installed_one_is_not_mistaken_for_it(folder: Path) -> None:
    (folder / "wave.py").write_text("from flows import counting\n")
    with pytest.raises(click.ClickException, match=r"is hidden by .*; rename it, or name its file"):
        load_graphs(["wave"])
    assert names("wave.py") == ["counting"]
