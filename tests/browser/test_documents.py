"""The pages about documents in a real browser: at two widths, in two themes, without scripts."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, expect

from holdfast import Holdfast
from holdfast.documents.search import required_search
from holdfast.model.document import DocumentWorkflow, Project
from holdfast.model.segment_search import SegmentEntry
from holdfast.server import asgi
from tests.browser.graphs import GRAPHS
from tests.browser.site import Site
from tests.server.document_samples import HOSTILE, LONG_NAME, TABLE, TEXT, Samples, picture

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

LOOKS = [(400, False), (400, True), (1400, False), (1400, True)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def document_site(
    browser: Browser, screenshots: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """A server in this process, on the store that the tests fill."""
    async with Holdfast(f"sqlite:///{tmp_path_factory.mktemp('documents')}/runs.db") as hf:
        listener = socket.create_server(("127.0.0.1", 0))
        app = asgi(hf, GRAPHS, worker=False)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        task = asyncio.create_task(server._serve([listener]))
        yield Site(hf, f"http://127.0.0.1:{listener.getsockname()[1]}", browser, screenshots)
        server.should_exit = True
        await task


@pytest_asyncio.fixture(loop_scope="module")
async def site(document_site: Site) -> AsyncIterator[Site]:
    yield document_site
    await document_site.close_pages()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def filled(document_site: Site) -> tuple[Project, DocumentWorkflow]:
    """A project with documents in every state, and the one that is in progress."""
    samples = Samples(document_site.hf)
    project = await samples.project(
        document_prompt="Claims of tenants about heating.", language="en"
    )
    await samples.project(HOSTILE)
    for name, status in (("boiler.pdf", "completed"), ("roof and gutter.docx", "pending")):
        begun = await samples.begun(project, name)
        if status == "completed":
            await document_site.hf.documents.set_status(begun.id, "in_progress")
            await document_site.hf.documents.set_status(begun.id, "completed")
    await samples.failed(project)
    await samples.document(project, HOSTILE, file_type="text/html", file_bytes=12)
    await samples.document(project, LONG_NAME)
    running = await samples.running(project, "Claim of J. Tenant, June.pdf", total=640, done=232)
    content = {"text": TEXT, "tables": [{"rows": TABLE}], "source": "ocr", "title": "Letter"}
    analysis = [
        {"kind": "summary", "text": "A tenant asks to repair or replace a boiler. " * 4},
        {"kind": "entity", "name": "boiler", "type": "device"},
        {"kind": "language", "code": "en"},
    ]
    await samples.segment(running, 3, content=content, image=picture(), analysis=analysis)
    return project, running


@pytest.mark.parametrize(("width", "dark"), LOOKS)
async def test_projects_and_one_of_them(
    site: Site, filled: tuple[Project, DocumentWorkflow], width: int, dark: bool
) -> None:
    name = f"{width}-{'dark' if dark else 'light'}"
    page = await site.page(width=width, dark=dark)
    await page.goto(f"{site.address}/projects")
    await site.look(page, f"projects-{name}")
    await page.get_by_role("link", name="Warranty claims").click()
    await expect(page.get_by_role("heading", name="In progress")).to_be_visible()
    await expect(page.get_by_role("heading", name="boiler.pdf")).to_be_visible()
    await site.look(page, f"project-{name}")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
async def test_a_document_its_segments_and_one_of_them(
    site: Site, filled: tuple[Project, DocumentWorkflow], width: int, dark: bool
) -> None:
    _, running = filled
    name = f"{width}-{'dark' if dark else 'light'}"
    page = await site.page(width=width, dark=dark)
    await page.goto(f"{site.address}/documents/{running.document}")
    await expect(page.get_by_text("232 of 640")).to_be_visible()
    await site.look(page, f"document-{name}")
    await page.get_by_role("link", name="3 Completed", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Segment 3 of 640")
    await expect(page.get_by_text("has lost pressure")).to_be_visible()
    # It is loaded after the page.
    await expect(page.get_by_role("img")).to_have_js_property("naturalWidth", 620)
    await site.look(page, f"segment-{name}")
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Segment 4 of 640")
    await page.go_back()
    await page.get_by_role("link", name="Previous").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Segment 2 of 640")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
async def test_failed_documents_failed_segments_and_deletion(
    site: Site, filled: tuple[Project, DocumentWorkflow], width: int, dark: bool
) -> None:
    project, running = filled
    name = f"{width}-{'dark' if dark else 'light'}"
    page = await site.page(width=width, dark=dark)
    await page.goto(f"{site.address}/projects/{project.id}")
    await page.get_by_role("heading", name="scan.pdf").click()
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()
    await site.look(page, f"document-failed-{name}")
    await page.goto(f"{site.address}/documents/{running.document}?failed=1")
    await expect(page.get_by_role("link", name="Segment 232")).to_be_visible()
    await page.get_by_role("link", name="Segment 232").click()
    await expect(page.get_by_text("no JSON")).to_be_visible()
    await site.look(page, f"segment-failed-{name}")
    await page.goto(f"{site.address}/documents/{running.document}/delete")
    await site.look(page, f"document-delete-{name}")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
async def test_search(
    site: Site, filled: tuple[Project, DocumentWorkflow], width: int, dark: bool
) -> None:
    project, running = filled
    entries = [
        SegmentEntry(3, f"{TEXT} {HOSTILE}", title="Letter <b>bold</b>"),
        SegmentEntry(9, "The boiler was replaced."),
    ]
    await required_search(site.hf.documents.search).add(
        "default", project.id, running.document, running.id, entries
    )
    page = await site.page(width=width, dark=dark)
    await page.goto(f"{site.address}/projects/{project.id}")
    await page.get_by_label("Search in the documents").fill("boiler valve")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("mark").first).to_have_text(re.compile("boiler|valve", re.IGNORECASE))
    await site.look(page, f"search-{width}-{'dark' if dark else 'light'}")
    await page.get_by_role("link", name="segment 9").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Segment 9 of 640")


async def test_hostile_contents_are_only_text(site: Site) -> None:
    samples = Samples(site.hf)
    project = await samples.project(HOSTILE)
    workflow = await samples.running(project, HOSTILE)
    content = {
        "text": f"{HOSTILE}\n{'x' * 3000}",
        "title": HOSTILE,
        "source": HOSTILE,
        "tables": [{"rows": [[HOSTILE] * 12, ["y" * 900]]}],
    }
    analysis = [{"kind": HOSTILE, HOSTILE: [HOSTILE, {"a": HOSTILE}]}]
    await samples.segment(workflow, 1, content=content, analysis=analysis, image=b"<svg onload=1>")
    page = await site.page(width=400)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for path in (
        f"/projects/{project.id}",
        f"/documents/{workflow.document}",
        f"/documents/{workflow.document}/delete",
        f"/documents/{workflow.document}/segments/1",
        f"/projects/{project.id}/search?q={'<script>'}",
    ):
        await page.goto(f"{site.address}{path}")
        assert await page.locator("script, img[onerror]").count() == 0
        assert "owned" not in (await page.title()).split("–")[-1]
        assert "\u202e" not in await page.content()
        await site.look(page, f"hostile-{path.split('/')[1]}-{path.count('/')}-400-light")
    assert dialogs == []


async def test_everything_works_without_javascript(
    site: Site, filled: tuple[Project, DocumentWorkflow]
) -> None:
    page = await site.page(javascript=False)
    await page.goto(f"{site.address}/projects")
    await page.get_by_label("Name").fill("Leases")
    await page.get_by_role("button", name="Create the project").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Leases")
    _, running = filled
    samples = Samples(site.hf)
    project = await samples.project("To be deleted")
    document = await samples.document(project, "old.pdf")
    await page.goto(f"{site.address}/documents/{document.id}")
    await page.get_by_role("link", name="Delete the document").click()
    await page.get_by_role("button", name="Delete it").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("To be deleted")
    await expect(page.get_by_text("There is no document yet.")).to_be_visible()
    await page.goto(f"{site.address}/documents/{running.document}?page=3")
    await expect(page.get_by_text("501 to 640 of 640.")).to_be_visible()
