"""What runs do to the world, and spend: what an operator sees of it, and says about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Quota
from holdfast.cli.targets import load_dict, load_graph, load_graphs
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast

URL = "sqlite:///runs.db"
DEADLINE_SECONDS = 60
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

SHOP = """
from holdfast import Graph, Quota, Retry, tool
from holdfast.errors import ModelUnavailable
from holdfast.integrations.offline import Offline
from holdfast.model.pricing import ModelPrice

PRICE = ModelPrice(input_usd=1_000, output_usd=1_000)  # a tenth of a cent a token


class Cheap(Offline):
    def tokens_max(self, request):
        return 5, 5


class Busy(Offline):
    async def answer(self, request, emit):
        raise ModelUnavailable("later", retry_after_seconds=1000)


MODELS = {"cheap": Cheap(lambda request: "It is.", price=PRICE), "busy": Busy()}
QUOTAS = {"cheap": Quota("cheap", tokens=10, per=3600)}
no_model = {"cheap": 7}


@tool(idempotent=False)
async def pay(amount):
    raise ConnectionError("a\\x1b[31mtorn line")


paying = Graph("paying", dict)


@paying.node
async def settle(state, ctx):
    return {"receipt": await ctx.call(pay, 100)}


noting = Graph("noting", dict)


async def take_note(note):
    return "noted"


@noting.node
async def write(state, ctx):
    await ctx.call(take_note, state["note"])
    return {}


asking = Graph("asking", dict)


@asking.node
async def ask(state, ctx):
    return {"texts": [(await ctx.model("cheap", "Is it?")).text for _ in range(state["n"])]}


sharing = Graph("sharing", dict)


@sharing.node
async def delegate(state, ctx):
    return await ctx.run(asking, {"n": 1}, id="child")


hurrying = Graph("hurrying", dict)


@hurrying.node
async def hurry(state, ctx):
    await ctx.model("busy", "Is it?")
