"""``holdfast run``: what an operator types, and what comes of it."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import handle
from holdfast.cli.targets import load_graphs
from holdfast.clock import SystemClock
from holdfast.errors import AccessDenied, JournalDamaged
from holdfast.records.keys import RunKey
from holdfast.sync import Holdfast as Blocking
from holdfast.sync import RunHandle
from tests.cli.conftest import Holdfast

URL = "sqlite:///runs.db"
DEADLINE_SECONDS = 60
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
# A table of runs leaves out the day on which a run was started.
UPDATED = r"\d\d:\d\d:\d\d\.\d{3}Z"
LIST_COLUMNS = "STARTED UPDATED STATUS GRAPH NODE ID COST LABELS REASON"


@contextmanager
def working() -> Iterator[Blocking]:
    """Run what is started in the store."""
    with Blocking(URL) as hf, hf.worker(load_graphs(["flows"]), poll=0.01):
        yield hf


def until(run: RunHandle, status: str) -> None:
    while run.get().status != status:
        assert run.get().status in ("ready", "running", "waiting", status)


# --- start ----------------------------------------------------------------------------------------


def test_start_prints_the_id_and_starts_once(holdfast: Holdfast) -> None:
    for _ in range(2):
        done = holdfast("run", "start", "flows:counting", '{"number": 1}', "--id", "a")
        assert (done.exit_code, done.stdout) == (0, "a\n"), done.stderr
    other = holdfast("run", "start", "flows:counting", '{"number": 2}', "--id", "a")
    assert (other.exit_code, other.stdout) == (1, "")
    assert "[already_exists]" in other.stderr
    unnamed = holdfast("run", "start", "flows:counting")
    assert re.fullmatch(r"[0-9a-f-]{36}\n", unnamed.stdout), unnamed.output


def test_start_hands_on_everything(holdfast: Holdfast) -> None:
    start = ["run", "start", "flows:asking", "-", "--id", "a", "--tenant", "t", "--user", "u"]
    more = ["--label", "k=v=w", "--label", "l=", "--start-at", "2030-01-02T03:04:05"]
    assert holdfast(*start, *more, input="{}").exit_code == 1, "a label has a value"
    more = ["--label", "k=v=w", "--label", "l=m", "--start-at", "2030-01-02T03:04:05"]
    more += ["--pool", "gpu"]
    done = holdfast(*start, *more, "--expires", "30m", input='{"mood": "good"}')
    assert done.exit_code == 0, done.output
    row = json.loads(holdfast("run", "show", "a", "--tenant", "t", "--json").stdout)
    assert row["labels"] == {"k": "v=w", "l": "m", "pool": "gpu"}
    assert row["user"]
    assert row["due_at"] == "2030-01-02T03:04:05.000Z"
    assert row["expires_at"] == "2030-01-02T03:34:05.000Z"
    assert (row["graph"], row["version"], row["status"]) == ("asking", 2, "waiting")


def test_a_time_may_say_its_zone(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a", "--start-at", "2030-01-02T05:04:05+02:00")
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    assert row["due_at"] == "2030-01-02T03:04:05.000Z"


def test_start_waits_for_the_result(holdfast: Holdfast) -> None:
    with working():
        done = holdfast("run", "start", "flows:counting", '{"number": 1}', "--id", "a", "--wait")
        assert (json.loads(done.stdout), done.stderr) == ({"number": 2}, "a\n")
        failed = holdfast("run", "start", "flows:failing", '{"mood": "bad"}', "--wait")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "failed at node 'fail' (" in failed.stderr
    assert "flows.py:45): ValueError: a\\x1b[31mred\nerror [run_failed]" in failed.stderr


def test_start_says_that_no_worker_claims_the_run(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.run._SILENT_SECONDS", 0.01)
    start = ["run", "start", "flows:counting", "--id", "a", "--wait"]
    done = holdfast(*start, "--timeout", "300ms")
    told = (
        "it is ready, and no worker has claimed it yet: is a worker with graph 'counting' running?"
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "a",
        f"run a has not ended: {told}",
        f"Error: run 'a' has not ended within 300ms: {told}",
    ]
    with working():
        assert json.loads(holdfast(*start, "--timeout", "1m").stdout) == {"number": 1}


@pytest.mark.only_on_a_store
@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["flows:counting", "--timeout", "0"], "timeout must be a duration such as '500ms'", 2),
        (["flows:counting", "{"], "this is not JSON", 2),
        (["flows:counting", "[NaN]"], "JSON has no NaN", 2),
        (["flows:counting", '{"number": "x"}'], "[invalid_input]", 1),
        (["flows:counting", "--label", "k"], "'k' must have the form name=value", 2),
        (["flows:counting", "--label", "k=1", "--label", "k=2"], "'k' is given twice", 2),
        (["flows:counting", "--start-at", "soon"], "'soon' is not a time such as", 2),
        (["flows:counting", "--expires", "0"], "expires must be a duration such as", 2),
        (["flows:counting", "--expires", "0s"], "[invalid_request]", 1),
        (["flows:counting", "--tenant", "a/b"], "[invalid_name]", 1),
        (["flows:counting", "--pool", "a/b"], "[invalid_name]", 1),
        (["flows:counting", "--pool", "a", "--label", "pool=b"], "[invalid_name]", 1),
        (["flows"], "several graphs: counting", 1),
        (["nowhere"], "there is no module 'nowhere'", 1),
        (["empty"], "the graph has no nodes [invalid_graph]", 1),
    ],
)
def test_what_start_refuses(
    holdfast: Holdfast, folder: Path, arguments: list[str], message: str, code: int
) -> None:
    (folder / "empty.py").write_text("from holdfast import Graph\ngraph = Graph('empty', dict)\n")
    done = holdfast("run", "start", *arguments)
    assert done.exit_code == code, done.output
    assert message in done.stderr
    assert done.stdout == ""
    opened = message in ("[invalid_input]", "[invalid_name]", "[invalid_request]")
    assert (folder / "runs.db").exists() == opened


# --- list -----------------------------------------------------------------------------------------


def test_list_shows_a_table(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a", "--label", "k=v", "--label", "l=m")
    holdfast("run", "start", "flows:asking", "--id", "b")
    done = holdfast("run", "list")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == LIST_COLUMNS.split()
    assert re.fullmatch(rf"{TIME}  {UPDATED}  ready   asking v2    ask    b", lines[1])
    counting = rf"{TIME}  {UPDATED}  ready   counting v1  count  a         k=v l=m"
    assert re.fullmatch(counting, lines[2])


def test_a_run_that_no_worker_claims_is_shown_as_such(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a", "--pool", "gpu")
    fresh = holdfast("run", "show", "a").stdout
    assert re.search(r"status +ready\n", fresh)
    assert "attention" not in fresh
    later = SystemClock().now_ms() + 75_000
    monkeypatch.setattr("holdfast.cli.run_reading.SystemClock.now_ms", lambda self: later)
    told = r"attention +no worker claimed the run for 1m1\ds: "
    told += r"is a worker with graph 'counting' \(pool 'gpu'\) running\?"
    assert re.search(told, holdfast("run", "show", "a").stdout)


def test_list_takes_a_reason(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a")
    holdfast("run", "start", "flows:counting", "--id", "b", "--start-at", "2280-01-01")
    _, line = holdfast("run", "list", "--paused-for", "scheduled").stdout.splitlines()
    assert re.fullmatch(rf"{TIME}  {UPDATED}  waiting  counting v1  \w+ +b +scheduled", line)
    wrong = holdfast("run", "list", "--paused-for", "asleep")
    assert wrong.exit_code == 2
    assert "'asleep' is not one of 'signal'" in wrong.stderr


def test_list_shows_a_row_that_cannot_be_read(holdfast: Holdfast, folder: Path) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a")
    holdfast("run", "start", "flows:counting", "--id", "b")
    spoilt = "UPDATE items SET body = x'c1', pk = pk || ? WHERE pk = 'RUN#default#a'"
    with closing(sqlite3.connect(folder / "runs.db")) as connection, connection:
        connection.execute(spoilt, ("\x1b[2J",))
    done = holdfast("run", "list", "--status", "ready")
    assert done.exit_code == 0, done.output
    _, ready, damaged = done.stdout.splitlines()
    assert ready.split()[-1] == "b"
    assert damaged.split() == ["?", "?", "damaged", "?", "?", "a\\x1b[2J"]
    alone = holdfast("run", "list", "--graph", "asking")
    assert (alone.exit_code, len(alone.stdout.splitlines())) == (0, 2)
    assert "no runs" not in alone.stderr


def test_list_takes_a_filter(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a", "--label", "k=v")
    holdfast("run", "start", "flows:asking", "--id", "b", "--label", "k=w")
    holdfast("run", "start", "flows:asking", "--id", "c", "--tenant", "t")
    holdfast("run", "cancel", "b")

    def ids(*options: str) -> list[str]:
        done = holdfast("run", "list", "--json", *options)
        assert done.exit_code == 0, done.output
        return [entry["id"] for entry in json.loads(done.stdout)["runs"]]

    assert ids() == ["b", "a"]
    assert ids("--tenant", "t") == ["c"]
    assert ids("--status", "cancelled") == ["b"]
    assert ids("--status", "cancelled", "--status", "ready") == ["b", "a"]
    assert ids("--status", "ready", "--status", "failed") == ["a"]
    assert ids("--graph", "counting") == ["a"]
    assert ids("--label", "k=w") == ["b"]
    assert ids("--since", "2000-01-01") == ["b", "a"]
    assert ids("--until", "2000-01-01T00:00:00+02:00") == []
    assert ids("--since", "2100-01-01T00:00:00Z") == []
    node = json.loads(holdfast("run", "show", "a", "--json").stdout)["node"]
    assert ids("--node", node) == ["a"]
    assert ids("--node", "nowhere") == []
    changed = json.loads(holdfast("run", "show", "b", "--json").stdout)["updated_at"]
    assert ids("--updated-since", changed) == ["b"]
    assert ids("--updated-until", changed) == ["a"]
    assert ids("--cost-max", "0") == ["b", "a"]
    assert ids("--cost-min", "0.01") == []


def test_list_goes_on_at_a_cursor(holdfast: Holdfast) -> None:
    for id in ("a", "b", "c"):
        holdfast("run", "start", "flows:counting", "--id", id)
    first = holdfast("run", "list", "--limit", "2")
    assert [line.split()[-1] for line in first.stdout.splitlines()] == ["REASON", "c", "b"]
    cursor = re.fullmatch(r"there may be more: --cursor '(.+)'\n", first.stderr)
    assert cursor
    second = json.loads(holdfast("run", "list", "--cursor", cursor[1], "--json").stdout)
    assert ([entry["id"] for entry in second["runs"]], second["cursor"]) == (["a"], None)
    none = holdfast("run", "list", "--graph", "asking")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "no runs\n")


# --- show and history -----------------------------------------------------------------------------


def test_show_tells_why_a_run_is_paused(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a", labels={"k": "v"}, user="u")
        until(run, "waiting")
    shown = holdfast("run", "show", "a").stdout
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in shown.splitlines())
    assert facts["id"] == "a"
    assert facts["graph"] == "asking v2"
    assert (facts["status"], facts["node"], facts["paused for"]) == ("waiting", "ask", "signal")
    assert re.fullmatch(f"the signal answer, since {TIME}", facts["waits for"])
    assert re.fullmatch(TIME, facts["expires"])
    assert facts["label"] == "k=v"
    assert "owner" not in facts
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    assert row["waits"][0]["signal"] == "answer"
    assert re.fullmatch(TIME, row["waits"][0]["since_at"])
    assert row["failure"] is None


def test_show_tells_why_a_run_failed_and_steers_no_terminal(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:failing"])[0], {"mood": "bad"}, id="a")
        until(run, "failed")
    shown = holdfast("run", "show", "a").stdout
    assert re.search(r"^failure +ValueError: a\\x1b\[31mred\\nerror$", shown, re.MULTILINE)
    assert "\x1b" not in shown
    failure = json.loads(holdfast("run", "show", "a", "--json").stdout)["failure"]
    assert (failure["type"], failure["message"]) == ("ValueError", "a\x1b[31mred\nerror")
    history = holdfast("run", "history", "a").stdout
    told = rf"^{TIME}  failed  fail  failure=ValueError: a\\x1b\[31mred\\nerror$"
    assert re.search(told, history, re.MULTILINE)
    assert re.search(r'^      File ".*flows\.py", line \d+, in fail$', history, re.MULTILINE)
    assert "\x1b" not in history
    details = json.loads(holdfast("run", "history", "a", "--json").stdout)[-1]["details"]
    assert details["failure"]["message"] == "a\x1b[31mred\nerror"


def test_history_shows_what_happened(holdfast: Holdfast) -> None:
    with working():
        holdfast("run", "start", "flows:counting", '{"number": 41}', "--id", "a", "--wait")
    lines = holdfast("run", "history", "a").stdout.splitlines()
    assert re.fullmatch(
        rf'{TIME}  node      count  visit=0 delta={{"number":42}} spent_ms=\d+', lines[0]
    )
    assert re.fullmatch(rf"{TIME}  finished", lines[1])
    entries = json.loads(holdfast("run", "history", "a", "--json").stdout)
    assert [entry["kind"] for entry in entries] == ["node", "finished"]
    assert entries[0]["details"]["delta"] == {"number": 42}


def test_history_shows_when_a_node_is_tried_again(holdfast: Holdfast) -> None:
    with working():
        holdfast("run", "start", "flows:stubborn", "--id", "a", "--wait")
    first = holdfast("run", "history", "a").stdout.splitlines()[0]
    told = rf"visit=0 failure=ValueError: not yet retry_at={TIME} spent_ms=\d+"
    assert re.fullmatch(rf"{TIME}  attempt   try_again  {told}", first)


def test_a_long_history_is_cut_unless_it_is_json(holdfast: Holdfast) -> None:
    with working():
        holdfast("run", "start", "flows:asking", "--id", "a")
        holdfast("run", "signal", "a", "answer", json.dumps("x" * 500))
        holdfast("run", "start", "flows:asking", "--id", "a", "--wait")
    shown = holdfast("run", "history", "a").stdout.splitlines()
    assert shown[0].endswith("x…")
    assert len(shown[0]) < 220
    assert f'"answer": "{"x" * 500}"' in holdfast("run", "history", "a", "--json").stdout


@pytest.mark.parametrize("payload", ["false", "0", "[]"])
def test_a_history_shows_a_no_as_well_as_a_yes(holdfast: Holdfast, payload: str) -> None:
    with working():
        holdfast("run", "start", "flows:asking", "--id", "a")
        holdfast("run", "signal", "a", "answer", payload)
        holdfast("run", "start", "flows:asking", "--id", "a", "--wait")
    shown = holdfast("run", "history", "a").stdout.splitlines()
    assert shown[0].endswith(f" payload={payload}")


# --- signal, cancel, retry ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "input", "answer"),
    [(['"yes"'], None, "yes"), (["-"], '"from a pipe"', "from a pipe")],
)
def test_signal_brings_a_payload(
    holdfast: Holdfast, payload: list[str], input: str | None, answer: str
) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a")
    for told in ("sent signal answer to run a", "run a had signal answer with this id already"):
        sent = holdfast("run", "signal", "a", "answer", *payload, "--signal-id", "1", input=input)
        assert (sent.exit_code, sent.stdout) == (0, f"{told}\n")
    other = holdfast("run", "signal", "a", "answer", '"no"', "--signal-id", "1")
    assert (other.exit_code, "[already_exists]" in other.stderr) == (1, True)
    with working() as hf:
        assert hf.run("a").result(timeout=DEADLINE_SECONDS) == {"answer": answer}
    late = holdfast("run", "signal", "a", "answer", '"no"')
    assert (late.exit_code, late.stdout) == (1, "")
    assert late.stderr == "Error: run 'a' is finished [run_ended]\n"


def test_signal_says_what_the_run_waits_for(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a")
    early = holdfast("run", "signal", "a", "early")
    assert early.stderr == "it is stored until the run waits for it\n"
    with working() as hf:
        until(hf.run("a"), "waiting")
        other = holdfast("run", "signal", "a", "other")
        assert other.stdout == "sent signal other to run a\n"
        assert other.stderr == "it is stored until the run waits for it; it waits for: answer\n"
        until(hf.run("a"), "waiting")
        awaited = holdfast("run", "signal", "a", "answer", '"yes"')
        assert (awaited.stdout, awaited.stderr) == ("sent signal answer to run a\n", "")


def test_signal_refuses_what_the_graph_does_not_take(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:approving", "--id", "a")
    # No worker has served the graph: the start has stored what it takes.
    check_refused_elsewhere(
        (("approved", '"true"'), "it must be true or false, got a string"),
        (("aproved", "true"), "run 'a' takes the signals approved; got 'aproved'"),
    )
    with working() as hf:
        until(hf.run("a"), "waiting")
    check_refused_elsewhere(
        (("approved", '"true"'), "it must be true or false, got a string"),
        (("aproved", "true"), "run 'a' takes the signals approved; got 'aproved'"),
    )
    assert holdfast("run", "signals", "a").stderr == "no signals are set aside\n"
    assert holdfast("run", "signal", "a", "approved", "true").exit_code == 0


def test_signals_lists_what_is_set_aside(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:deciding", "--id", "a")
    assert holdfast("run", "signals", "a").stderr == "no signals are set aside\n"
    holdfast("run", "signal", "a", "approved", '"early"', "--signal-id", "1")
    with working() as hf:
        until(hf.run("a"), "waiting")
    check_refused_elsewhere(
        (("approved", '"true"'), "it must be true or false, got a string"),
        (("approved", '"early"', "--signal-id", "1"), "has set the signal"),
    )
    listed = holdfast("run", "signals", "a")
    assert re.fullmatch(
        rf'{TIME}  approved  1  it must be true or false, got a string  "early"\n', listed.stdout
    )
    (aside,) = json.loads(holdfast("run", "signals", "a", "--json").stdout)
    assert (aside["name"], aside["payload"], aside["node"]) == ("approved", "early", "decide")
    assert "aside" in holdfast("run", "history", "a").stdout
    assert holdfast("run", "signal", "a", "approved", "true").exit_code == 0


def check_refused_elsewhere(*signals: tuple[tuple[str, ...], str]) -> None:
    """Check the error of each signal in another process, which does not have the graph."""
    command = [sys.executable, "-m", "holdfast", "run", "signal", "a"]
    for payload, error in signals:
        done = subprocess.run(
            [*command, *payload], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout) == (1, ""), done
        assert error in done.stderr


def test_retry_keeps_answers_if_told_to(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:approving", "--id", "a")
    holdfast("run", "signal", "a", "approved", "false")
    with working() as hf:
        until(hf.run("a"), "failed")
        late = holdfast("run", "signal", "a", "approved", "true")
        assert (late.exit_code, late.stderr) == (
            1,
            "Error: run 'a' is failed, and takes no signals: retry it ('holdfast run retry', or "
            "retry() of its handle), then it goes on and its waits ask again [run_ended]\n",
        )
        kept = holdfast("run", "retry", "a", "--keep-answers")
        assert (kept.stdout, kept.stderr) == ("run a is retried\n", "")
        while len(hf.run("a").history().entries) < 4:  # taken, failed, retried, failed
            pass
        until(hf.run("a"), "failed")
        every = ["run", "retry", "--all", "--graph", "approving", "--yes", "--keep-answers"]
        assert holdfast(*every).stdout == "1 seen, 1 retried, 0 refused, 0 failed\n"
        while len(hf.run("a").history().entries) < 6:
            pass
        until(hf.run("a"), "failed")
        told = "waits that were answered ask again: --keep-answers keeps the answers\n"
        assert holdfast("run", "retry", "a").stderr == told
        until(hf.run("a"), "waiting")
    refused = holdfast("run", "retry", "a", "--keep-answers", "--from-node", "approve")
    assert "[invalid_request]" in refused.stderr


def test_signal_says_that_the_run_took_it_and_waits_again(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:approving", "--id", "a")
    send = ["run", "signal", "a", "approved", "false", "--signal-id", "1"]
    holdfast(*send)
    with working() as hf:
        until(hf.run("a"), "failed")
        assert holdfast(*send).stderr == ""
        holdfast("run", "retry", "a")
        until(hf.run("a"), "waiting")
        repeated = holdfast(*send)
    assert repeated.stdout == "run a had signal approved with this id already\n"
    assert repeated.stderr == (
        "the run took it before, and waits again: pass another --signal-id\n"
    )


def test_cancel_ends_a_run(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a")
    done = holdfast("run", "cancel", "a", "--reason", "ordered twice")
    assert (done.exit_code, done.stdout) == (0, "run a is cancelled\n")
    assert re.fullmatch(
        rf"{TIME}  cancelled    reason=ordered twice\n", holdfast("run", "history", "a").stdout
    )


def test_extend_lets_a_run_expire_later(holdfast: Holdfast) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a", "--expires", "1h")
    done = holdfast("run", "extend", "a", "36h")
    assert done.exit_code == 0
    assert re.fullmatch(rf"run a expires at {TIME}\n", done.stdout)
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    left = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
    assert left >= timedelta(hours=36)
    assert re.fullmatch(
        rf"{TIME}  extended    expires_at={TIME} ttl=\d+ kept=keep-\d+d\n",
        holdfast("run", "history", "a").stdout,
    )
    shorter = holdfast("run", "extend", "a", "30m")
    assert (shorter.exit_code, shorter.stdout) == (1, "")
    assert "an expiry is never shortened" in shorter.stderr
    assert "[expiry_not_later]" in shorter.stderr


def test_a_failed_run_is_extended_and_retried(holdfast: Holdfast) -> None:
    with working() as hf:
        until(hf.start(load_graphs(["flows:failing"])[0], {"mood": "bad"}, id="a"), "failed")
    done = holdfast("run", "extend", "a", "36h")
    assert (done.exit_code, done.stderr) == (0, "")
    assert holdfast("run", "retry", "a").exit_code == 0
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    left = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
    assert (row["status"], left >= timedelta(hours=36)) == ("ready", True)


def test_a_run_expires_when_its_graph_says_so(holdfast: Holdfast) -> None:
    for id, more, lasts in (("a", (), 3), ("b", ("--expires", "5h"), 5)):
        assert holdfast("run", "start", "flows:failing", "--id", id, *more).exit_code == 0
        row = json.loads(holdfast("run", "show", id, "--json").stdout)
        left = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
        assert left == timedelta(hours=lasts)
    done = holdfast("run", "start", "flows:counting", "--id", "c")
    assert done.exit_code == 0
    row = json.loads(holdfast("run", "show", "c", "--json").stdout)
    left = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(row["created_at"])
    assert left == timedelta(days=7)


@pytest.mark.parametrize("span", ["3", "d", "3y", "-3d", "3 d", "", "1e3d", "0d", "٣d"])
def test_extend_takes_only_a_span_of_time(holdfast: Holdfast, span: str) -> None:
    holdfast("run", "start", "flows:asking", "--id", "a")
    done = holdfast("run", "extend", "--", "a", span)
    assert (done.exit_code != 0, done.stdout) == (True, "")
    assert "duration such as" in done.stderr or "[invalid_request]" in done.stderr


def test_retry_lets_a_failed_run_go_on(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:failing"])[0], {"mood": "bad"}, id="a")
        until(run, "failed")
    done = holdfast("run", "retry", "a", "--from-node", "fail")
    assert (done.exit_code, done.stdout) == (0, "run a is retried\n")
    again = holdfast("run", "retry", "a")
    assert (again.exit_code, "[not_retryable]" in again.stderr) == (1, True)
    assert json.loads(holdfast("run", "show", "a", "--json").stdout)["status"] == "ready"
    with working() as hf:
        until(hf.run("a"), "failed")
    entries = json.loads(holdfast("run", "history", "a", "--json").stdout)
    assert [entry["kind"] for entry in entries] == ["failed", "reroute", "failed"]
    assert entries[1]["details"]["to"] == "fail"


# --- watching -------------------------------------------------------------------------------------


def test_watch_shows_what_happens_until_the_end(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a")
        until(run, "waiting")
        run.signal("answer", "yes")
        done = holdfast("run", "watch", "a")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["signal", "node", "finished"]
    entries = [json.loads(line) for line in holdfast("run", "watch", "a", "--json").stdout.split()]
    assert [entry["kind"] for entry in entries] == ["signal", "node", "finished"]
    rest = holdfast("run", "watch", "a", "--after", entries[0]["cursor"], "--json")
    assert [json.loads(line) for line in rest.stdout.split()] == entries[1:]


def test_watch_shows_what_is_not_recorded_if_asked(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a")
        assert run.until("waiting", timeout=60).status == "waiting"
        run.signal("answer", "yes")
        run.result(timeout=60)
        done = holdfast("run", "watch", "a", "--ephemeral")
    kinds = [line.split("  ")[1] for line in done.stdout.splitlines()]
    assert kinds == ["snapshot", "started", "signal", "node", "finished", "ended"]
    shown = holdfast("run", "watch", "a", "--ephemeral", "--json").stdout.splitlines()
    entries = [json.loads(line) for line in shown]
    assert [entry.get("ephemeral", False) for entry in entries] == [
        kind in ("snapshot", "started", "ended") for kind in kinds
    ]


def test_until_waits_for_a_status(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a")
        done = holdfast("run", "until", "a", "waiting", "--timeout", "60s")
        assert (done.exit_code, done.stdout) == (0, "waiting\n")
        late = holdfast("run", "until", "a", "finished", "failed", "--timeout", "0.01s")
        assert late.exit_code == 1
        assert "was not 'finished' or 'failed' within 10ms: it waits for" in late.stderr
        run.signal("answer", "yes")
        run.result(timeout=60)
        ended = holdfast("run", "until", "a", "waiting")
    assert ended.exit_code == 1
    assert "is finished; it will not be 'waiting' [run_ended]" in ended.stderr
    wrong = holdfast("run", "until", "a", "done")
    assert wrong.exit_code == 2
    assert "'waiting'" in wrong.stderr


def test_tokens_show_what_is_said_and_where_it_begins_anew(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:speaking"])[0], id="a")
        done = holdfast("run", "tokens", "a")
        assert [piece.name for piece in run.tokens()] == ["small", "small", "small", "large"]
        assert list(hf.run("a").tokens(follow=False)) == list(run.tokens())
    assert done.exit_code == 0, done.output
    assert done.stdout == "not \na\\x1b[31m\nb\n\ndone\n"
    assert done.stderr == "small starts again\n" * 2
    pieces = [
        json.loads(line)
        for line in holdfast("run", "tokens", "a", "--json").stdout.split("\n")[:-1]
    ]
    assert [piece["restarted"] for piece in pieces] == [False, True, True, False]
    rest = holdfast("run", "tokens", "a", "--after", pieces[2]["cursor"])
    assert (rest.stdout, rest.stderr) == ("done\n", "large starts again\n")
    silent = holdfast("run", "tokens", "a", "--after", pieces[-1]["cursor"])
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "no text\n")


def test_a_history_is_shown_from_a_cursor_and_up_to_a_limit(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a")
        run.signal("answer", "yes")
        run.result(timeout=DEADLINE_SECONDS)
    whole = json.loads(holdfast("run", "history", "a", "--json").stdout)
    assert len(whole) == 3
    monkeypatch.setattr("holdfast.cli.run_reading.LIMIT_MAX", 1)  # so that there are pages
    paged = holdfast("run", "history", "a", "--json")
    assert (json.loads(paged.stdout), paged.stderr) == (whole, "")
    two = holdfast("run", "history", "a", "--json", "--limit", "2")
    assert json.loads(two.stdout) == whole[:2]
    assert two.stderr == f"there may be more: --cursor {whole[1]['cursor']}\n"
    rest = holdfast("run", "history", "a", "--cursor", whole[1]["cursor"])
    assert [line.split("  ")[1] for line in rest.stdout.splitlines()] == ["finished"]
    holdfast("run", "start", "flows:asking", "--id", "b")
    assert holdfast("run", "history", "b", "--json").stdout == "[]\n"
    nothing = holdfast("run", "history", "b")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no entries\n")


# --- many at once ---------------------------------------------------------------------------------


def many(holdfast: Holdfast, count: int) -> None:
    for number in range(count):
        holdfast("run", "start", "flows:asking", "--id", f"a{number}", "--label", "k=v")


@pytest.mark.only_on_a_store
def test_all_of_a_filter_are_cancelled(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.client.bulk._RUNS_PER_PAGE", 2)
    many(holdfast, 3)
    asked = ["run", "cancel", "--all", "--graph", "asking", "--label", "k=v"]
    counted = holdfast(*asked, "--dry-run")
    assert (counted.exit_code, counted.stdout.splitlines()[-1]) == (0, "3 would be cancelled")
    refused = holdfast(*asked, input="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Cancel all runs with graph asking, label k=v? [y/N]" in refused.stderr
    more = ["--node", "ask", "--cost-min", "0", "--cost-max", "1.5"]
    more += ["--updated-since", "2026-01-01", "--updated-until", "2280-01-01"]
    told = (
        "node ask, updated since 2026-01-01T00:00:00.000Z, updated until 2280-01-01T00:00:00.000Z, "
        "a cost of at least $0, a cost of at most $1.5? [y/N]"
    )
    assert told in holdfast(*asked, *more, input="n\n").stderr
    either = holdfast(*asked, "--status", "waiting", "--status", "ready", input="n\n").stderr
    assert "Cancel all runs with status ready or waiting, graph asking, label k=v?" in either
    assert '"ready"' in holdfast("run", "show", "a0", "--json").stdout
    limited = holdfast(*asked, "--limit", "1", "--yes", "--reason", "enough")
    assert limited.stdout == "1 seen, 1 cancelled, 0 refused, 0 failed\n"
    cursor = re.search(r"--cursor '(.*)'", limited.stderr)
    assert cursor
    done = holdfast(*asked, "--cursor", cursor[1], input="y\n")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "2 seen, 2 cancelled, 0 refused, 0 failed"
    for number in range(3):
        assert '"cancelled"' in holdfast("run", "show", f"a{number}", "--json").stdout
    assert "reason=enough" in holdfast("run", "history", "a2").stdout


def test_all_of_a_filter_are_retried(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:failing"])[0], {"mood": "bad"}, id="a")
        until(run, "failed")
    either = ["--status", "failed", "--status", "quarantined"]
    done = holdfast("run", "retry", "--all", *either, "--since", "2026-01-01", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 seen, 1 retried, 0 refused, 0 failed\n")
    assert '"ready"' in holdfast("run", "show", "a", "--json").stdout


def test_the_exit_code_tells_of_failures(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(holdfast, 2)

    async def damaged(*arguments: object, **options: object) -> None:
        raise JournalDamaged("it is \x1b[31mdamaged")

    monkeypatch.setattr("holdfast.handle.cancel_run", damaged)
    done = holdfast("run", "cancel", "--all", "--everything", "--yes")
    assert (done.exit_code, done.stdout) == (1, "2 seen, 0 cancelled, 0 refused, 2 failed\n")
    assert "run 'a0': it is \\x1b[31mdamaged [journal_damaged]" in done.stderr
    assert "Error: 2 of them failed" in done.stderr


@pytest.mark.only_on_a_store
def test_a_store_that_goes_away_leaves_a_cursor(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.client.bulk._RUNS_PER_PAGE", 1)
    many(holdfast, 2)
    cancel, calls = handle.cancel_run, list[str]()

    async def once(kernel: Any, run: RunKey, **options: Any) -> Any:
        calls.append(run.id)
        if len(calls) > 1:
            raise AccessDenied("the key was revoked")
        return await cancel(kernel, run, **options)

    monkeypatch.setattr("holdfast.handle.cancel_run", once)
    done = holdfast("run", "cancel", "--all", "--graph", "asking", "--yes")
    assert (done.exit_code, done.stdout) == (1, "1 seen, 1 cancelled, 0 refused, 0 failed\n")
    assert re.search(r"there may be more: --cursor '\d{13}#a1'\n", done.stderr)
    assert "[access_denied]" in done.stderr


# --- all of them ----------------------------------------------------------------------------------

LOOKING = [["list"], ["show", "a"], ["history", "a"], ["watch", "a"], ["tokens", "a"]]
ACTING = [["signal", "a", "b"], ["cancel", "a"], ["extend", "a", "3d"], ["retry", "a"]]
START = ["start", "flows:counting"]


@pytest.mark.parametrize("arguments", [*LOOKING, *ACTING], ids=" ".join)
def test_a_mistyped_store_is_an_error_and_makes_no_file(
    holdfast: Holdfast, folder: Path, arguments: list[str]
) -> None:
    done = holdfast("run", *arguments, "--url", "sqlite:///typo.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no file typo.db [store_not_found]" in done.stderr
    assert not (folder / "typo.db").exists()


@pytest.mark.parametrize("arguments", [*LOOKING[1:], *ACTING], ids=" ".join)
def test_a_run_of_another_tenant_is_not_there(holdfast: Holdfast, arguments: list[str]) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a")
    done = holdfast("run", *arguments, "--tenant", "t")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "[run_not_found]" in done.stderr


@pytest.mark.only_on_a_store
@pytest.mark.parametrize("arguments", [*LOOKING, *ACTING, START], ids=" ".join)
def test_the_help_has_an_example_and_the_store_has_to_be_named(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    shown = holdfast("run", arguments[0], "--help").stdout
    assert f"Example:\n    holdfast run {arguments[0]}" in shown
    assert "HOLDFAST_URL" in shown
    monkeypatch.delenv("HOLDFAST_URL")
    done = holdfast("run", *arguments)
    assert done.exit_code == 2
    assert "Missing option '--url'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--status", "lost"], "'lost' is not one of"),
        (["list", "--graph", "a", "--graph", "b"], "--graph may be given once, got it 2 times"),
        (["list", "--since", "2026-01-01", "--since", "2026-02-01"], "--since may be given once"),
        (["cancel", "--all", "--node", "a", "--node", "b"], "--node may be given once"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["list", "--since", "13th"], "'13th' is not a time"),
        (["signal", "a", "b", "{"], "this is not JSON"),
        (["show"], "Missing argument 'ID'"),
        (["cancel"], "give the ID of a run, or --all"),
        (["cancel", "a", "--all", "--graph", "g"], "but not both"),
        (["cancel", "--all"], "--all needs a filter"),
        (["cancel", "--all", "--status", "failed"], "'failed' is not one of"),
        (["cancel", "a", "--graph", "g"], "a filter needs --all"),
        (["retry", "--all", "--graph", "g", "--from-node", "n"], "--from-node is for one run"),
        (["retry", "--all", "--status", "waiting"], "'waiting' is not one of"),
    ],
)
def test_bad_usage_has_exit_code_2(holdfast: Holdfast, arguments: list[str], message: str) -> None:
    done = holdfast("run", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--cursor", "x"],
        ["history", "a", "--cursor", "x"],
        ["watch", "a", "--after", "x"],
        ["tokens", "a", "--after", "x"],
        ["cancel", "--all", "--graph", "g", "--yes", "--cursor", "x"],
    ],
    ids=" ".join,
)
def test_a_foreign_cursor_is_refused(holdfast: Holdfast, arguments: list[str]) -> None:
    holdfast("run", "start", "flows:counting", "--id", "a")
    done = holdfast("run", *arguments)
    assert (done.exit_code, "[invalid_query]" in done.stderr) == (1, True)


# --- sessions -------------------------------------------------------------------------------------


def test_queue_shows_who_waits_for_whom(holdfast: Holdfast) -> None:
    start = ["run", "start", "flows:asking", "--session", "chat-7", "--user", "ann"]
    for id in ("a", "b"):
        assert holdfast(*start, "--id", id).exit_code == 0
    shown = holdfast("run", "queue", "chat-7", "--user", "ann").stdout.splitlines()
    assert re.fullmatch(r"NUMBER  STARTED +STATUS +PAUSED FOR  ID", shown[0])
    assert re.fullmatch(rf"1 +{TIME}  ready +a", shown[1])
    assert re.fullmatch(rf"2 +{TIME}  waiting  queued +b", shown[2])
    entries = json.loads(holdfast("run", "queue", "chat-7", "--user", "ann", "--json").stdout)
    assert [(entry["number"], entry["id"]) for entry in entries] == [(1, "a"), (2, "b")]
    others = holdfast("run", "queue", "chat-7")
    assert (others.exit_code, others.stdout) == (0, "")
    assert others.stderr == "no open runs in the session without a user (--user names one)\n"
    assert re.search(r"^session +chat-7$", holdfast("run", "show", "b").stdout, re.MULTILINE)


def test_a_busy_session_rejects_or_takes_the_input(holdfast: Holdfast) -> None:
    start = ["run", "start", "flows:asking", "--session", "chat-7"]
    with working() as hf:
        holdfast(*start, "--id", "a")
        until(hf.run("a"), "waiting")
        busy = holdfast(*start, "--id", "b", "--on-busy", "reject")
        assert (busy.exit_code, busy.stdout) == (1, "")
        assert busy.stderr == "Error: run 'a' of session 'chat-7' is open [session_busy]\n"
        taken = holdfast(*start, '{"mood": "good"}', "--id", "c", "--on-busy", "promote")
        assert (taken.exit_code, taken.stdout) == (0, "a\n")
        until(hf.run("a"), "failed")  # it asked for text
    entries = json.loads(holdfast("run", "history", "a", "--json").stdout)
    assert entries[0]["details"]["payload"] == {"mood": "good"}
    shown = holdfast("run", "show", "c").stdout
    assert re.search(r"^status +promoted$", shown, re.MULTILINE)
    assert re.search(r"^went into +run a$", shown, re.MULTILINE)
    unclear = holdfast("run", "start", "flows:asking", "--on-busy", "queue")
    assert (unclear.exit_code, "on_busy needs a session" in unclear.stderr) == (1, True)


# --- children -------------------------------------------------------------------------------------


def test_children_are_listed_and_know_their_parent(holdfast: Holdfast) -> None:
    with working() as hf:
        assert holdfast("run", "start", "flows:parent", "--id", "p").exit_code == 0
        until(hf.run("p"), "waiting")
        until(hf.run("child"), "waiting")
        shown = holdfast("run", "children", "p").stdout.splitlines()
        assert shown[0].split() == LIST_COLUMNS.split()
        child = rf"{TIME}  {UPDATED}  waiting  asking v2  ask   child        kind=page  signal"
        assert re.fullmatch(child, shown[1])
        entries = json.loads(holdfast("run", "children", "p", "--json").stdout)
        assert [(entry["id"], entry["status"]) for entry in entries] == [("child", "waiting")]
        child = holdfast("run", "show", "child").stdout
        assert re.search(r"^child of +run p$", child, re.MULTILINE)
        waiting = holdfast("run", "show", "p").stdout
        assert re.search(r"^waits for +the end of run child, since ", waiting, re.MULTILINE)
        assert json.loads(holdfast("run", "show", "child", "--json").stdout)["parent"] == "p"
        holdfast("run", "cancel", "p")
    none = holdfast("run", "children", "child")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "no runs\n")
    missing = holdfast("run", "children", "nobody")
    assert (missing.exit_code, "[run_not_found]" in missing.stderr) == (1, True)
