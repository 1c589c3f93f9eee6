"""``holdfast doctor``: explains what is misconfigured, stuck or unserved, and how to repair it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import asynchronous
from holdfast.cli.opening import Opened
from holdfast.cli.parameters import example, json_option, tenant_option
from holdfast.cli.server_target import chosen_server, open_client, server_options
from holdfast.cli.targets import FORMS, load_graphs
from holdfast.cli.text import pretty, say
from holdfast.errors import Forbidden, HoldfastError, InvalidUrl
from holdfast.fleet.diagnosis import (
    Finding,
    TargetFacts,
    WaitingFacts,
    error_finding,
    file_findings,
    overview_findings,
    stalled_findings,
    store_findings,
    target_findings,
    troubled_findings,
    waiting_findings,
    worker_findings,
)
from holdfast.fleet.fleet import ALL_TENANTS
from holdfast.model.fleet import RunCount
from holdfast.records.run_filter import RunFilter
from holdfast.redaction import without_credentials
from holdfast.storage.file_facts import inspect_file
from holdfast.storage.open import is_in_memory, sqlite_paths
from holdfast.storage.open import open as open_store

if TYPE_CHECKING:
    from holdfast.client import Client

__all__ = ["doctor"]

_AMBIGUOUS_MAX = 1_000
_EPILOG = f"\b\nTargets look like this:\n{FORMS}\n\n" + example(
    "holdfast doctor --url sqlite:///runs.db",
    "holdfast doctor shop.flows --url sqlite:///runs.db",
    "holdfast doctor --server https://runs.example.com",
)


@click.command(epilog=_EPILOG)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--url",
    envvar="HOLDFAST_URL",
    show_envvar=True,
    metavar="URL",
    help="The store's address; see 'holdfast store --help'.",
)
@server_options
@tenant_option
@json_option
@asynchronous
async def doctor(
    targets: Sequence[str],
    *,
    url: str | None,
    server: str | None,
    key: str | None,
    key_file: str | None,
    tenant: str,
    as_json: bool,
) -> None:
    """Explain what is misconfigured, stuck or unserved, and how to repair it.

    It checks the address, the store, its file or bucket, the graphs of TARGETs, the workers, and
    the runs of all tenants; calls and runs that wait are those of --tenant. It writes one item and
    one blob, and deletes both. Of a server it checks the workers and the runs only. The exit code
    is 1 if there is a problem.
    """
    context = click.get_current_context()
    address = chosen_server(context) if url or server else None
    findings = target_findings([_examine_target(target) for target in targets])
    if address is None:
        findings += await _examine_store(url, tenant)
    else:
        async with open_client(context, address, key or key_file) as client:
            findings += await _examine_server(client, without_credentials(address))
    has_problem = any(finding.level == "problem" for finding in findings)
    if as_json:
        shown = [finding.as_dict() for finding in findings]
        click.echo(pretty({"ok": not has_problem, "findings": shown}))
    else:
        for finding in findings:
            _show(finding)
    if has_problem:
        raise click.exceptions.Exit(1)


def _show(finding: Finding) -> None:
    say(f"{finding.level:<8}  {finding.check}: {finding.what}")
    for name, text in (("why", finding.why), ("fix", finding.fix)):
        if text:
            say(f"{'':8}    {name}: {text}")


def _examine_target(target: str) -> TargetFacts:
    try:
        graphs = load_graphs([target])
    except click.ClickException as error:
        # A traceback has many lines: the first one says which module, the last one why.
        first, *rest = error.message.splitlines()
        return TargetFacts(target=target, error=" ".join([first, *rest[-1:]]))
    except HoldfastError as error:
        return TargetFacts(target=target, error=f"{error} [{error.code}]")
    return TargetFacts(target=target, graphs=tuple((graph.name, graph.version) for graph in graphs))


async def _examine_store(url: str | None, tenant: str) -> list[Finding]:
    if url is None:
        return [
            Finding(
                level="problem",
                check="address",
                what="no store is named",
                why="every command and every process needs the address of the same store",
                fix="export HOLDFAST_URL=sqlite:///runs.db, or pass --url or --server",
            )
        ]
    shown = without_credentials(url)
    findings: list[Finding] = []
    try:
        if is_in_memory(url):
            return [_in_memory_finding(shown)]
        with suppress(InvalidUrl):  # the store is not a file
            findings += file_findings(inspect_file(sqlite_paths(url)[0]))
        store = open_store(url, make=False)
    except HoldfastError as error:
        check = "address" if isinstance(error, InvalidUrl) else "store"
        return [*findings, error_finding(check, error, url=shown)]
    findings.insert(0, Finding(level="ok", check="address", what=f"{shown} names a store"))
    async with store:
        try:
            holdfast = Holdfast(url, tenant=tenant, store=store)
            checked = store_findings(await holdfast.fleet.probe_store())
            findings += checked
            if all(finding.level != "problem" or finding.check != "read" for finding in checked):
                findings += await _examine_fleet(holdfast)
        except HoldfastError as error:
            findings.append(error_finding("store", error, url=shown))
    return findings


async def _examine_server(client: Client, address: str) -> list[Finding]:
    answers = Finding(level="ok", check="address", what=f"{address} is a server")
    try:
        try:
            return [answers, *await _examine_fleet(client)]
        except Forbidden:
            return [answers, *await _examine_tenant(client)]
    except HoldfastError as error:
        return [error_finding("server", error, url=address)]


async def _examine_tenant(client: Client) -> list[Finding]:
    """Examine what credentials for one tenant may see."""
    hidden = Finding(
        level="warning",
        check="workers",
        what="the key shows neither workers nor the runs of other tenants",
        why="it is for one tenant, or its role is too low",
        fix="use a key from: holdfast key create doctor --role operator --all-tenants",
    )
    findings = [hidden, *await _examine_runs(client, tenant=None, any_alive=True)]
    for status in ("failed", "quarantined"):
        page = await client.list(RunFilter(status=status))
        count = RunCount(runs=len(page.runs), capped=page.cursor is not None)
        findings += troubled_findings(status, count, [client.tenant or "default"])
    return [*findings, *waiting_findings(await _count_waiting(client))]


async def _examine_fleet(holdfast: Opened) -> list[Finding]:
    fleet = holdfast.fleet
    workers = await fleet.workers()
    any_alive = any(worker.alive for worker in workers)
    stalled = await _examine_runs(holdfast, tenant=ALL_TENANTS, any_alive=any_alive)
    waiting = await _count_waiting(holdfast)
    overview = await fleet.overview()
    return [
        *worker_findings(workers, now=overview.counted_at),
        *stalled,
        *overview_findings(overview),
        *waiting_findings(waiting),
    ]


async def _examine_runs(holdfast: Opened, *, tenant: str | None, any_alive: bool) -> list[Finding]:
    fleet = holdfast.fleet
    stuck, unserved = await fleet.stuck(tenant=tenant), await fleet.unserved(tenant=tenant)
    due = unserved
    if not unserved.runs:
        due = await fleet.unserved(tenant=tenant, grace=0)
    return stalled_findings(stuck, unserved, due, any_alive=any_alive)


async def _count_waiting(holdfast: Opened) -> WaitingFacts:
    return WaitingFacts(
        tenant=holdfast.tenant or "default",
        ambiguous=await _count_ambiguous(holdfast),
        budget=len((await holdfast.list(RunFilter(reason="budget"))).runs),
        quota=len((await holdfast.list(RunFilter(reason="quota"))).runs),
    )


async def _count_ambiguous(holdfast: Opened) -> int:
    number = 0
    calls = holdfast.ambiguous()
    try:
        async for _ in calls:
            number += 1
            if number == _AMBIGUOUS_MAX:
                break
    finally:
        await calls.aclose()
    return number


def _in_memory_finding(url: str) -> Finding:
    return Finding(
        level="problem",
        check="address",
        what=f"{url} is a store in memory",
        why="it is lost when its process ends, and no other process sees it",
        fix="name a file, as in sqlite:///runs.db",
    )
