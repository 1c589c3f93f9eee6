"""``holdfast key``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.targets import load_graphs
from holdfast.server import ServerOptions
from holdfast.sync import Holdfast as Store
from tests.cli.conftest import Holdfast
from tests.cli.serving import serving


def test_a_key_is_shown_once_then_listed_and_revoked(holdfast: Holdfast) -> None:
    made = holdfast("key", "create", "ci", "--role", "operator", "--expires", "90d")
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert secret.startswith("hf_")
    assert "\n" not in secret
    listed = holdfast("key", "list")
    assert "ci" in listed.stdout
    assert "operator" in listed.stdout
    assert secret.rpartition("_")[2] not in listed.output
    [shown] = json.loads(holdfast("key", "list", "--json").stdout)
    assert shown["id"] == secret.split("_")[1]
    assert shown["last_used_at"] is None
    assert holdfast("key", "revoke", shown["id"]).stdout == f"key {shown['id']} is revoked\n"
    again = holdfast("key", "revoke", shown["id"])
    assert again.exit_code == 1
    assert "[key_not_found]" in again.output
    assert json.loads(holdfast("key", "list", "--json").stdout) == []


def test_what_acts_on_keys_prints_json(holdfast: Holdfast) -> None:
    made = json.loads(holdfast("key", "create", "ci", "--role", "viewer", "--json").stdout)
    revoked = holdfast("key", "revoke", made["id"], "--json")
    assert json.loads(revoked.stdout) == {"id": made["id"], "revoked": True}


@pytest.mark.only_on_a_store
def test_a_rotation_prints_json(holdfast: Holdfast) -> None:
    holdfast("store", "create", "sqlite:///runs.db")
    for typed, dropped in (((), False), (("--revoke",), True)):
        rotated = json.loads(holdfast("key", "rotate", *typed, "--json").stdout)
        assert rotated["older_keys_dropped"] is dropped
        assert rotated["id"]


@pytest.mark.only_on_a_store
def test_a_key_for_every_tenant(holdfast: Holdfast) -> None:
    made = holdfast("key", "create", "ops", "--role", "admin", "--all-tenants", "--json")
    assert json.loads(made.stdout)["tenant"] == "*"
    assert json.loads(holdfast("key", "list", "--json").stdout) == []
    assert len(json.loads(holdfast("key", "list", "--all-tenants", "--json").stdout)) == 1


def test_keys_of_tenants(holdfast: Holdfast) -> None:
    for tenant in ("a", "b"):
        made = holdfast("key", "create", "ci", "--role", "viewer", "--tenant", tenant, "--json")
        assert json.loads(made.stdout)["tenant"] == tenant, made.output
    every = holdfast("key", "create", "ops", "--role", "admin", "--all-tenants", "--json")
    assert json.loads(every.stdout)["tenant"] == "*"

    def tenants(*options: str) -> list[str]:
        listed = holdfast("key", "list", "--json", *options)
        return sorted(each["tenant"] for each in json.loads(listed.stdout))

    assert tenants("--tenant", "a") == ["a"]
    assert tenants("--all-tenants") == ["*", "a", "b"]


def test_a_key_of_another_tenant_is_not_revoked(holdfast: Holdfast) -> None:
    made = [
        json.loads(holdfast("key", "create", "ci", "--role", "viewer", "--json", *tenant).stdout)
        for tenant in (("--tenant", "a"), ("--tenant", "a"), ("--all-tenants",))
    ]
    for key in (made[0], made[2]):
        refused = holdfast("key", "revoke", key["id"], "--tenant", "b")
        assert (refused.exit_code, "of tenant 'b'" in refused.stderr) == (1, True)
        assert "[key_not_found]" in refused.stderr
    assert holdfast("key", "revoke", made[0]["id"], "--tenant", "a").exit_code == 0
    for key in made[1:]:
        assert holdfast("key", "revoke", key["id"], "--all-tenants").exit_code == 0
    assert json.loads(holdfast("key", "list", "--all-tenants", "--json").stdout) == []


@pytest.mark.only_on_a_store
def test_a_key_is_looked_for_in_the_default_tenant(holdfast: Holdfast) -> None:
    made = holdfast("key", "create", "ci", "--role", "viewer", "--tenant", "a", "--json")
    refused = holdfast("key", "revoke", json.loads(made.stdout)["id"])
    assert (refused.exit_code, "of tenant 'default'" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("key revoke", "The tenant that the key belongs to."),
        ("webhook remove", "The tenant that the webhook belongs to."),
        ("run show", "The tenant that the runs belong to."),
    ],
)
def test_the_help_says_what_belongs_to_the_tenant(command: str, told: str) -> None:
    shown = CliRunner().invoke(main, [*command.split(), "--help"])
    assert told in " ".join(shown.stdout.split())


@pytest.mark.only_on_a_store
def test_a_key_of_one_tenant_on_a_server(
    holdfast: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = holdfast("key", "create", "root", "--role", "admin", "--tenant", "shop")
    graphs = {graph.name: graph for graph in load_graphs(["flows"])}
    with (
        Store("sqlite:///runs.db", tenant="shop") as hf,
        hf.worker(list(graphs.values()), poll=0.01),
    ):
        hf.start(graphs["failing"], {"mood": "bad"}).until("failed", timeout=30)
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.setenv("HOLDFAST_KEY", admin.stdout.strip())
    with serving(folder, ServerOptions(authentication=True)) as url:
        monkeypatch.setenv("HOLDFAST_SERVER", url)
        made = CliRunner().invoke(main, ["key", "create", "ci", "--role", "viewer", "--json"])
        assert json.loads(made.stdout)["tenant"] == "shop"
        listed = CliRunner().invoke(main, ["key", "list", "--json"])
        assert sorted(each["name"] for each in json.loads(listed.stdout)) == ["ci", "root"]
        every = CliRunner().invoke(
            main, ["key", "create", "x", "--role", "viewer", "--all-tenants"]
        )
        assert (every.exit_code, "[forbidden]" in every.stderr) == (1, True)
        rotated = CliRunner().invoke(main, ["key", "rotate"])
        assert (rotated.exit_code, "pass --url" in rotated.stderr) == (2, True)
        seen = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
        assert seen["ok"] is True
        levels = {each["check"]: each["level"] for each in seen["findings"]}
        assert (levels["address"], levels["workers"]) == ("ok", "warning")
        (failed,) = (each for each in seen["findings"] if each["check"] == "failed")
        assert (failed["level"], failed["what"]) == ("warning", "1 run failed")


def test_misuse_of_key_commands(holdfast: Holdfast) -> None:
    missing = holdfast("key", "create", "ci")
    assert missing.exit_code == 2
    assert "Choose from: viewer, reviewer, operator, admin" in missing.stderr
    assert holdfast("key", "create", "ci", "--role", "root").exit_code == 2
    assert holdfast("key", "create", "a#b", "--role", "viewer").exit_code == 1
