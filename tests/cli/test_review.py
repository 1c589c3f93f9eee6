"""``holdfast review``: what a reviewer types, and what comes of it."""

from __future__ import annotations

import getpass
import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.review_text import trail_cells
from holdfast.cli.targets import load_graphs
from holdfast.model.review import ReviewAction
from holdfast.server import ServerOptions
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast
from tests.cli.serving import serving

URL = "sqlite:///runs.db"
HOSTILE = "Sell\x1b[2J it?\nReally\u202e?"


@pytest.fixture
def working(folder: Path) -> Iterator[Blocking]:
    """Run what is started in the store."""
    with Blocking(URL) as hf, hf.worker(load_graphs(["flows"]), poll=0.01):
        yield hf


def asked(hf: Blocking, id: str = "sale-1", **given: Any) -> str:
    """Start a run that asks for a review; return the review's id."""
    hf.start(load_graphs(["flows:selling"])[0], given, id=id)
    (wait,) = hf.run(id).until("waiting", timeout=30).waits
    return f"{id}~{wait.kind.subject}"


def test_a_printed_command_is_one_command(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working, "o'clock; echo $HOME '")
    for typed in (["review", "show", id], ["run", "show", id.partition("~")[0]]):
        shown = holdfast(*typed).stdout
        command = next(line for line in shown.splitlines() if "review approve" in line)
        typed_again = shlex.split(command.partition("holdfast review ")[2].partition(" (or")[0])
        assert typed_again == ["approve", id]


def answer_of(hf: Blocking, id: str = "sale-1") -> str:
    return hf.run(id).result(timeout=30)["answer"]


def test_reviews_are_listed_and_shown(holdfast: Holdfast, working: Blocking) -> None:
    assert holdfast("review", "list").stderr == "no reviews\n"
    id = asked(working)
    header, line = holdfast("review", "list").stdout.splitlines()
    assert header.split() == [
        "ASKED", "STATUS", "ID", "EXPIRES", "ASSIGNEES", "GRAPH", "QUESTION",
    ]  # fmt: skip
    assert line.split()[1:3] == ["pending", id]
    assert "every reviewer" in line
    (entry,) = json.loads(holdfast("review", "list", "--json").stdout)["reviews"]
    assert (entry["id"], entry["question"]) == (id, "Sell it?")
    shown = holdfast("review", "show", id).stdout
    assert shown.startswith("Sell it?\n")
    for part in (id, "every reviewer", "months", '"item": "a\\u001b[31mlamp"', "review approve"):
        assert part in shown, part
    assert json.loads(holdfast("review", "show", id, "--json").stdout)["values"]["months"] == 24


def test_the_waits_and_the_history_of_a_run_name_the_review(
    holdfast: Holdfast, working: Blocking
) -> None:
    id = asked(working)
    assert holdfast("run", "waits", "sale-1").stdout.rstrip().endswith(f", review {id}")
    assert holdfast("review", "reject", id, "--by", "ana").exit_code == 0
    answer_of(working)
    (line,) = [
        line
        for line in holdfast("run", "history", "sale-1").stdout.splitlines()
        if line.split()[1] == "signal"
    ]
    assert f"review={id} status=rejected by=ana" in line


def test_hostile_text_cannot_move_the_cursor(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working, mood=HOSTILE)
    assert holdfast("review", "comment", id, "\x1b[2Jdone\r", "--by", "ana").exit_code == 0
    for typed in (["list"], ["show", id], ["show", id, "--json"]):
        shown = holdfast("review", *typed).stdout
        assert shown.replace("\n", "").isprintable(), shown
    assert "Sell\\x1b[2J it?\nReally\\u202e?\n" in holdfast("review", "show", id).stdout


def test_an_approval_with_changed_values(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working)
    given = ["--set", "months=12", "--set", "note=12", "--set", "parts.bulb=3"]
    done = holdfast("review", "approve", id, "--by", "ana", "--comment", "fine", *given)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"review {id} is approved by ana at 20")
    assert done.stdout.endswith(": fine\n")
    assert answer_of(working) == "ana 12 12 {'bulb': 3}"
    again = holdfast("review", "reject", id, "--by", "bob")
    assert (again.exit_code, "[review_decided]" in again.stderr) == (1, True)
    assert "approved by ana at 20" in again.stderr
    listed = holdfast("review", "list", "--status", "decided").stdout
    assert "approved by ana" in listed


