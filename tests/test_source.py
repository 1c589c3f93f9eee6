"""What no module of the library may do, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
MODULES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}
# Each of them turns bytes or text into code, or into objects of any class.
UNSAFE_MODULES = {"cPickle", "copyreg", "dill", "jsonpickle", "marshal", "pickle", "shelve", "yaml"}
UNSAFE_CALLS = {"__import__", "compile", "eval", "exec", "import_module"}
# Imports what the person who types a command names.
TARGETS = "cli/targets.py"
# Makes the one kind of log that escapes what it shows.
DISPLAY = "display.py"


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def called(tree: ast.AST) -> Iterator[str]:
    """Yield what is called: ``f`` of ``f()``, and both ``f`` and ``a.f`` of ``a.f()``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node.func, ast.Attribute):
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            yield from (f"{of}.{node.func.attr}", "" if of == "re" else node.func.attr)


def test_nothing_that_is_stored_or_received_becomes_code() -> None:
    for module, tree in MODULES.items():
        roots = {name.partition(".")[0] for name in imported(tree)}
        assert not roots & UNSAFE_MODULES, module
        expected = {"import_module"} if module == TARGETS else set[str]()
        assert {*called(tree)} & UNSAFE_CALLS == expected, module


def test_every_log_of_ours_escapes_what_it_shows() -> None:
    """A log that is made with `logging.getLogger` has no filter: see `display.log_named`."""
    bare = [
        module
        for module, tree in MODULES.items()
        if module != DISPLAY and "logging.getLogger" in {*called(tree), *imported(tree)}
    ]
    assert bare == []


# Lines about a worker, a graph, a webhook, a request, a span, a file, a folder, a bucket, the loop
# of notices, or an upload without a run. That of a damaged item names its key, in which the tenant
# and the run stand. That of a notice names its review and the tenant, behind a level.
LOGS_OF_NO_RUN = {
    "documents/search_repair.py": {"move_aside"},
    "engine/client/wait_warnings.py": {"warn_about_waits"},
    "engine/runs/graph_items.py": {"_try_publish"},
    "engine/worker/health.py": {"record_failure", "record_success"},
    "engine/worker/heartbeat.py": {"beat"},
    "engine/worker/loop_watchdog.py": {"_log_blocked", "_log_unblocked"},
    "engine/worker/reaper.py": {"_run_turn"},
    "engine/worker/worker.py": {"_repeat"},
    "integrations/aws_lambda/api.py": {"_run_due", "ask"},
    "integrations/aws_lambda/due_runs.py": {"run_due_beside"},
    "documents/uploads.py": {"_sweep_one"},
    "integrations/aws_lambda/s3_documents.py": {"s3_documents", "add"},
    "server/streams/workflow_follower.py": {"ending"},
    "server/streams/workflow_hub.py": {"_disconnect"},
    "integrations/aws_lambda/s3_trigger.py": {"_carry_out_one"},
    "server/document_intake.py": {"_sweep"},
    "integrations/telemetry.py": {"emit"},
    "review/log_notifier.py": {"send"},
    "review/notifying.py": {"_run"},
    "server/pages/page.py": {"_error_page"},
    "server/bulk_runner.py": {"_carry_out", "_work"},
    "server/metrics.py": {"refresh"},
    "server/problems.py": {"problem_of", "_problem_of_ours"},
    "server/request_log.py": {"_finish"},
    "server/token_keys.py": {"_fetch"},
    "storage/backups/restore.py": {"_recover_restore"},
    "storage/damage_log.py": {"record"},
    "storage/folder_blobs.py": {"_make_private"},
    "storage/s3.py": {"_fetch_account"},
    "storage/sqlite/file_guard.py": {"make_private"},
    "webhooks/deliverer.py": {"_disable", "_run"},
}
LEVELS = {"critical", "debug", "error", "exception", "info", "log", "warning"}


def logs_that_name_no_run(tree: ast.AST) -> Iterator[str]:
    """Yield the functions that log something whose first value is not ``….log_name``."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            log, level = node.func.value, node.func.attr
            if isinstance(log, ast.Name) and "log" in log.id and level in LEVELS:
                first = node.args[1] if len(node.args) > 1 else None
                if not isinstance(first, ast.Attribute) or first.attr not in (
                    "log_name",
                    "log_label",
                ):
                    yield function.name


def test_every_log_line_about_a_run_names_the_run_and_its_tenant() -> None:
    """`RunKey.log_name` is how, and `ReviewKey.log_name`: ``run ID of tenant TENANT``."""
    found = {module: {*logs_that_name_no_run(tree)} for module, tree in MODULES.items()}
    assert {module: names for module, names in found.items() if names} == LOGS_OF_NO_RUN
