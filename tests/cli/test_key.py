"""``holdfast key``."""

from __future__ import annotations

import json

from tests.cli.conftest import Holdfast


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
    for typed, dropped in (((), False), (("--revoke",), True)):
        rotated = json.loads(holdfast("key", "rotate", *typed, "--json").stdout)
        assert rotated["older_keys_dropped"] is dropped
        assert rotated["id"]


def test_a_key_for_every_tenant(holdfast: Holdfast) -> None:
    made = holdfast("key", "create", "ops", "--role", "admin", "--all-tenants", "--json")
    assert json.loads(made.stdout)["tenant"] == "*"
    assert json.loads(holdfast("key", "list", "--json").stdout) == []
    assert len(json.loads(holdfast("key", "list", "--all-tenants", "--json").stdout)) == 1


def test_misuse_of_key_commands(holdfast: Holdfast) -> None:
    missing = holdfast("key", "create", "ci")
    assert missing.exit_code == 2
    assert "Choose from: viewer, reviewer, operator, admin" in missing.stderr
    assert holdfast("key", "create", "ci", "--role", "root").exit_code == 2
    assert holdfast("key", "create", "a#b", "--role", "viewer").exit_code == 1