def test_a_decided_review_shows_what_was_approved_and_changed(
    holdfast: Holdfast, working: Blocking
) -> None:
    id = asked(working)
    holdfast("review", "edit", id, "--by", "bob", "--set", "months=18")
    edited = holdfast("review", "show", id).stdout
    assert "values:" in edited
    assert "  months: 24 → 18\n" in edited
    holdfast("review", "approve", id, "--by", "ana", "--comment", "fine", "--set", "months=12")
    answer_of(working)
    shown = holdfast("review", "show", id).stdout
    _, approved = shown.split("approved values:\n")
    values, trail = approved.split("trail:\n")
    assert '"months": 12' in values
    assert "  months: 24 → 12\n" in values
    assert '"months": 18' not in values
    (decided,) = [line for line in trail.splitlines() if " decided " in line]
    assert decided.split()[1:3] == ["decided", "ana"]
    assert " approved: fine; values {" in decided
    assert '"months":12' in decided.replace(" ", "")
    assert "digest" not in trail
    assert "at_ms" not in trail


def test_a_review_of_a_cancelled_run_says_why_it_was_withdrawn(
    holdfast: Holdfast, working: Blocking
) -> None:
    id = asked(working)
    working.run("sale-1").cancel("the lamp is sold")
    working.run("sale-1").until("cancelled", timeout=30)
    shown = holdfast("review", "show", id).stdout
    assert "the run was cancelled: the lamp is sold" in shown


def test_a_trail_tells_reminders_from_requests() -> None:
    def line(**data: Any) -> str:
        action = ReviewAction(
            position=0, kind="notified", by=None, at=datetime(2026, 1, 1, tzinfo=UTC),
            data={"to": {"ana": ["smtp"]}, **data}, hash="",
        )  # fmt: skip
        return trail_cells(action)[1]

    assert line(notice="requested") == line(notice="reassigned") == line() == "notified"
    assert line(notice="reminder") == "reminded"
    assert line(notice="escalation") == "escalated"


def test_values_come_from_a_file_or_from_standard_input(
    holdfast: Holdfast, working: Blocking, folder: Path
) -> None:
    values = json.dumps({"months": 6, "note": "file", "parts": {}})
    (folder / "values.json").write_text(values)
    first, second = asked(working, "sale-1"), asked(working, "sale-2")
    given = ["--by", "ana", "--json", "--values"]
    done = holdfast("review", "approve", first, *given, "values.json", "--set", "months=7")
    assert json.loads(done.stdout)["decision"]["values"]["months"] == 7, done.output
    done = holdfast("review", "approve", second, *given, "-", input=values)
    assert json.loads(done.stdout)["decision"]["by"] == "ana"
    assert answer_of(working, "sale-2") == "ana 6 file {}"


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (["--set", "months"], 2, "must have the form name=value"),
        (["--set", "months=1", "--set", "months=2"], 2, "each name once"),
        (["--set", "months.x=1"], 1, "not an object"),
        (["--set", "months=many"], 1, "[invalid"),
        (["--values", "nothing.json"], 1, "cannot be read"),
        (["--seen", "0"], 1, "[review_changed]"),
    ],
)
def test_wrong_values_change_nothing(
    holdfast: Holdfast, working: Blocking, given: list[str], code: int, told: str
) -> None:
    id = asked(working)
    refused = holdfast("review", "approve", id, "--by", "ana", *given)
    assert (refused.exit_code, told in refused.stderr) == (code, True), refused.output
    assert json.loads(holdfast("review", "show", id, "--json").stdout)["status"] == "pending"


def test_a_rejection_and_a_withdrawal(holdfast: Holdfast, working: Blocking) -> None:
    first, second = asked(working, "sale-1"), asked(working, "sale-2")
    done = holdfast("review", "reject", first, "--by", "bob", "--comment", "no date")
    assert done.exit_code == 0, done.output
    assert answer_of(working, "sale-1") == "bob rejected: no date"
    done = holdfast("review", "withdraw", second, "--by", "ops", "--json")
    assert json.loads(done.stdout)["status"] == "withdrawn", done.output
    assert answer_of(working, "sale-2") == "ops withdrawn: "


def test_votes_of_a_quorum(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working, number=2)
    voted = holdfast("review", "approve", id, "--by", "ana")
    assert voted.stdout == f"review {id} has your vote; it is pending: 1 of 2 votes\n"
    again = holdfast("review", "approve", id, "--by", "ana")
    assert (again.exit_code, "[already_voted]" in again.stderr) == (1, True)
    assert "2 votes; 1 so far" in holdfast("review", "show", id).stdout
    other = holdfast("review", "approve", id, "--by", "eve")
    assert (other.exit_code, "[not_assigned]" in other.stderr) == (1, True)
    assert "approved" in holdfast("review", "approve", id, "--by", "bob").stdout


