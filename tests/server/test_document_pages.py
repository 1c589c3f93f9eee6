"""The pages about documents: who may do what, what they show, and what they never do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest

from holdfast import Graph, Holdfast
from holdfast.documents.search import required_search
from holdfast.errors import DocumentNotFound, NotRetryable
from holdfast.model.document import DocumentWorkflow, Project
from holdfast.model.segment_search import SegmentEntry
from holdfast.server import ServerOptions, asgi
from holdfast.server.pages.documents import segment_page
from holdfast.server.pages.documents.segment_grid import grid_page
from holdfast.server.pages.documents.step_picture import shown_duration
from tests.server.document_samples import HOSTILE, LONG_NAME, Samples, picture

GUARDED = ServerOptions(authentication=True, key_rate=None, tenant_rate=None)
ROLES = ("viewer", "reviewer", "operator", "admin")
PDF = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"


@dataclass
class Work:
    workflow: str
    done: bool = False


pipeline = Graph("documents", Work)
failures: set[str] = set()


@pipeline.node
async def read(work: Work) -> Work:
    if work.workflow in failures:
        raise ValueError("the scanner was off")
    return replace(work, done=True)


@dataclass
class Office:
    """A server with documents, and a browser of it."""

    hf: Holdfast
    http: httpx.AsyncClient
    samples: Samples

    async def sign_in(self, role: str, tenant: str = "default") -> None:
        """Sign the browser in with a new key."""
        self.http.cookies.clear()
        key = await self.hf.keys.create(f"a {role}", tenant=tenant, role=role)  # type: ignore[arg-type]
        fields = {"key": key.secret, "next": "/projects", "end": "1"}
        done = await self.http.post("/login", data=fields)
        assert (done.status_code, done.headers["location"]) == (303, "/projects"), done.text

    async def text(self, path: str, status: int = 200) -> str:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def post(self, path: str, *, page: str | None = None, **fields: str) -> httpx.Response:
        """Post a form as the page of a path has it."""
        token = token_of(await self.text(page or path))
        return await self.http.post(path, data={"form_token": token, **fields, "end": "1"})

    async def upload(
        self, project: Project, name: str, data: bytes, kind: str = "application/pdf", **fields: str
    ) -> httpx.Response:
        path = f"/projects/{project.id}"
        given = {"form_token": token_of(await self.text(path)), **fields}
        return await self.http.post(path, data=given, files={"file": (name, data, kind)})


@pytest.fixture
async def office(hf: Holdfast) -> AsyncIterator[Office]:
    app = asgi(hf, [pipeline], options=GUARDED)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield Office(hf, http, Samples(hf))


def token_of(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


async def paths_of(office: Office) -> tuple[Project, DocumentWorkflow, list[str]]:
    """Return a project, a workflow in it, and the paths of all pages about them."""
    project = await office.samples.project()
    workflow = await office.samples.running(project)
    await office.samples.segment(workflow, 1, image=picture(20, 20))
    document = f"/documents/{workflow.document}"
    return (
        project,
        workflow,
        [
            f"/projects/{project.id}",
            f"/projects/{project.id}/search?q=boiler",
            document,
            f"{document}?failed=1",
            f"{document}?workflow={workflow.id}",
            f"{document}/segments/1",
            f"{document}/segments/12",
            f"{document}/segments/1/image",
        ],
    )


async def test_without_a_session_every_page_asks_to_sign_in(office: Office) -> None:
    project, _, paths = await paths_of(office)
    for path in ("/projects", *paths):
        page = await office.text(path, 401)
        assert "API key" in page
        assert project.name not in page


@pytest.mark.parametrize("role", ROLES)
async def test_who_may_look_and_who_may_change(office: Office, role: str) -> None:
    project, workflow, paths = await paths_of(office)
    await office.sign_in(role)
    may_change = role in ("operator", "admin")
    for path in paths[:-1]:
        page = await office.text(path)
        assert ("/reviews" in page) is (role != "viewer")
        assert ('method="post"' in page.replace("/logout", "")) is True  # to sign out
    document = f"/documents/{workflow.document}"
    assert ("Upload" in await office.text(paths[0])) is may_change
    assert ("Delete the document" in await office.text(document)) is may_change
    assert ("Create the project" in await office.text("/projects")) is may_change
    await office.text(f"{document}/delete", 200 if may_change else 403)
    if may_change:
        return
    token = await office.hf.sessions.sign_form("default/key:x")
    form = {"form_token": token, "action": "retry", "name": "x", "end": "1"}
    for path in ("/projects", f"/projects/{project.id}", document, f"{document}/delete"):
        assert (await office.http.post(path, data=form)).status_code == 403
    assert (await office.hf.documents.get(workflow.document)).id == workflow.document


async def test_another_tenant_finds_nothing(office: Office) -> None:
    project, workflow, paths = await paths_of(office)
    await office.sign_in("admin", "rival")
    for path in (*paths, f"/documents/{workflow.document}/delete"):
        page = await office.text(path, 404)
        assert project.name not in page
    assert "Warranty claims" not in await office.text("/projects")
    page = await office.text("/projects")
    form = {"form_token": token_of(page), "action": "retry", "end": "1"}
    for path in (paths[2], f"{paths[2]}/delete"):
        assert (await office.http.post(path, data=form)).status_code == 404
    assert await office.hf.documents.get(workflow.document)


async def test_forms_of_other_sites_and_of_other_people_are_refused(office: Office) -> None:
    project, workflow, _ = await paths_of(office)
    await office.sign_in("operator")
    path = f"/documents/{workflow.document}/delete"
    token = token_of(await office.text(path))
    other = await office.hf.sessions.sign_form("default/key:other")
    for headers, given in (
        ({"Origin": "https://evil.example"}, token),
        ({"Sec-Fetch-Site": "cross-site"}, token),
        ({}, other),
        ({}, ""),
    ):
        form = {"form_token": given, "end": "1"}
        assert (await office.http.post(path, data=form, headers=headers)).status_code == 403
        upload = {"file": ("a.pdf", PDF, "application/pdf")}
        answer = await office.http.post(
            f"/projects/{project.id}", data=form, files=upload, headers=headers
        )
        assert answer.status_code == 403
    assert await office.hf.documents.get(workflow.document)
    assert len((await office.hf.documents.list(project.id)).documents) == 1


async def test_no_page_permits_scripts_and_only_segments_permit_pictures(office: Office) -> None:
    _, workflow, paths = await paths_of(office)
    await office.sign_in("operator")
    for path in ("/projects", f"/documents/{workflow.document}/delete", *paths[:-1]):
        answer = await office.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert ("img-src 'self'" in policy) is ("/segments/" in path)
        assert answer.headers["cache-control"] == "no-store"
        assert "<script" not in answer.text
        assert "style=" not in answer.text


async def test_projects_are_created_and_listed_page_by_page(office: Office) -> None:
    await office.sign_in("operator")
    assert "There is no project yet." in await office.text("/projects")
    made = await office.post("/projects", name=" Leases ", language="de", document_prompt="Rent.")
    assert made.status_code == 303
    page = await office.text(made.headers["location"])
    assert "Leases" in page
    assert "Rent." in page
    refused = await office.post("/projects", name="")
    assert refused.status_code == 422
    assert 'role="alert"' in refused.text
    for number in range(51):
        await office.samples.project(f"P-{number}")
    first = await office.text("/projects")
    assert "P-50" in first
    assert "Leases" not in first
    more = re.search(r'/projects\?cursor=[^"]+', first)
    assert more is not None
    assert "Leases" in await office.text(more[0])
    await office.text("/projects?cursor=wrong", 422)


async def test_documents_are_listed_with_those_in_progress_on_top(office: Office) -> None:
    samples, project = office.samples, await office.samples.project()
    await samples.running(await samples.project("Other"), "not here.pdf")
    await samples.document(project, "waits.pdf")
    await samples.failed(project, "broken.pdf")
    await samples.running(project, "runs.pdf")
    await office.sign_in("viewer")
    page = await office.text(f"/projects/{project.id}")
    assert "not here.pdf" not in page
    top, _, rest = page.partition('id="documents"')
    assert "runs.pdf" in top
    assert "broken.pdf" not in top
    for name, said in (
        ("waits.pdf", "Not processed"),
        ("broken.pdf", "The file is encrypted"),
        ("runs.pdf", "In progress"),
    ):
        assert said in rest[rest.index(name) :]
    for number in range(25):
        await samples.document(project, f"more-{number:02}.pdf")
    first = await office.text(f"/projects/{project.id}")
    assert "more-24.pdf" not in first
    more = re.search(r'/projects/[^"?]+\?cursor=[^"]+', first)
    assert more is not None
    assert "more-24.pdf" in await office.text(more[0])


async def test_a_document_shows_its_steps_and_pages_of_its_segments(office: Office) -> None:
    project = await office.samples.project()
    workflow = await office.samples.running(project, total=600, done=20)
    await office.sign_in("viewer")
    path = f"/documents/{workflow.document}"
    page = await office.text(path)
    for said in ("Bedrock Document Analysis", "Not needed", "20 of 600", "1 to 250 of 600", "→"):
        assert said in page or said == "→"
    assert f'href="{path}/segments/19"' in page
    assert f'href="{path}/segments/21"' not in page  # it waits, so that it has no page yet
    assert "501 to 600 of 600" in await office.text(f"{path}?page=3")
    for odd in ("999", "0", "-1", "x", "9" * 30, "٣"):
        assert " of 600." in await office.text(f"{path}?page={odd}")
    failed = await office.text(f"{path}?failed=1")
    assert "Segment 20" in failed
    assert "3 attempts" in failed
    assert "None of the segments 21 to 600" in await office.text(f"{path}?failed=21")
    await office.text(f"{path}?workflow=none", 404)
    other = await office.samples.begun(project, "other.pdf")
    await office.text(f"{path}?workflow={other.id}", 404)


async def test_a_document_without_a_workflow_and_one_with_two(office: Office) -> None:
    project = await office.samples.project()
    bare = await office.samples.document(project)
    await office.sign_in("operator")
    page = await office.text(f"/documents/{bare.id}")
    assert "Not processed" in page
    assert "Process it now" in page
    await office.text(f"/documents/{bare.id}/segments/1", 404)
    failed = await office.samples.failed(project)
    newest = await office.hf.documents.begin(failed.document)
    path = f"/documents/{failed.document}"
    assert f"{path}?workflow={failed.id}" in await office.text(path)
    earlier = await office.text(f"{path}?workflow={failed.id}")
    assert "This is an earlier processing." in earlier
    assert "Retry" not in earlier
    assert f"{path}?workflow={newest.id}" in earlier


async def test_a_segment_that_waits_one_that_is_damaged_and_one_without_content(
    office: Office,
) -> None:
    project = await office.samples.project()
    workflow = await office.samples.running(project)
    path = f"/documents/{workflow.document}/segments"
    await office.samples.segment(workflow, 1, content=b"{")
    await office.samples.segment(workflow, 2, content=b"[1]")
    await office.samples.segment(
        workflow, 3, content={"text": 5, "tables": [7, {"rows": [1, [2]]}]}
    )
    gone = f"blob:documents/default/{workflow.document}/x/y.json?sha256={'0' * 64}&bytes=3"
    for index, key in ((4, gone), (5, "blob:documents/rival/x/y"), (6, "s3://else/where")):
        await office.hf.documents.put_segment(workflow.id, index, s3_key=key, image_uri=key)
    await office.sign_in("viewer")
    assert "There is no text yet." in await office.text(f"{path}/12")
    for index in (1, 2):
        assert "is damaged" in await office.text(f"{path}/{index}")
    assert "Tables" in await office.text(f"{path}/3")
    for index in (4, 5, 6):
        assert "is gone" in await office.text(f"{path}/{index}")
        await office.text(f"{path}/{index}/image", 404)
    await office.text(f"{path}/13", 404)
    await office.text(f"{path}/0", 400)
    await office.text(f"{path}/x", 404)


async def test_only_pictures_are_sent_as_pictures(office: Office) -> None:
    project = await office.samples.project()
    workflow = await office.samples.running(project)
    path = f"/documents/{workflow.document}/segments"
    images = {
        1: (picture(9, 9), "image/png"),
        2: (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        3: (b"RIFF1234WEBPrest", "image/webp"),
        4: (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", None),
        5: (b"<!doctype html><script>alert(1)</script>", None),
        6: (b"", None),
    }
    for index, (data, _) in images.items():
        await office.samples.segment(workflow, index, image=data)
    await office.sign_in("viewer")
    for index, (data, kind) in images.items():
        answer = await office.http.get(f"{path}/{index}/image")
        if kind is None:
            assert answer.status_code == 404
            assert data not in answer.content or not data
            continue
        assert (answer.content, answer.headers["content-type"]) == (data, kind)
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    await office.text(f"{path}/12/image", 404)


async def test_hostile_texts_are_escaped_everywhere(office: Office) -> None:
    project = await office.samples.project(HOSTILE, document_prompt=HOSTILE)
    workflow = await office.samples.running(project, HOSTILE)
    await office.samples.document(project, LONG_NAME, file_type="text/html")
    content = {"text": HOSTILE, "title": HOSTILE, "tables": [{"rows": [[HOSTILE]]}]}
    await office.samples.segment(
        workflow, 1, content=content, analysis=[HOSTILE, {HOSTILE: HOSTILE}]
    )
    await office.hf.documents.put_segment(workflow.id, 2, status="failed", error=HOSTILE)
    await office.hf.documents.end_step(
        workflow.id, "segment_analyzer", status="failed", error=HOSTILE
    )
    await office.hf.documents.set_status(workflow.id, "failed", error=HOSTILE)
    search = required_search(office.hf.documents.search)
    entries = [SegmentEntry(1, f"alert {HOSTILE}", title=HOSTILE)]
    await search.add("default", project.id, workflow.document, workflow.id, entries)
    await office.sign_in("operator")
    document = f"/documents/{workflow.document}"
    for path in (
        "/projects",
        f"/projects/{project.id}",
        f"/projects/{project.id}/search?q=alert&document={workflow.document}",
        f"/projects/{project.id}/search?q=%3Cscript%3E%22%27",
        document,
        f"{document}?failed=1",
        f"{document}/delete",
        f"{document}/segments/1",
        f"{document}/segments/2",
    ):
        page = await office.text(path)
        assert "<script" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;" in page


async def test_search_marks_what_was_found(office: Office) -> None:
    project, workflow, _ = await paths_of(office)
    other = await office.samples.begun(project, "other.pdf")
    search = required_search(office.hf.documents.search)
    for each, text in ((workflow, "The valve of the boiler."), (other, "A boiler.")):
        entries = [SegmentEntry(1, text)]
        await search.add("default", project.id, each.document, each.id, entries)
    await office.sign_in("viewer")
    path = f"/projects/{project.id}/search"
    page = await office.text(f"{path}?q=boiler")
    assert "<mark>boiler</mark>" in page
    assert f"/documents/{workflow.document}/segments/1?workflow={workflow.id}" in page
    assert "other.pdf" in page
    one = await office.text(f"{path}?q=boiler&document={workflow.document}")
    assert "other.pdf" not in one
    assert "Nothing was found." in await office.text(f"{path}?q=nothingofthiskind")
    assert "Nothing was found." in await office.text(f"{path}?q=...")
    assert 'role="alert"' in await office.text(f"{path}?q={'x' * 1001}", 422)
    assert "<mark>" not in await office.text(path)
    await office.hf.documents.delete(other.document)
    assert "other.pdf" not in await office.text(f"{path}?q=boiler")
    office.hf.documents.search = None
    assert "has no search" in await office.text(f"{path}?q=boiler")


async def test_a_document_is_deleted_after_it_was_asked(office: Office) -> None:
    project, workflow, _ = await paths_of(office)
    await office.sign_in("operator")
    path = f"/documents/{workflow.document}/delete"
    assert "cannot be undone" in await office.text(path)
    assert await office.hf.documents.get(workflow.document)
    done = await office.post(path)
    assert (done.status_code, done.headers["location"]) == (303, f"/projects/{project.id}")
    with pytest.raises(DocumentNotFound):
        await office.hf.documents.get(workflow.document)
    await office.text(f"/documents/{workflow.document}", 404)


async def test_a_file_is_uploaded_and_processed(office: Office) -> None:
    project = await office.samples.project()
    await office.sign_in("operator")
    done = await office.upload(project, "C:\\scans\\letter.pdf", PDF)
    assert done.status_code == 303, done.text
    document = await office.hf.documents.get(done.headers["location"].rpartition("/")[2])
    assert (document.file_name, document.file_bytes) == ("letter.pdf", len(PDF))
    stored = [part async for part in office.hf.documents.files.read(document.file_uri)]
    assert b"".join(stored) == PDF
    assert (await office.hf.run(f"doc-{document.workflow}").result())["done"]
    assert "letter.pdf" in await office.text(f"/projects/{project.id}")


async def test_what_is_no_document_is_not_added(office: Office) -> None:
    project = await office.samples.project()
    await office.sign_in("operator")
    office.hf.documents.uploads.file_bytes_max = 100
    for name, data, status in (
        ("a.pdf", b"", 415),
        ("a.pdf", PDF + b"x" * 200, 413),
        ("evil.pdf", b"MZ\x90\x00this is a program", 415),
    ):
        answer = await office.upload(project, name, data)
        assert answer.status_code == status, answer.text
        assert "The document was not added" in answer.text
    # What a browser sends if no file was chosen.
    token = token_of(await office.text(f"/projects/{project.id}"))
    parts = f'name="form_token"\r\n\r\n{token}', 'name="file"; filename=""\r\n\r\n'
    body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    none = await office.http.post(
        f"/projects/{project.id}", content=f"{body}--b--\r\n", headers=kind
    )
    assert none.status_code == 422
    assert "no file was chosen" in none.text
    wrong = await office.http.post(f"/projects/{project.id}", data={"end": "1"})
    assert wrong.status_code == 415
    assert (await office.hf.documents.list(project.id)).documents == []


async def test_a_project_of_an_unknown_pipeline_takes_no_document(office: Office) -> None:
    project = await office.samples.project(pipeline="nowhere")
    await office.sign_in("operator")
    answer = await office.upload(project, "a.pdf", PDF)
    assert answer.status_code == 404
    assert "nowhere" in answer.text
    assert (await office.hf.documents.list(project.id)).documents == []


async def test_a_failed_document_is_retried_and_processed_again(office: Office) -> None:
    project = await office.samples.project()
    failed = await office.samples.failed(project)
    failures.add(failed.id)
    run = await office.hf.start(pipeline, Work(failed.id), id=f"doc-{failed.id}")
    await run.until("failed", timeout=20)
    failures.clear()
    await office.sign_in("operator")
    path = f"/documents/{failed.document}"
    done = await office.post(path, action="retry", workflow=failed.id)
    assert (done.status_code, done.headers["location"]) == (303, path)
    assert (await run.result()).done
    again = await office.post(path, action="retry", workflow=failed.id)
    assert again.status_code == 409
    assert "This was not done" in again.text
    assert (await office.post(path, action="process")).status_code == 303
    newest = (await office.hf.documents.get(failed.document)).workflow
    assert newest not in (None, failed.id)
    assert (await office.hf.run(f"doc-{newest}").result())["done"]
    delete = f"{path}/delete"
    assert (await office.post(path, page=delete, action="nothing")).status_code == 400
    other = await office.samples.failed(project)
    foreign = await office.post(path, page=delete, action="retry", workflow=other.id)
    assert foreign.status_code == 404


async def test_a_failed_segment_is_retried_alone(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await office.samples.project()
    workflow = await office.samples.running(project, done=5)
    asked: list[object] = []

    async def retry(hf: Holdfast, id: str, *, segment: int, tenant: str) -> None:
        asked.append((id, segment, tenant))
        if len(asked) > 1:
            raise NotRetryable("the run has no map of segments")

    monkeypatch.setattr(segment_page, "retry_workflow", retry)
    path = f"/documents/{workflow.document}/segments/5"
    await office.sign_in("viewer")
    assert "Retry" not in await office.text(path)
    await office.sign_in("operator")
    assert "Retry" not in await office.text(f"/documents/{workflow.document}/segments/4")
    done = await office.post(path, workflow=workflow.id)
    assert (done.status_code, done.headers["location"]) == (303, path)
    assert asked == [(workflow.id, 5, "default")]
    again = await office.post(path, workflow=workflow.id)
    assert again.status_code == 409
    assert "the run has no map of segments" in again.text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (600, "10 min"), (7260, "2 h 1 min")],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert shown_duration(seconds) == shown


def test_pages_of_a_large_grid_are_linked_with_gaps() -> None:
    page = grid_page([], number=6, total=3_000)
    assert (page.first, page.last, len(page.cells)) == (1_251, 1_500, 250)
    assert page.linked == [1, 0, 4, 5, 6, 7, 8, 0, 12]
    assert grid_page([], number=1, total=1).linked == [1]
