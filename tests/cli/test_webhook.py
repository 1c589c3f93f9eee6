"""Webhooks and signing keys on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.key_rotation import rotate
from holdfast.server import ServerOptions
from tests.cli.conftest import Holdfast
from tests.cli.serving import serving

ADDRESS = "https://hooks.example/in"


def test_a_webhook_is_added_listed_and_removed(holdfast: Holdfast) -> None:
    added = holdfast("webhook", "add", ADDRESS, "--event", "run.failed", "--graph", "orders")
    assert added.exit_code == 0, added.output
    secret = added.stdout.strip()
    assert secret.startswith("whsec_")
    assert ADDRESS in added.stderr
    assert secret not in added.stderr
    listed = json.loads(holdfast("webhook", "list", "--json").stdout)
    assert [(each["url"], each["events"], each["graph"]) for each in listed] == [
        (ADDRESS, ["run.failed"], "orders")
    ]
    assert secret not in str(listed)
    id = listed[0]["id"]
    header, line = holdfast("webhook", "list").stdout.splitlines()
    assert header.split() == ["ID", "CREATED", "STATE", "GRAPH", "EVENTS", "ADDRESS"]
    assert line.split()[0::2] == [id, "active", "run.failed"]
    assert holdfast("webhook", "deliveries", id).stderr == "no deliveries\n"
    assert json.loads(holdfast("webhook", "deliveries", id, "--json").stdout) == []
    assert holdfast("webhook", "remove", id).stdout == f"webhook {id} is removed\n"
    again = holdfast("webhook", "remove", id)
    assert (again.exit_code, "[webhook_not_found]" in again.stderr) == (1, True)
    assert holdfast("webhook", "list").stderr == "no webhooks\n"


def test_a_webhook_in_json_has_its_secret(holdfast: Holdfast) -> None:
    added = json.loads(holdfast("webhook", "add", ADDRESS, "--json").stdout)
    assert added["secret"].startswith("whsec_")
    assert added["webhook"]["url"] == ADDRESS
    id = added["webhook"]["id"]
    removed = holdfast("webhook", "remove", id, "--json")
    assert json.loads(removed.stdout) == {"id": id, "removed": True}


@pytest.mark.only_on_a_store
def test_a_refused_address(holdfast: Holdfast) -> None:
    refused = holdfast("webhook", "add", "http://127.0.0.1:9000/")
    assert (refused.exit_code, "[target_refused]" in refused.stderr) == (1, True)
    assert "--webhook-allow or set HOLDFAST_WEBHOOK_ALLOW" in refused.stderr
    allowed = holdfast(
        "webhook", "add", "http://127.0.0.1:9000/", "--webhook-allow", "127.0.0.1:9000"
    )
    assert allowed.exit_code == 0
    wrong = holdfast("webhook", "add", ADDRESS, "--webhook-allow", "nothing")
    assert (wrong.exit_code, "allow-list must be" in wrong.stderr) == (1, True)
    assert holdfast("webhook", "add", ADDRESS, "--event", "run.nothing").exit_code == 2


@pytest.mark.only_on_a_store
def test_a_server_has_its_own_list_of_addresses(holdfast: Holdfast, folder: Path) -> None:
    private = "http://127.0.0.1:9000/"
    with serving(folder, ServerOptions(webhook_allow=("127.0.0.1:9000",))) as url:
        added = holdfast("webhook", "add", private, "--server", url)
        assert added.exit_code == 0, added.output
        given = ["webhook", "add", private, "--webhook-allow", "127.0.0.1:9000", "--server", url]
        refused = CliRunner().invoke(main, given)
        assert (refused.exit_code, "the server has its own" in refused.stderr) == (2, True)
    with serving(folder) as url:
        refused = CliRunner().invoke(main, ["webhook", "add", private, "--server", url])
        assert (refused.exit_code, "[target_refused]" in refused.stderr) == (1, True)
        assert "holdfast serve --webhook-allow, or webhook_allow of" in refused.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "webhook add"])
def test_every_process_names_the_permitted_addresses_in_the_same_way(command: str) -> None:
    shown = CliRunner().invoke(main, [*command.split(), "--help"])
    assert "--webhook-allow ENTRY" in shown.stdout
    assert "HOLDFAST_WEBHOOK_ALLOW" in shown.stdout


@pytest.mark.only_on_a_store
def test_signing_keys_are_rotated(holdfast: Holdfast) -> None:
    holdfast("webhook", "add", ADDRESS)  # the store exists
    first = CliRunner().invoke(rotate, ["--url", "sqlite:///runs.db"])
    assert (first.exit_code, "signs from now on" in first.stdout) == (0, True)
    second = CliRunner().invoke(rotate, ["--url", "sqlite:///runs.db", "--revoke"])
    assert "older keys are dropped" in second.stdout
    assert first.stdout.split()[2] != second.stdout.split()[2]