def test_claim_release_reassign_comment_and_edit(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working)

    def typed(action: str, *given: str, by: str = "ana") -> str:
        done = holdfast("review", action, id, *given, "--by", by)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert typed("claim") == f"review {id} is claimed by ana\n"
    refused = holdfast("review", "claim", id, "--by", "bob")
    assert (refused.exit_code, "[review_claimed]" in refused.stderr) == (1, True)
    assert "claimed by ana" in holdfast("review", "list").stdout
    typed("claim", "--take-over", by="bob")
    assert typed("release", by="bob") == f"review {id} is released\n"
    assert typed("reassign", "--to", "cem", "--to", "dan").endswith("assigned to cem, dan\n")
    refused = holdfast("review", "reassign", id, "--to", "ana", "--by", "ana")
    assert (refused.exit_code, "[not_assigned]" in refused.stderr) == (1, True)
    typed("reassign", "--to", "ana", "--force")
    assert typed("comment", "asked the dealer") == f"review {id} has the comment\n"
    assert typed("edit", "--set", "months=1") == f"review {id} has the new values\n"
    assert holdfast("review", "edit", id, "--by", "ana").exit_code == 2
    shown = holdfast("review", "show", id).stdout
    for part in ("asked the dealer", '"months": 1', "claimed", "released", "reassigned", "edited"):
        assert part in shown, part
    trail = json.loads(holdfast("review", "show", id, "--json").stdout)["trail"]
    kinds = [each["kind"] for each in trail if each["by"] in ("ana", "bob")]
    assert kinds == ["claimed"] * 2 + ["released"] + ["reassigned"] * 2 + ["commented", "edited"]


def test_a_review_that_is_not_there(holdfast: Holdfast, working: Blocking) -> None:
    asked(working)
    for id in ("sale-1", "nothing~0123456789abcdef", "sale-1~0123456789abcdef"):
        for action in ("show", "approve", "reject", "claim", "release", "link"):
            missing = holdfast("review", action, id)
            assert (missing.exit_code, "[review_not_found]" in missing.stderr) == (1, True)


def test_a_run_names_its_review_and_the_command(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working)
    shown = holdfast("run", "show", "sale-1").stdout
    assert f"{id}: holdfast review approve '{id}' (or show, reject)" in shown


def test_lists_have_filters_and_pages(holdfast: Holdfast, working: Blocking) -> None:
    mine, every = asked(working, "sale-1", number=1), asked(working, "sale-2")

    def listed(*given: str) -> list[str]:
        page = json.loads(holdfast("review", "list", "--json", *given).stdout)
        return [each["id"] for each in page["reviews"]]

    assert listed("--all") == [mine, every]
    assert listed("--assignee", "ana") == [mine, every]
    assert listed("--assignee", "bob") == [every]
    assert listed("--mine") == [every]
    assert listed("--run", "sale-1") == [mine]
    assert listed("--overdue") == []
    assert listed("--status", "approved") == []
    page = holdfast("review", "list", "--limit", "1")
    assert "there may be more: --cursor '" in page.stderr
    cursor = page.stderr.split("'")[1]
    assert listed("--cursor", cursor) == [every]
    assert holdfast("review", "list", "--mine", "--assignee", "ana").exit_code == 2


@pytest.mark.only_on_a_store
def test_on_a_store_the_user_of_the_process_acts(holdfast: Holdfast, working: Blocking) -> None:
    id = asked(working)
    assert holdfast("review", "approve", id).exit_code == 0
    assert answer_of(working).startswith(f"{getpass.getuser()} ")


@pytest.mark.only_on_a_store
def test_on_a_server_the_holder_of_the_key_acts(
    holdfast: Holdfast, working: Blocking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = asked(working, "sale-1"), asked(working, "sale-2")
    key = working.keys.create("ana", tenant="default", role="reviewer")
    monkeypatch.setenv("HOLDFAST_KEY", key.secret)
    with serving(folder, ServerOptions(authentication=True)) as url:
        done = holdfast("review", "approve", first, "--server", url)
        assert done.exit_code == 0, done.output
        refused = holdfast("review", "approve", second, "--by", "bob", "--server", url)
        assert (refused.exit_code, "[forbidden]" in refused.stderr) == (1, True)
    assert answer_of(working).startswith("ana ")


@pytest.mark.only_on_a_store
def test_a_link_is_printed(
    holdfast: Holdfast, working: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = asked(working)
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://runs.example.com")
    made = holdfast("review", "link", id, "--reviewer", "ana", "--expires", "1h")
    assert made.stdout.startswith("https://runs.example.com/r/"), made.output
    shown = json.loads(holdfast("review", "link", id, "--json").stdout)
    assert shown["id"] == id
    monkeypatch.delenv("HOLDFAST_PUBLIC_URL")
    assert holdfast("review", "link", id).exit_code == 1
