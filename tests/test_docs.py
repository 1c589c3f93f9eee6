"""The documents keep up with the code: names, examples, links, the tree of errors."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from holdfast import errors
from holdfast.engine.history import ephemeral, views
from holdfast.model.event import Event, RecordedCall, RecordedIntent

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
PUBLIC = (
    "holdfast",
    "holdfast.client",
    "holdfast.client.sync",
    "holdfast.clock",
    "holdfast.errors",
    "holdfast.integrations.aws_lambda",
    "holdfast.integrations.bedrock",
    "holdfast.integrations.crawling",
    "holdfast.integrations.offline",
    "holdfast.integrations.openai",
    "holdfast.integrations.opensearch",
    "holdfast.integrations.prompt_counter",
    "holdfast.integrations.reading",
    "holdfast.integrations.search_address",
    "holdfast.server",
    "holdfast.storage",
    "holdfast.sync",
    "holdfast.testing",
)
NAMES = [
    f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__
]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_extra_that_is_named_exists() -> None:
    known = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    for path in [*PAGES, *ROOT.glob("src/**/*.py")]:
        for extras in re.findall(r"holdfast\[([\w,-]+)\]", path.read_text()):
            assert set(extras.split(",")) <= known, f"{page_id(path)} names holdfast[{extras}]"


@pytest.mark.parametrize("module", PUBLIC)
def test_what_is_public_is_there_once(module: str) -> None:
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)
    assert len(set(loaded.__all__)) == len(loaded.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    module, _, short = name.rpartition(".")
    reference = (ROOT / "docs" / "reference.md").read_text()
    assert f"`{short}`" in reference, f"docs/reference.md does not name {short}"
    value = getattr(importlib.import_module(module), short)
    if inspect.isclass(value) or inspect.isfunction(value):
        documented(value, short)


def documented(value: object, name: str) -> None:
    assert value.__doc__, f"{name} has no docstring"
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return
    for member, method in vars(value).items():
        if member.startswith("_") or not inspect.isfunction(method):
            continue
        # A method of a port is documented where the port is declared.
        inherited = [getattr(port, member, None) for port in protocols()]
        assert method.__doc__ or any(port and port.__doc__ for port in inherited), (
            f"{name}.{member} has no docstring"
        )


def protocols() -> list[type]:
    from holdfast import Model
    from holdfast.clock import Clock, Ids

    return [Clock, Ids, Model]


# Pages whose examples have a test of their own: they wait, or need files of the same page.
TESTED_APART = ("README.md-0", "docs/guides/crashes.md", "docs/tutorial.md")


def examples() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
            found.append((f"{page_id(page)}-{number}", code))
    return found


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=name) for name, code in examples() if not name.startswith(TESTED_APART)],
)
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if re.search(r"^(async )?def test_", code, re.MULTILINE):
        (tmp_path / "test_example.py").write_text(code)
        # As after an installation with pytest-asyncio, whatever plugins this environment has.
        plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_holdfast")
        command = [sys.executable, "-m", "pytest", "-W", "error", *plugins, "test_example.py"]
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        settings = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guide_names_every_logger() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    loggers = set(re.findall(r'"(holdfast\.(?:(?!__)\w)+)"\)', source)) - set(PUBLIC)
    guide = (ROOT / "docs" / "guides" / "observability.md").read_text()
    assert {"holdfast.worker", "holdfast.sharing"} <= loggers
    assert {name for name in loggers if f"| `{name}` |" not in guide} == set()


def test_there_are_examples() -> None:
    pages = {name.rpartition("-")[0] for name, _ in examples()}
    guides = {
        f"docs/guides/{name}.md"
        for name in (
            *(
                "access",
                "api",
                "approvals",
                "branches",
                "budgets",
                "callbacks",
                "calls",
                "client",
                "events",
            ),
            *(
                "graphs",
                "limits",
                "models",
                "observability",
                "pausing",
                "quotas",
                "reading-files",
                "runs",
            ),
            *("sessions", "storage", "streams", "testing", "types", "upgrading", "web"),
            *("webhooks", "workers", "workflows", "approvals"),
        )
    }
    assert {"README.md", *guides} <= pages


def test_the_guide_has_every_kind_of_event_with_its_details() -> None:
    guide = (ROOT / "docs" / "guides" / "events.md").read_text()
    row = re.compile(r"^\| `(\w+)` \| (recorded|ephemeral) \|[^|]*\|([^|]*)\|$", re.MULTILINE)
    found = row.findall(guide)
    shown = {(kind, how): set(re.findall(r"`(\w+)`", details)) for kind, how, details in found}
    assert len(shown) == len(found)
    recorded = {
        (str(event.__struct_config__.tag), "recorded"): {*event.__struct_fields__}
        - {"at_ms", "node"}
        for event in get_args(Event)
        if event.__struct_config__.tag not in views._HIDDEN_KINDS
    }
    for event in (RecordedCall, RecordedIntent):  # the same kinds, with their arguments
        names = {*event.__struct_fields__, "arguments_omitted"} - {"at_ms", "node"}
        recorded[str(event.__struct_config__.tag), "recorded"] |= names
    assert {key: names for key, names in shown.items() if key[1] == "recorded"} == recorded
    assert {kind for kind, how in shown if how == "ephemeral"} == set(ephemeral.KINDS)


KILL = "__import__('os')._exit(9) or "


@pytest.mark.parametrize("place", ['print("mailing:"', "await ctx.wait(", None])
def test_the_example_of_the_readme_goes_on_where_it_was_killed(
    place: str | None, tmp_path: Path
) -> None:
    code = dict(examples())["README.md-0"]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    program = tmp_path / "app.py"

    def started() -> subprocess.Popen[str]:
        # -u: a process that is killed flushes nothing.
        command = [sys.executable, "-u", str(program)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    def holdfast(*command: str) -> None:
        url = ("--url", "sqlite:///runs.db")
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "run", *command, *url],
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    assert place is None or code.count(place) == 1
    program.write_text(code if place is None else code.replace(place, KILL + place))
    with started() as first:
        if place is None:  # while it waits
            assert first.stdout is not None
            assert first.stdout.readline() == "mailing: Please approve order 42\n"
            holdfast("until", "order-42", "waiting", "--timeout", "30s")
            first.kill()
        printed, _ = first.communicate(timeout=60)
        assert printed.count("mailing") == (place == "await ctx.wait(")
    program.write_text(code)
    with started() as second:
        holdfast("until", "order-42", "waiting", "--timeout", "30s")
        holdfast("signal", "order-42", "approved", "true")
        printed, _ = second.communicate(timeout=60)
        # A call is recorded before the run pauses; a kill right after the call comes before that.
        assert printed.count("mailing") == (place is not None)
        assert printed.endswith("shipped\n")


@pytest.mark.parametrize("number", [0, 1], ids=["document.py", "refund.py"])
def test_a_program_of_the_guide_about_crashes_goes_on_in_its_second_start(
    number: int, tmp_path: Path
) -> None:
    page = ROOT / "docs" / "guides" / "crashes.md"
    session = re.compile(r"\$ python (\w+\.py)\nKilled\n\$ python \1\n(.*?)```", re.DOTALL)
    name, printed = session.findall(page.read_text())[number]
    (tmp_path / name).write_text(dict(examples())[f"{page_id(page)}-{number}"])
    first, second = (
        subprocess.run(
            [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        for _ in range(2)
    )
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.stdout == printed, second.stderr


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page_id(page)} links to {link}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in anchors:
            number += 1
        anchors.add(name)
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_name_headings_that_are_there(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        target = (page.parent / link) if link else page
        if "://" not in link and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{page_id(page)} links to {link}#{anchor}"


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    lines = (errors.__doc__ or "").splitlines()
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in lines:
        found = re.match(r"^    ([│├└─ ]*)(\w+)", line)
        if not found or not hasattr(errors, found[2]):
            continue
        depth = len(found[1]) // 4
        path = [*path[:depth], found[2]]
        drawn[found[2]] = path[depth - 1] if depth else None
    defined = {
        name: cls.__mro__[1].__name__
        for name in errors.__all__
        if (cls := getattr(errors, name)) is not errors.HoldfastError
    }
    assert drawn == {"HoldfastError": None, **defined}


def test_an_error_is_named_by_where_it_is_imported_from() -> None:
    """Journals hold these names, and what is written there has to be known for good."""
    named = [getattr(errors, name) for name in errors.__all__]
    assert {error.__module__ for error in named} == {"holdfast.errors"}


def test_every_error_has_a_code_of_its_own_and_a_message() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    assert (
        str(errors.Throttled())
        == "The store was too busy for the whole retry budget; try again later."
    )
    assert [cls.__name__ for cls in classes if cls.retryable] == [
        "EndpointUnreachable",
        "ExtractionUnavailable",
        "InboxFull",
        "ModelUnavailable",
        "NotReady",
        "RunClosing",
        "SearchUnavailable",
        "ServerStopping",
        "ServerUnavailable",
        "StoreUnavailable",
        "Throttled",
        "TooManyRequests",
        "UploadInterrupted",
        "UploadsBusy",
    ]
