"""Imports the graphs, models and limits that the command line names: a module and an attribute."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

import click

from holdfast.errors import InvalidRequest
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.program import Program
from holdfast.review.options import ReviewOptions

__all__ = ["FORMS", "load_dict", "load_graph", "load_graphs", "load_limits"]

FORMS = """\
  package.module               all graphs and workflows in a module
  package.module:attribute     one graph or workflow, or a list of them
  flows/file.py                all graphs and workflows in a file
  flows/file.py:attribute      one graph or workflow, or a list of them"""


def load_graphs(targets: Sequence[str]) -> list[Program]:
    """Import the graphs of all targets, each once, and check that they can run.

    Raises:
        click.ClickException: a target cannot be found, or two graphs have one name and version.
        InvalidGraph: a graph cannot be run.
    """
    graphs: dict[tuple[str, int], Program] = {}
    for target in targets:
        for graph in _load_target(target):
            graph.check()
            if graphs.setdefault((graph.name, graph.version), graph) is not graph:
                raise click.ClickException(
                    f"there are two graphs {graph.name!r} of version {graph.version}"
                )
    return list(graphs.values())


def load_graph(target: str) -> Program:
    """Import the single graph that a target names.

    Raises:
        click.ClickException: it cannot be found, or there are several.
        InvalidGraph: it cannot be run.
    """
    graphs = load_graphs([target])
    if len(graphs) > 1:
        names = ", ".join(f"{graph.name} (version {graph.version})" for graph in graphs)
        raise click.ClickException(
            f"{target} has several graphs: {names}; name one of them: "
            f"{target.partition(':')[0]}:attribute"
        )
    return graphs[0]


def load_dict(target: str) -> dict[str, Any]:
    """Import the dict that a target names.

    Raises:
        click.ClickException: it cannot be found, or is not a dict.
    """
    value = _load_attribute(target, "a dict")
    if not isinstance(value, dict):
        raise click.ClickException(f"{target} must be a dict, got {value!r:.80}")
    return cast(dict[str, Any], value)


def load_limits(target: str) -> PayloadLimits:
    """Import the limits that a target names.

    Raises:
        click.ClickException: they cannot be found.
        InvalidRequest: the target names something else.
    """
    value = _load_attribute(target, "PayloadLimits")
    if not isinstance(value, PayloadLimits):
        raise InvalidRequest(
            f"--limits must name PayloadLimits, got {target} of type {type(value).__name__!r}",
            field="limits",
        )
    return value


def load_review_options(target: str) -> ReviewOptions:
    """Import the options of reviews that a target names.

    Raises:
        click.ClickException: they cannot be found.
        InvalidRequest: the target names something else.
    """
    value = _load_attribute(target, "ReviewOptions")
    if not isinstance(value, ReviewOptions):
        raise InvalidRequest(
            f"--reviews must name ReviewOptions, got {target} of type {type(value).__name__!r}",
            field="reviews",
        )
    return value


def _load_attribute(target: str, what: str) -> Any:
    source, attribute = _split_target(target)
    if not attribute:
        raise click.ClickException(f"{target!r} must name {what}: {source}:attribute")
    return _get_attribute(_import_source(source), source, attribute)


def _split_target(target: str) -> tuple[str, str]:
    source, _, attribute = target.partition(":")
    if not source or (":" in target and not attribute):
        raise click.ClickException(f"{target!r} is not a target; targets look like this:\n{FORMS}")
    return source, attribute


def _import_source(source: str) -> ModuleType:
    try:
        _append_to_path(Path.cwd())
    except OSError as error:
        raise click.ClickException(f"the working folder cannot be used: {error}") from None
    is_file = source.endswith(".py") or os.sep in source
    return _import_file(Path(source)) if is_file else _import_module(source)


def _get_attribute(module: ModuleType, source: str, attribute: str) -> Any:
    value: Any = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise click.ClickException(f"{source} has no {attribute!r}") from None
    return value


def _load_target(target: str) -> list[Program]:
    source, attribute = _split_target(target)
    module = _import_source(source)
    if not attribute:
        values: list[Any] = list(vars(module).values())
        graphs: list[Program] = [value for value in values if isinstance(value, Program)]
        if not graphs:
            raise click.ClickException(f"there is no graph in {source}")
        return graphs
    return list(_graphs_in(_get_attribute(module, source, attribute), target))


def _graphs_in(value: Any, target: str) -> Iterator[Program]:
    if isinstance(value, Program):
        yield value
        return
    if not isinstance(value, Iterable):
        raise click.ClickException(f"{target} must be a graph or a list of them, got {value!r:.80}")
    empty = True
    for each in cast(Iterable[Any], value):
        if not isinstance(each, Program):
            raise click.ClickException(f"{target} must contain only graphs, got {each!r:.80}")
        empty = False
        yield each
    if empty:
        raise click.ClickException(f"there is no graph in {target}")


# --- modules and files ----------------------------------------------------------------------------


def _append_to_path(folder: Path) -> None:
    """Import from that folder, too, but only after all others.

    The folder may contain a file with the name of a module that Python, Holdfast or a dependency
    imports later. It must not replace that module.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise click.ClickException(f"{name!r} is not the name of a module; a file ends with .py")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.ClickException(
                f"there is no module {error.name!r}, neither in {Path.cwd()} nor installed"
            ) from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error
    _check_not_hidden(name.partition(".")[0])
    return module


def _check_not_hidden(name: str) -> None:
    """Check that an installed package was not imported instead of one in this folder."""
    here = Path.cwd() / name
    found = Path(getattr(sys.modules[name], "__file__", None) or here)
    for wanted in (here / "__init__.py", here.with_suffix(".py")):
        if wanted.is_file() and not found.samefile(wanted):
            raise click.ClickException(
                f"the module {name!r} in {here.parent} is hidden by {found}; rename it, or name "
                "its file"
            )


def _import_file(path: Path) -> ModuleType:
    """Import a file, under its own name if possible, so that it is not imported twice."""
    try:
        path = path.resolve()
        is_file = path.is_file()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise click.ClickException(f"there is no file {str(path)!r:.200}: {error}") from None
    if not is_file:
        raise click.ClickException(f"there is no file {path}")
    _append_to_path(path.parent)
    try:
        if path.stem.isidentifier():
            found = importlib.util.find_spec(path.stem)
            if found is not None and found.origin == str(path):
                return importlib.import_module(path.stem)
        name = re.sub(r"\W", "_", str(path.with_suffix("")))
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise click.ClickException(f"{path} cannot be imported; a Python file ends with .py")
        module = importlib.util.module_from_spec(spec)
        # The annotations of its classes are looked up here.
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except click.ClickException:
        raise
    except Exception as error:
        raise _import_failed(str(path), error) from error


def _import_failed(name: str, error: Exception) -> click.ClickException:
    """Return the error to show for a module of the user that fails, with its traceback."""
    shown = "".join(
        traceback.format_exception(type(error), error, _user_frames(error.__traceback__))
    )
    return click.ClickException(f"{name} cannot be imported:\n{shown.rstrip()}")


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Skip the frames of Holdfast, and those of Python's imports."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and "importlib" not in file:
            return trace
        trace = trace.tb_next
    return None
