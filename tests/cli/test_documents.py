"""``holdfast documents`` and ``holdfast projects``, on a store."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast as Store
from holdfast.cli.targets import load_graphs
from holdfast.documents.search import required_search
from holdfast.documents.segment_text import segment_entry
from holdfast.model.document import DocumentWorkflow
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast
from tests.cli.serving import serving

URL = "sqlite:///runs.db"
PIPELINE = """
from typing import TypedDict

from holdfast import Graph


class Work(TypedDict, total=False):
    workflow: str


documents = Graph("documents", Work)


@documents.node
async def segment_prep(state):
    return {}
"""
MAPPING = """
from pathlib import Path
from typing import TypedDict

from holdfast import Graph


class Work(TypedDict, total=False):
    workflow: str


documents = Graph("documents", Work)


@documents.item
async def analyze_segment(index, ctx):
    if index == 1:
        raise ValueError("not this one")
    return index


@documents.node
async def segment_analyzer(state, ctx):
    await ctx.map(analyze_segment, 3, tolerate=1.0)
    if Path("broken").exists():
        raise ValueError("broken")
    return {}
"""
HOSTILE = "a\x1b[31m\u202ereport.pdf"
TEXTS = (
    "Invoice 17 of Nordwind GmbH.",
    "The total amount is 56.00 EUR\x1b[2J.",
    "Terms: 30 days net.",
)


async def fill(*, name: str = "report.pdf", status: str = "completed") -> DocumentWorkflow:
    """Store a project with one document that was processed, as a pipeline does it."""
    async with Store(URL) as hf:
        documents = hf.documents
        await documents.projects.create("Contracts", id="contracts")
        document = await documents.add(
            "contracts", file_uri="s3://in/a.pdf", file_name=name, file_type="application/pdf"
        )
        workflow = await documents.begin(document.id)
        await documents.set_status(workflow.id, "in_progress", total_segments=len(TEXTS))
        await documents.start_step(workflow.id, "segment_prep")
        await documents.end_step(workflow.id, "segment_prep")
        await documents.start_step(workflow.id, "segment_analyzer", total=len(TEXTS))
        entries = []
        for index, text in enumerate(TEXTS, 1):
            content = msgspec.json.encode({"index": index, "title": "Page", "text": text})
            uri = await documents.files.put_blob(
                content, name=f"{workflow.id}/segments/{index}.json", document=document.id
            )
            await documents.put_segment(
                workflow.id, index, s3_key=uri, image_analysis=[{"kind": "summary", "text": "s"}]
            )
            entries.append(segment_entry(index, content))
            await documents.progress_step(workflow.id, "segment_analyzer", done=index)
        place = ("default", "contracts", document.id, workflow.id)
        await required_search(hf.documents.search).add(*place, entries)
        if status == "in_progress":
            return await documents.workflow(workflow.id)
        error = None if status == "completed" else "segment_analyzer: it broke\x1b[31m"
        await documents.end_step(workflow.id, "segment_analyzer", status=status, error=error)
        return await documents.set_status(workflow.id, status, error=error)


def filled(**given: Any) -> DocumentWorkflow:
    return asyncio.run(fill(**given))


def test_a_project_is_created_listed_changed_and_deleted(holdfast: Holdfast) -> None:
    made = holdfast("projects", "create", "My\x1b[31m contracts", "--id", "contracts")
    assert (made.exit_code, made.stdout) == (0, "contracts\n"), made.output
    again = holdfast("projects", "create", "Others", "--id", "contracts")
    assert (again.exit_code, "[id_taken]" in again.stderr) == (1, True)
    heading, line = holdfast("projects", "list").stdout.splitlines()
    assert heading.split() == ["CREATED", "ID", "LANGUAGE", "OCR", "PIPELINE", "NAME"]
    assert line.endswith("My\\x1b[31m contracts")
    changed = holdfast(
        "projects", "update", "contracts", "--language", "de", "--retention-days", "30"
    )
    assert "documents kept  30 days" in changed.stdout
    shown = json.loads(holdfast("projects", "show", "contracts", "--json").stdout)
    assert (shown["language"], shown["retention_days"]) == ("de", 30)
    nothing = holdfast("projects", "update", "contracts")
    assert (nothing.exit_code, "pass what shall change" in nothing.stderr) == (2, True)
    kept = holdfast("projects", "delete", "contracts", input="n\n")
    assert kept.exit_code == 1
    assert holdfast("projects", "delete", "contracts", "--yes").exit_code == 0
    assert holdfast("projects", "list").stderr == "no projects\n"
    gone = holdfast("projects", "show", "contracts")
    assert (gone.exit_code, "[project_not_found]" in gone.stderr) == (1, True)


def test_projects_are_listed_in_pages(holdfast: Holdfast) -> None:
    for number in range(3):
        assert holdfast("projects", "create", f"P{number}", "--id", f"p-{number}").exit_code == 0
    seen: list[str] = []
    cursor: list[str] = []
    while len(seen) < 3:
        page = holdfast("projects", "list", "--limit", "2", *cursor, "--json")
        shown = json.loads(page.stdout)
        seen += [each["id"] for each in shown["projects"]]
        if shown["cursor"] is None:
            break
        cursor = ["--cursor", shown["cursor"]]
    assert seen == ["p-2", "p-1", "p-0"]
    told = holdfast("projects", "list", "--limit", "2").stderr
    assert told.startswith("there may be more: --cursor '")


def test_a_document_and_its_segments_are_shown(holdfast: Holdfast) -> None:
    workflow = filled(name=HOSTILE)
    listed = holdfast("documents", "list", "--project", "contracts")
    assert listed.exit_code == 0, listed.output
    assert workflow.document in listed.stdout
    shown = holdfast("documents", "show", workflow.document)
    assert "a\\x1b[31m\\u202ereport.pdf" in shown.stdout
    assert workflow.id in shown.stdout
    for id in (workflow.document, workflow.id):
        segment = holdfast("documents", "show", id, "--segment", "2")
        assert "The total amount is 56.00 EUR\\x1b[2J." in segment.stdout, segment.output
        assert '{"kind":"summary","text":"s"}' in segment.stdout
    as_json = json.loads(
        holdfast("documents", "show", workflow.id, "--segment", "2", "--json").stdout
    )
    assert as_json["content"]["text"] == TEXTS[1]
    assert as_json["segment"]["index"] == 2
    missing = holdfast("documents", "show", workflow.id, "--segment", "9")
    assert (missing.exit_code, "[segment_not_found]" in missing.stderr) == (1, True)
    unknown = holdfast("documents", "show", "nothing")
    assert (unknown.exit_code, "[document_not_found]" in unknown.stderr) == (1, True)
    for command in (["list", "--project", "contracts"], ["show", workflow.document]):
        assert "\x1b" not in holdfast("documents", *command).output
        assert "\x1b" not in holdfast("documents", *command, "--json").output


def test_the_status_of_one_and_of_all(holdfast: Holdfast) -> None:
    workflow = filled(status="failed")
    for id in (workflow.document, workflow.id):
        shown = holdfast("documents", "status", id)
        assert "Segment preparation" in shown.stdout, shown.output
        assert "segment_analyzer: it broke\\x1b[31m" in shown.stdout
        assert "3/3" in shown.stdout
    as_json = json.loads(holdfast("documents", "status", workflow.id, "--json").stdout)
    assert as_json["workflow"]["status"] == "failed"
    assert as_json["steps"]["segment_prep"]["status"] == "completed"
    counted = holdfast("documents", "status", "--counts")
    assert counted.stdout == "0 pending, 0 in progress, 0 completed, 1 failed\n"
    assert json.loads(holdfast("documents", "status", "--counts", "--json").stdout)["failed"] == 1
    assert holdfast("documents", "status").stderr == "no workflows in progress\n"
    assert workflow.id in holdfast("documents", "status", "--status", "failed").stdout
    both = holdfast("documents", "status", workflow.id, "--counts")
    assert (both.exit_code, "pass one of" in both.stderr) == (2, True)


def test_what_is_in_progress_is_listed(holdfast: Holdfast) -> None:
    workflow = filled(status="in_progress")
    for options in ([], ["--in-progress"]):
        shown = holdfast("documents", "status", *options)
        assert shown.stdout.splitlines()[1].split()[1:4] == ["in", "progress", workflow.id]


def test_a_question_finds_the_page(holdfast: Holdfast) -> None:
    workflow = filled(name=HOSTILE)
    asked = ["documents", "search", "what is the total amount of the invoice?"]
    found = holdfast(*asked, "--document", workflow.document)
    assert found.exit_code == 0, found.output
    first, snippet, *_ = found.stdout.splitlines()
    assert first == f"a\\x1b[31m\\u202ereport.pdf ({workflow.document}), segment 2: Page"
    assert snippet.startswith("  The total amount is 56.00 EUR")
    hits = json.loads(holdfast(*asked, "--json").stdout)["hits"]
    assert [hit["index"] for hit in hits] == [2, 1]
    assert hits[0]["marks"] == [[4, 9], [10, 16]]
    assert json.loads(holdfast(*asked, "--limit", "1", "--json").stdout)["hits"] == hits[:1]
    for options in (["--project", "other"], ["--document", "other"], ["--tenant", "other"]):
        assert holdfast(*asked, *options).stderr == "nothing found\n"
    for hostile in ('"', "NEAR(", "-", "\x00", "--"):
        tried = holdfast("documents", "search", "--", hostile)
        assert (tried.exit_code, tried.stderr) == (0, "nothing found\n"), tried.output
    long = holdfast("documents", "search", "x" * 1001)
    assert (long.exit_code, "[invalid_" in long.stderr) == (1, True), long.output


@pytest.mark.only_on_a_store
def test_a_search_must_be_configured(holdfast: Holdfast) -> None:
    filled()
    none = holdfast("documents", "search", "total", "--search", "none")
    assert (none.exit_code, "[search_not_configured]" in none.stderr) == (1, True)
    assert "HOLDFAST_SEARCH" in none.stderr
    wrong = holdfast("documents", "search", "total", "--search", "https://x")
    assert (wrong.exit_code, "[invalid_url]" in wrong.stderr) == (1, True)
    other = holdfast("documents", "search", "total", "--search", "sqlite:///other.db")
    assert other.stderr == "nothing found\n"


@pytest.mark.only_on_a_store
def test_the_index_is_built_again(holdfast: Holdfast, folder: Path) -> None:
    workflow = filled()
    index = folder / "runs.db.search"
    asked = ["documents", "search", "total"]
    before = holdfast(*asked).stdout
    assert "segment 2" in before
    index.write_bytes(b"not an index\n" * 2000)
    broken = holdfast(*asked)
    assert (broken.exit_code, "[search_index_damaged]" in broken.stderr) == (1, True)
    assert "holdfast documents reindex" in broken.stderr
    built = holdfast("documents", "reindex")
    assert built.exit_code == 0, built.output
    assert built.stdout.splitlines()[-1] == "1 documents, 3 segments indexed"
    assert holdfast(*asked).stdout == before
    for suffix in ("", "-wal", "-shm"):
        (folder / f"runs.db.search{suffix}").unlink(missing_ok=True)
    again = holdfast("documents", "reindex", "--document", workflow.document, "--json")
    assert json.loads(again.stdout) == {"documents": 1, "segments": 3, "unreadable": 0}
    assert holdfast(*asked).stdout == before


@pytest.mark.only_on_a_store
def test_segments_that_cannot_be_read_are_counted(holdfast: Holdfast) -> None:
    workflow = filled()

    async def break_one() -> None:
        async with Store(URL) as hf:
            segment = await hf.documents.segment(workflow.id, 1)
            wrong = (segment.s3_key or "").replace("sha256=", "sha256=0")
            await hf.documents.put_segment(workflow.id, 1, s3_key=wrong)

    asyncio.run(break_one())
    built = holdfast("documents", "reindex")
    assert (built.exit_code, "1 segments cannot be read" in built.stderr) == (1, True)
    assert "segment 2" in holdfast("documents", "search", "total").stdout


def test_a_deleted_document_is_not_found_any_more(holdfast: Holdfast) -> None:
    workflow = filled()
    kept = holdfast("documents", "delete", workflow.document, input="n\n")
    assert (kept.exit_code, "delete document" in kept.stderr) == (1, True)
    assert "segment 2" in holdfast("documents", "search", "total").stdout
    deleted = holdfast("documents", "delete", workflow.document, "--yes", "--json")
    assert json.loads(deleted.stdout) == {"id": workflow.document, "deleted": True}
    assert holdfast("documents", "search", "total").stderr == "nothing found\n"
    gone = holdfast("documents", "status", workflow.document)
    assert (gone.exit_code, "[document_not_found]" in gone.stderr) == (1, True)


@pytest.mark.only_on_a_store
def test_files_and_folders_are_added(holdfast: Holdfast, folder: Path) -> None:
    (folder / "pipe.py").write_text(PIPELINE)
    assert holdfast("projects", "create", "Contracts", "--id", "contracts").exit_code == 0
    scans = folder / "scans"
    (scans / "b").mkdir(parents=True)
    (scans / "b" / "two.txt").write_text("two")
    (scans / "one.txt").write_text("one")
    (scans / ".hidden.txt").write_text("hidden")
    os.symlink(scans / "one.txt", scans / "link.txt")
    options = ["--project", "contracts", "--graph", "pipe:documents"]
    added = holdfast("documents", "add", "scans", *options, "--json")
    assert added.exit_code == 0, added.output
    lines = [json.loads(line) for line in added.stdout.splitlines()]
    assert [line["name"] for line in lines] == ["one.txt", "two.txt"]
    assert {line["status"] for line in lines} == {"processed"}
    listed = json.loads(holdfast("documents", "list", "--project", "contracts", "--json").stdout)
    assert {each["id"] for each in listed["documents"]} == {line["document"] for line in lines}
    started = holdfast("run", "show", f"doc-{lines[0]['workflow']}")
    assert started.exit_code == 0, started.output


@pytest.mark.only_on_a_store
def test_the_same_id_adds_a_document_once(holdfast: Holdfast, folder: Path) -> None:
    (folder / "pipe.py").write_text(PIPELINE)
    (folder / "one.txt").write_text("one")
    assert holdfast("projects", "create", "Contracts", "--id", "contracts").exit_code == 0
    options = ["--project", "contracts", "--graph", "pipe", "--id", "mine", "--name", "First.txt"]
    first = holdfast("documents", "add", "one.txt", *options)
    again = holdfast("documents", "add", "one.txt", *options)
    assert (first.exit_code, first.stdout) == (0, again.stdout), first.output + again.output
    assert "First.txt: document" in first.stderr
    listed = json.loads(holdfast("documents", "list", "--project", "contracts", "--json").stdout)
    assert len(listed["documents"]) == 1


@pytest.mark.only_on_a_store
def test_what_cannot_be_added_is_told_and_the_rest_is_added(
    holdfast: Holdfast, folder: Path
) -> None:
    (folder / "pipe.py").write_text(PIPELINE)
    (folder / "good.txt").write_text("good")
    (folder / "bad\x1b[31m.pdf").write_text("this is no PDF")
    assert holdfast("projects", "create", "Contracts", "--id", "contracts").exit_code == 0
    options = ["--project", "contracts", "--graph", "pipe"]
    added = holdfast("documents", "add", "bad\x1b[31m.pdf", "good.txt", *options)
    assert added.exit_code == 1
    assert "bad\\x1b[31m.pdf: " in added.stderr
    assert "1 of 2 could not be added" in added.stderr
    assert "\x1b" not in added.output
    assert len(added.stdout.splitlines()) == 1
    cases = (
        (["missing.txt", *options], 1, "there is no file missing.txt"),
        (["good.txt", "--project", "contracts"], 2, "pass --graph TARGET"),
        (["good.txt", "pipe.py", "--id", "x", *options], 2, "--name and --id are for one"),
        (["good.txt", "--project", "none", "--graph", "pipe"], 1, "[project_not_found]"),
        (["ftp://x/y", *options], 1, "there is no file"),
    )
    for given, code, told in cases:
        refused = holdfast("documents", "add", *given)
        assert (refused.exit_code, told in refused.stderr) == (code, True), refused.output


@pytest.mark.only_on_a_store
def test_a_server_takes_files_and_addresses_in(holdfast: Holdfast, folder: Path) -> None:
    (folder / "pipe.py").write_text(PIPELINE)
    (folder / "one.txt").write_text("one")
    with serving(folder) as url:
        server = ["--project", "contracts", "--server", url]
        assert holdfast("projects", "create", "C", "--id", "contracts", *server[2:]).exit_code == 0
        added = holdfast("documents", "add", "one.txt", "https://example.org/", *server, "--json")
        assert added.exit_code == 0, added.output
        file, page = (json.loads(line) for line in added.stdout.splitlines())
        assert (file["name"], file["status"]) == ("one.txt", "processed")
        assert page["source"] == "https://example.org/"
        shown = holdfast("documents", "show", file["document"], *server[2:])
        assert file["workflow"] in shown.stdout, shown.output
        wrong = (
            (["add", "one.txt", *server, "--graph", "pipe"], "--graph is for a store"),
            (["reindex", *server[2:]], "reindex reads the store"),
            (["search", "x", *server[2:], "--search", "none"], "--search is for a store"),
        )
        for given, told in wrong:
            refused = holdfast("documents", *given)
            assert (refused.exit_code, told in refused.stderr) == (2, True), refused.output


@pytest.mark.only_on_a_store
def test_an_address_is_added(holdfast: Holdfast, folder: Path) -> None:
    (folder / "pipe.py").write_text(PIPELINE)
    assert holdfast("projects", "create", "Contracts", "--id", "contracts").exit_code == 0
    options = ["--project", "contracts", "--graph", "pipe", "--json"]
    added = holdfast("documents", "add", "https://example.org/terms", *options)
    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout)["source"] == "https://example.org/terms"
    shown = json.loads(
        holdfast("documents", "show", json.loads(added.stdout)["document"], "--json").stdout
    )
    assert shown["document"]["kind"] == "WEB"


def test_a_workflow_that_has_ended_is_watched(holdfast: Holdfast) -> None:
    workflow = filled()
    watched = holdfast("documents", "watch", workflow.document)
    assert watched.exit_code == 0, watched.output
    assert "Segment preparation: completed" in watched.stdout
    assert watched.stdout.splitlines()[-1].endswith("report.pdf: completed")
    as_json = json.loads(holdfast("documents", "watch", workflow.id, "--json").stdout)
    assert as_json["workflow"]["status"] == "completed"


def test_the_exit_code_of_a_failed_workflow(holdfast: Holdfast) -> None:
    workflow = filled(status="failed")
    watched = holdfast("documents", "watch", workflow.id)
    assert watched.exit_code == 1
    assert "failed: segment_analyzer: it broke\\x1b[31m" in watched.stdout


@pytest.mark.only_on_a_store
def test_a_failed_workflow_and_a_failed_segment_are_retried(
    holdfast: Holdfast, folder: Path
) -> None:
    (folder / "pipe.py").write_text(MAPPING)
    (folder / "one.txt").write_text("one")
    (folder / "broken").touch()
    assert holdfast("projects", "create", "Contracts", "--id", "contracts").exit_code == 0
    options = ["--project", "contracts", "--graph", "pipe", "--json"]
    added = holdfast("documents", "add", "one.txt", *options)
    workflow = json.loads(added.stdout)["workflow"]
    early = holdfast("documents", "retry", workflow)
    assert (early.exit_code, "[not_retryable]" in early.stderr) == (1, True), early.output

    async def number_of_segments() -> None:
        async with Store(URL) as hf:
            await hf.documents.update_workflow(workflow, total_segments=3)

    with Blocking(URL) as hf, hf.worker(load_graphs(["pipe"]), poll=0.01):
        asyncio.run(number_of_segments())
        hf.run(f"doc-{workflow}").until("failed", timeout=60)
        (folder / "broken").unlink()
        retried = holdfast("documents", "retry", workflow)
        assert retried.stdout == f"workflow {workflow} goes on where it failed\n", retried.output
        hf.run(f"doc-{workflow}").until("finished", timeout=60)
    again = holdfast("documents", "retry", workflow, "--segment", "2", "--json")
    assert json.loads(again.stdout) == {"workflow": workflow, "segment": 2, "retried": True}
    whole = holdfast("documents", "retry", workflow, "--segment", "3")
    assert (whole.exit_code, "item" in whole.stderr) == (1, False), whole.output
    assert "segment 3 cannot be analyzed again" in whole.stderr, whole.output
    beyond = holdfast("documents", "retry", workflow, "--segment", "4")
    assert (beyond.exit_code, "from 1 to 3" in beyond.stderr) == (1, True), beyond.output


@pytest.mark.parametrize("command", ["show", "status", "watch", "retry", "delete"])
def test_an_unknown_id(holdfast: Holdfast, command: str) -> None:
    assert holdfast("projects", "create", "Contracts").exit_code == 0
    more = ["--yes"] if command == "delete" else []
    unknown = holdfast("documents", command, "x\x1by", *more)
    assert unknown.exit_code == 1, unknown.output
    assert "\x1b" not in unknown.output