"""


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)


@contextmanager
def working(*, quotas: bool = False) -> Iterator[Blocking]:
    """Run what is started in the store."""
    means: dict[str, Any] = {"models": load_dict("shop:MODELS")}
    if quotas:
        means["quotas"] = load_dict("shop:QUOTAS")
    with Blocking(URL, **means) as hf, hf.worker(load_graphs(["shop"]), poll=0.01):
        yield hf


def paused(hf: Blocking, id: str, reason: str) -> None:
    while (row := hf.run(id).get()).reason != reason:
        assert row.status in ("ready", "running", "waiting")


def shown(done: Any) -> dict[str, str]:
    assert done.exit_code == 0, done.output
    return dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines())


# --- calls that may have been made ----------------------------------------------------------------


def ambiguous(holdfast: Holdfast, hf: Blocking, id: str) -> dict[str, str]:
    """Let a run come to a call of which nobody knows what became; return it as it is listed."""
    assert holdfast("run", "start", "shop:paying", "{}", "--id", id).exit_code == 0
    paused(hf, id, "ambiguous")
    listed = json.loads(holdfast("run", "ambiguous", "--json").stdout)
    return next(call for call in listed if call["run"] == id)


def test_calls_that_may_have_been_made_are_listed(holdfast: Holdfast) -> None:
    with working() as hf:
        call = ambiguous(holdfast, hf, "a")
        lines = holdfast("run", "ambiguous").stdout.splitlines()
        facts = shown(holdfast("run", "show", "a"))
    assert lines[0].split() == ["SINCE", "GRAPH", "NODE", "TOOL", "KEY", "RUN", "CALL", "ARGUMENTS"]
    told = rf"{TIME}  paying +settle +pay +{call['key']} +a +{call['call']} +{{\"amount\":100}}"
    assert re.fullmatch(told, lines[1])
    assert len(lines) == 2
    assert facts["paused for"] == "ambiguous"
    awaited = f"a person to say what became of call {call['call']} (pay {call['key']}), since "
    assert facts["waits for"].startswith(awaited)
    others = holdfast("run", "ambiguous", "--tenant", "t")
    assert (others.exit_code, others.stdout, others.stderr) == (0, "", "no calls\n")
    assert holdfast("run", "ambiguous", "--tenant", "t", "--json").stdout == "[]\n"


def test_a_history_shows_arguments_cut_or_in_full(holdfast: Holdfast) -> None:
    with working() as hf:
        note = "n" * 200
        assert holdfast("run", "start", "shop:noting", json.dumps({"note": note}), "--id", "a")
        hf.run("a").result(timeout=60)
        cut = holdfast("run", "history", "a").stdout
        full = holdfast("run", "history", "a", "--full").stdout
        entries = json.loads(holdfast("run", "history", "a", "--json").stdout)
    assert re.search(r'arguments={"note":"n+… result=noted$', cut, re.MULTILINE)
    assert f'arguments={{"note":"{note}"}}' in full
    assert entries[0]["details"]["arguments"] == {"note": note}


@pytest.mark.parametrize(
    ("way", "input", "receipt"),
    [
        (["--result", '{"n": 7}'], None, {"n": 7}),
        (["--result", "null"], None, None),
        (["--result", "-"], '"from a pipe"', "from a pipe"),
    ],
    ids=["result", "null", "pipe"],
)
def test_a_result_lets_the_run_go_on(
    holdfast: Holdfast, way: list[str], input: str | None, receipt: Any
) -> None:
    with working() as hf:
        call = ambiguous(holdfast, hf, "a")["call"]
        done = holdfast("run", "resolve", "a", call, *way, input=input)
        assert (done.exit_code, done.stdout) == (0, f"resolved call {call} of run a\n")
        assert hf.run("a").result(timeout=DEADLINE_SECONDS) == {"receipt": receipt}
    history = holdfast("run", "history", "a").stdout.splitlines()
    assert [line.split()[1] for line in history] == ["intent", "signal", "call", "node", "finished"]
    assert history[2].endswith(" by=person")
    assert "digest" not in history[0] + history[2]
    late = holdfast("run", "resolve", "a", call, "--void")
    assert (late.exit_code, late.stdout) == (1, "")


def test_an_error_is_told_to_the_node_and_steers_no_terminal(holdfast: Holdfast) -> None:
    with working() as hf:
        call = ambiguous(holdfast, hf, "a")["call"]
        assert holdfast("run", "resolve", "a", call, "--error", "a\x1b[31mno").exit_code == 0
        while hf.run("a").get().status != "failed":
            pass
    shown = holdfast("run", "history", "a").stdout
    assert "failure=CallFailed: a\\x1b[31mno" in shown
    assert "\x1b" not in shown


def test_what_is_void_is_made_again(holdfast: Holdfast) -> None:
    with working() as hf:
        call = ambiguous(holdfast, hf, "a")
        assert holdfast("run", "resolve", "a", call["call"], "--void").exit_code == 0
        while (again := list(hf.ambiguous())) == [] or again[0].key == call["key"]:
            pass
        assert again[0].call != call["call"]


def test_a_resolution_is_said_once_and_of_a_call_that_waits(holdfast: Holdfast) -> None:
    with working() as hf:
        call = ambiguous(holdfast, hf, "a")["call"]
    # No worker takes it up meanwhile.
    assert holdfast("run", "resolve", "a", call, "--result", "1").exit_code == 0
    assert holdfast("run", "resolve", "a", call, "--result", "1").exit_code == 0
    other = holdfast("run", "resolve", "a", call, "--void")
    assert (other.exit_code, "[already_exists]" in other.stderr) == (1, True)
    unknown = holdfast("run", "resolve", "a", "0" * 16, "--void")
    assert (unknown.exit_code, "[not_ambiguous]" in unknown.stderr) == (1, True)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ([], "exactly one of --result, --error and --void"),
        (["--void", "--error", "no"], "exactly one of"),
        (["--void", "--result", "null"], "exactly one of"),
        (["--result", "{"], "this is not JSON"),
    ],
)
def test_a_resolution_is_said_in_one_way(holdfast: Holdfast, way: list[str], message: str) -> None:
    holdfast("run", "start", "shop:paying", "--id", "a")
    done = holdfast("run", "resolve", "a", "0" * 16, *way)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


# --- budgets --------------------------------------------------------------------------------------


def test_a_budget_is_shown_and_raised(holdfast: Holdfast) -> None:
    start = ["run", "start", "shop:asking", '{"n": 2}', "--id", "a", "--usd", "0.012"]
    with working() as hf:
        assert holdfast(*start, "--tokens", "1000").exit_code == 0
        paused(hf, "a", "budget")
        facts = shown(holdfast("run", "show", "a"))
        assert facts["budget"] == "$0.012000, 1,000 tokens"
        cost = hf.run("a").get().cost_usd
        assert facts["spent"] == f"${cost:.6f}, {hf.run('a').get().tokens} tokens"
        lacks = (
            f"needs $0.010000, and ${0.012 - cost:.6f} are left: 5 input tokens by bytes, "
            "5 output tokens (max_tokens); lower max_tokens, set estimate=True or raise the budget"
        )
        awaited = rf"a larger budget: it {re.escape(lacks)}, since {TIME}, rechecks at {TIME}"
        assert re.fullmatch(awaited, facts["waits for"])
        told = shown(holdfast("run", "budget", "a"))
        assert (told["budget"], told["lacks"]) == (facts["budget"], f"it {lacks}")
        raised = shown(holdfast("run", "budget", "a", "--usd", "1", "--node-time", "2h"))
        assert raised["budget"] == "$1.000000, 1,000 tokens, 2h inside nodes"
        assert hf.run("a").result(timeout=DEADLINE_SECONDS)["texts"] == ["It is."] * 2
    told = json.loads(holdfast("run", "budget", "a", "--json").stdout)
    limits = {"usd": 1.0, "tokens": 1000, "node_time_seconds": 7200.0, "wall_seconds": None}
    assert told["budget"] == {**limits, "estimate": False}
    assert (told["cost_usd"], told["lacks"]) == (2 * cost, [])
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    assert (row["budget"], row["cost_usd"]) == (told["budget"], told["cost_usd"])
    late = holdfast("run", "budget", "a", "--usd", "2")
    assert (late.exit_code, "[run_ended]" in late.stderr) == (1, True)


def test_estimates_are_turned_on_and_off(holdfast: Holdfast) -> None:
    start = ["run", "start", "shop:asking", '{"n": 1}', "--id"]
    assert holdfast(*start, "a", "--usd", "0.5", "--estimate").exit_code == 0
    assert shown(holdfast("run", "show", "a"))["budget"] == "$0.500000, with estimates"
    off = shown(holdfast("run", "budget", "a", "--no-estimate"))
    assert off["budget"] == "$0.500000"
    on = shown(holdfast("run", "budget", "a", "--estimate", "--tokens", "7"))
    assert on["budget"] == "$0.500000, 7 tokens, with estimates"
    alone = holdfast(*start, "b", "--estimate")
    assert (alone.exit_code, "must limit tokens, usd, node_time or wall" in alone.stderr) == (
        1,
        True,
    )


def test_a_run_without_a_budget_says_so(holdfast: Holdfast) -> None:
    holdfast("run", "start", "shop:asking", '{"n": 1}', "--id", "a")
    told = shown(holdfast("run", "budget", "a"))
    assert told == {"budget": "none", "used": "0s inside nodes"}
    facts = shown(holdfast("run", "show", "a"))
    assert "budget" not in facts
    assert "spent" not in facts
    given = shown(holdfast("run", "budget", "a", "--tokens", "0"))
    assert (given["budget"], given["spent"]) == ("0 tokens", "$0.000000, 0 tokens")


def test_a_child_says_whose_budget_it_shares(holdfast: Holdfast) -> None:
    with working() as hf:
        holdfast("run", "start", "shop:sharing", "{}", "--id", "p", "--usd", "0.001")
        while not hf.run("p").children():
            pass
        paused(hf, "child", "budget")
        assert "together" not in shown(holdfast("run", "budget", "p"))
        assert shown(holdfast("run", "show", "child"))["budget"] == "that of run p"
        own = holdfast("run", "budget", "child", "--usd", "1")
        assert (own.exit_code, own.stdout) == (1, "")
        assert "shares the budget of run 'p' [budget_shared]" in own.stderr
        assert holdfast("run", "budget", "p", "--usd", "1").exit_code == 0
        assert hf.run("p").result(timeout=DEADLINE_SECONDS)["texts"] == ["It is."]
    family = shown(holdfast("run", "budget", "p"))
    assert family["spent"] == "$0.000000, 0 tokens"
    assert family["together"] == "$0.004000, 0 tokens: with the runs that it started"
    told = json.loads(holdfast("run", "budget", "p", "--json").stdout)
    assert (told["cost_usd"], told["together"]["cost_usd"]) == (0, 0.004)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (["--usd", "-1"], "-1.0 is not in the range"),
        (["--usd", "dear"], "'dear' is not a valid float"),
        (["--tokens", "1.5"], "'1.5' is not a valid integer"),
        (["--wall", "soon"], "wall must be a duration such as"),
    ],
)
@pytest.mark.parametrize("command", [["budget", "a"], ["start", "shop:asking"]], ids=" ".join)
def test_a_limit_that_is_none_has_exit_code_2(
    holdfast: Holdfast, command: list[str], limit: list[str], message: str
) -> None:
    done = holdfast("run", *command, *limit)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize("dollars", ["nan", "inf", "1e12"])
def test_a_budget_is_an_amount_of_money(holdfast: Holdfast, dollars: str) -> None:
    holdfast("run", "start", "shop:asking", '{"n": 1}', "--id", "a")
    done = holdfast("run", "budget", "a", "--usd", dollars)
    assert (done.exit_code != 0, done.stdout) == (True, "")


# --- quotas and retries ---------------------------------------------------------------------------


def test_show_tells_which_quota_a_run_waits_for(holdfast: Holdfast) -> None:
    with working(quotas=True) as hf:
        holdfast("run", "start", "shop:asking", '{"n": 3}', "--id", "a")
        paused(hf, "a", "quota")
    awaited = rf"the quota cheap, since {TIME}, rechecks at {TIME}"
    assert re.fullmatch(awaited, shown(holdfast("run", "show", "a"))["waits for"])


def test_show_tells_which_call_is_to_be_made_again(holdfast: Holdfast) -> None:
    with working() as hf:
        holdfast("run", "start", "shop:hurrying", "--id", "a")
        paused(hf, "a", "retry")
    facts = shown(holdfast("run", "show", "a"))
    awaited = rf"another attempt at model\.busy, since {TIME}, rechecks at {TIME}"
    assert re.fullmatch(awaited, facts["waits for"])
    history = holdfast("run", "history", "a").stdout
    told = rf"{TIME}  call_attempt  hurry  .*failure=ModelUnavailable: later retry_at={TIME}\n"
    assert re.match(told, history)


# --- all of them ----------------------------------------------------------------------------------

COMMANDS = [["ambiguous"], ["resolve", "a", "b", "--void"], ["budget", "a"]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_mistyped_store_is_an_error_and_makes_no_file(
    holdfast: Holdfast, folder: Path, arguments: list[str]
) -> None:
    done = holdfast("run", *arguments, "--url", "sqlite:///typo.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no file typo.db [store_not_found]" in done.stderr
    assert not (folder / "typo.db").exists()


@pytest.mark.parametrize("arguments", COMMANDS[1:], ids=" ".join)
def test_a_run_of_another_tenant_is_not_there(holdfast: Holdfast, arguments: list[str]) -> None:
    holdfast("run", "start", "shop:asking", '{"n": 1}', "--id", "a")
    done = holdfast("run", *arguments, "--tenant", "t")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "[run_not_found]" in done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_help_has_an_example(holdfast: Holdfast, arguments: list[str]) -> None:
    told = holdfast("run", arguments[0], "--help").stdout
    assert f"Example:\n    holdfast run {arguments[0]}" in told
    assert "HOLDFAST_URL" in told


# --- what workers are given -----------------------------------------------------------------------


def test_models_and_quotas_are_named_by_a_target() -> None:
    assert list(load_dict("shop:MODELS")) == ["cheap", "busy"]
    assert load_dict("shop.py:QUOTAS") == {"cheap": Quota("cheap", tokens=10, per=3600)}
    assert load_graph("shop:asking").name == "asking"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "shop"], "'shop' must name a dict: shop:attribute"),
        (["--models", "shop:nothing"], "shop has no 'nothing'"),
        (["--models", "shop:asking"], "shop:asking must be a dict"),
        (["--models", "nowhere:models"], "there is no module 'nowhere'"),
        (
            ["--models", "shop:no_model"],
            "must have a method answer(), got 7 [invalid_request]",
        ),
        (
            ["--quotas", "shop:QUOTAS"],
            "must be given for a known model, got 'cheap' [invalid_request]",
        ),
        (["--models", "shop:MODELS", "--quotas", "shop:MODELS"], "a quota must be a Quota, got "),
    ],
)
def test_what_a_worker_cannot_be_given(
    holdfast: Holdfast, folder: Path, arguments: list[str], message: str
) -> None:
    done = holdfast("worker", "shop", *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert not (folder / "runs.db").exists()
