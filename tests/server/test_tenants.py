"""No route and no stream shows or changes anything of another tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, RunFilter
from holdfast.documents.pipelines import start_pipelines
from holdfast.documents.search import required_search
from holdfast.model.segment_search import SegmentEntry
from holdfast.model.service import BulkRequest
from holdfast.network.addresses import AllowList
from holdfast.server import ServerApp, ServerOptions
from tests.server.callers import answer_to, bearer, key_for, open_socket, serving
from tests.server.graphs import GRAPHS, Order, Sale, mapped, orders, paying, reviewed
from tests.server.pipeline_graphs import DOCUMENT_GRAPHS, documents
from tests.server.route_table import NAMED, Route, routes_of

MARK = "crown-jewels"
MISSING = "it-is-not-there"
GIF = b"GIF89a" + MARK.encode()
OPTIONS = ServerOptions(authentication=True, key_rate=None, tenant_rate=None)
# Graphs belong to the server, and not to a tenant.
SHARED = ("/v1/graphs",)
# Conditions that the things of the tenant meet.
QUERIES = {
    "/documents/{id}/segments/{index}": f"workflow={MARK}",
    "/documents/{id}/segments/{index}/image": f"workflow={MARK}",
    "/v1/cost": f"by=label:mark&label=mark%3D{MARK}",
    "/v1/document-workflows": "status=pending",
    "/v1/fleet/unserved": "grace_seconds=0",
    "/v1/runs": f"label=mark%3D{MARK}&status=waiting",
    "/v1/search": f"q={MARK}",
    "/v1/streams/runs": f"label=mark%3D{MARK}",
    "/v1/streams/runs/ws": f"label=mark%3D{MARK}",
}
# What a request needs besides a body, by the beginning of its path.
HEADERS = {
    "/v1/uploads": {
        "Tus-Resumable": "1.0.0",
        "Upload-Offset": "0",
        "Upload-Length": "5",
        "Upload-Metadata": "project bm9uZQ==,filename YS5wZGY=",
        "Content-Type": "application/offset+octet-stream",
    },
}
# Routes that show a tenant its own things without a name that the caller gives.
LISTS = {
    "/projects",
    "/reviews",
    "/v1/ambiguous",
    "/v1/bulk",
    "/v1/cost",
    "/v1/document-workflows",
    "/v1/fleet/unserved",
    "/v1/keys",
    "/v1/projects",
    "/v1/reviews",
    "/v1/runs",
    "/v1/search",
    "/v1/sessions/{session}/queue",
    "/v1/streams/runs",
    "/v1/streams/runs/ws",
    "/v1/webhooks",
}
PAGED = {
    "/v1/ambiguous": "limit=1",
    "/v1/bulk": "limit=1",
    "/v1/document-workflows": "limit=1&status=pending",
    f"/v1/documents/{MARK}/document-workflows": "limit=1",
    "/v1/projects": "limit=1",
    f"/v1/projects/{MARK}/documents": "limit=1",
    f"/v1/projects/{MARK}/document-workflows": "limit=1",
    "/v1/fleet/unserved": "limit=1&grace_seconds=0",
    "/v1/reviews": "limit=1",
    "/v1/runs": "limit=1",
    f"/v1/sessions/{MARK}/queue": "limit=1",
}


@dataclass
class Crossing:
    """A server, the things of tenant a, and a caller of each tenant."""

    app: ServerApp
    things: dict[str, dict[str, str]]
    owner: str
    stranger: str

    def parameters(self, route: Route) -> dict[str, str]:
        known = next(
            (each for start, each in self.things.items() if route.path.startswith(start)), {}
        )
        return {**dict.fromkeys(NAMED, MARK), "index": "1", **known}

    async def ask(
        self, route: Route, secret: str, parameters: dict[str, str] | None = None, query: str = ""
    ) -> tuple[int, str]:
        """Return the status and the text of a response; of a WebSocket, of its first message."""
        path = route.filled(self.parameters(route) if parameters is None else parameters)
        query = query or QUERIES.get(route.path, "")
        needed = (each for start, each in HEADERS.items() if route.path.startswith(start))
        headers = {**next(needed, {}), **bearer(secret)}
        if route.method == "WS":
            sent = await open_socket(self.app, path, headers, query=query)
            is_open = sent[0]["type"] == "websocket.accept"
            return 200 if is_open else sent[0]["code"] - 4000, repr(sent)
        return await answer_to(
            self.app, route.method, path, headers=headers, json=route.body, query=query
        )


async def things_of(hf: Holdfast, tenant: str) -> dict[str, dict[str, str]]:
    """Make two of everything in a tenant; return parameters by the beginning of a path."""
    named: dict[str, Any] = {"tenant": tenant, "labels": {"mark": MARK}}
    async with hf.worker([*GRAPHS, mapped]):
        run = await hf.start(orders, Order(MARK), id=MARK, session=MARK, **named)
        await hf.start(orders, Order(MARK), id=f"{MARK}-2", session=MARK, **named)
        for each in (run, await hf.start(orders, Order(MARK), id=f"{MARK}-3", **named)):
            await each.until("waiting", timeout=20)
        for number in range(2):
            paid = await hf.start(paying, Order(MARK), id=f"{MARK}-pay-{number}", **named)
            await paid.until("waiting", timeout=20)
        for id in (f"{MARK}-sale", f"{MARK}-sale-2"):
            sale = await hf.start(reviewed, Sale(MARK), id=id, **named)
            await sale.until("waiting", timeout=20)
        counted = await hf.start(mapped, Order(MARK), id=f"{MARK}-map", **named)
        await counted.result(timeout=20)
    reviews = (await hf.reviews.list(tenant=tenant)).reviews
    unserved = {**named, "pool": MARK, "start_at": "2020-01-01T00:00:00Z"}
    for number in range(2):
        await hf.start(orders, Order(MARK), id=f"{MARK}-due-{number}", **unserved)
    [call, _] = [call async for call in hf.ambiguous(tenant=tenant)]
    keys = [await hf.keys.create(MARK, tenant=tenant, role="viewer") for _ in range(2)]
    hf.webhooks.allow = AllowList(["127.0.0.1:9"])
    hooks = [await hf.webhooks.add(f"https://127.0.0.1:9/{MARK}", tenant=tenant) for _ in range(2)]
    await hf.webhooks.test(hooks[0].webhook.id, tenant=tenant, max_wait=0.01)
    upload = await documents_of(hf, tenant)
    conditions = {"graph": MARK}
    request = BulkRequest(action="cancel", filter=conditions, reason=MARK)
    jobs = [await hf.bulk_jobs.add(request, RunFilter(graph=MARK), tenant=tenant) for _ in range(2)]
    return {
        "/v1/runs/{id}/calls": {"id": call.run, "call": call.call},
        "/v1/runs/{id}/reviews": {"id": f"{MARK}-sale"},
        "/v1/runs/{id}/interrupts": {"id": f"{MARK}-sale"},
        "/v1/runs/{id}/maps": {"id": counted.id, "map": "0.1"},
        "/v1/runs": {"id": run.id},
        "/v1/reviews": {"id": reviews[0].id},
        "/reviews": {"id": reviews[0].id},
        "/v1/keys": {"id": keys[0].id},
        "/v1/webhooks": {"id": hooks[0].webhook.id},
        "/v1/bulk": {"id": jobs[0].id},
        "/v1/uploads": {"id": upload},
    }


async def documents_of(hf: Holdfast, tenant: str) -> str:
    """Make a project, two documents and their workflows; return the id of an open upload."""
    docs = hf.documents
    start_pipelines(hf, DOCUMENT_GRAPHS)
    for id in (MARK, f"{MARK}-2"):
        await docs.projects.create(MARK, id=id, tenant=tenant)
    for id in (MARK, f"{MARK}-2"):
        place = docs.place(id, tenant=tenant)
        file = await docs.files.put(MARK.encode(), name=MARK, place=place, tenant=tenant)
        given: dict[str, Any] = {"file_uri": file.uri, "file_name": MARK, "file_type": "text/plain"}
        await docs.add(MARK, **given, place=place, tenant=tenant)
        for workflow in (id, f"{id}-again"):
            await docs.begin(id, id=workflow, tenant=tenant)
        await docs.update_workflow(id, total_segments=2, tenant=tenant)
        await hf.start(documents, {"workflow": id}, id=f"doc-{id}", tenant=tenant)
        parts = [
            await docs.files.put_blob(data, name=name, prefix=place.prefix, tenant=tenant)
            for name, data in (("1.json", b'{"text": "' + MARK.encode() + b'"}'), ("1.gif", GIF))
        ]
        for index in (1, 2):
            await docs.put_segment(id, index, s3_key=parts[0], image_uri=parts[1], tenant=tenant)
    entry = SegmentEntry(1, f"{MARK} in a text")
    await required_search(hf.documents.search).add(tenant, MARK, MARK, MARK, [entry])
    return (await docs.uploads.create(MARK, name=f"{MARK}.pdf", length=5, tenant=tenant)).id


@pytest.fixture
async def crossing(hf: Holdfast) -> AsyncIterator[Crossing]:
    things = await things_of(hf, "a")
    owner, stranger = await key_for(hf, tenant="a"), await key_for(hf, tenant="b")
    async with serving(hf, OPTIONS) as (_, app):
        yield Crossing(app, things, owner, stranger)


def guarded(app: ServerApp) -> list[Route]:
    return [route for route in routes_of(app) if route.role != "public"]


async def everything_of(hf: Holdfast, tenant: str) -> list[Any]:
    """Return what the routes could change."""
    runs = (await hf.list(tenant=tenant, limit=100)).runs
    jobs = (await hf.bulk_jobs.list(tenant=tenant)).jobs
    return [
        [each.id for each in await hf.keys.list(tenant)],
        [await hf.run(run.id, tenant=tenant).get() for run in runs],
        await hf.webhooks.list(tenant=tenant),
        (await hf.documents.projects.list(tenant=tenant)).projects,
        (await hf.documents.list(MARK, tenant=tenant)).documents,
        (await hf.documents.in_progress(status="pending", tenant=tenant)).workflows,
        # The server carries the jobs out meanwhile.
        [(job.id, job.status == "cancelled") for job in jobs],
        [call async for call in hf.ambiguous(tenant=tenant)],
        [
            await done_with(hf, review.id, tenant)
            for review in (await hf.reviews.list(tenant=tenant)).reviews
        ],
    ]


async def done_with(hf: Holdfast, id: str, tenant: str) -> list[Any]:
    """Return what people did with a review; the server sends notices meanwhile."""
    review = await hf.reviews.get(id, tenant=tenant)
    people = [action for action in review.trail if action.kind != "notified"]
    return [id, review.status, review.rendered, review.claimed_by, review.votes, people]


async def test_a_tenant_sees_its_own_things(crossing: Crossing) -> None:
    """The other tests would find what they look for."""
    shown = set[str]()
    for route in guarded(crossing.app):
        if route.method not in ("GET", "WS"):
            continue
        status, said = await crossing.ask(route, crossing.owner)
        if "{id}" in route.path:
            assert status in (200, 202), route
        elif status == 200 and MARK in said:
            shown.add(route.path)
    assert shown == LISTS


async def test_no_route_and_no_stream_shows_anything_of_another_tenant(
    hf: Holdfast, crossing: Crossing
) -> None:
    before = await everything_of(hf, "a")
    for route in guarded(crossing.app):
        parameters = crossing.parameters(route)
        status, said = await crossing.ask(route, crossing.stranger)
        if "{" in route.path and not route.path.startswith(SHARED):
            missing = dict.fromkeys(parameters, MISSING)
            # What belongs to others looks exactly like what does not exist.
            assert status == (await crossing.ask(route, crossing.stranger, missing))[0], route
            assert status == (200 if "/sessions/" in route.path else 404), route
        for value in parameters.values():
            said = said.replace(value, "") if value in route.filled(parameters) else said
        assert MARK not in said, route
    assert await everything_of(hf, "a") == before


async def test_a_cursor_of_another_tenant_leads_nowhere(crossing: Crossing) -> None:
    for path, query in PAGED.items():
        route = Route("GET", path, "viewer")
        _, own = await crossing.ask(route, crossing.owner, {}, query=query)
        query += f"&cursor={msgspec.json.decode(own)['cursor']}"
        _, rest = await crossing.ask(route, crossing.owner, {}, query=query)
        assert MARK in rest, path
        status, said = await crossing.ask(route, crossing.stranger, {}, query=query)
        assert status in (200, 404, 422), (path, said)
        assert MARK not in said.replace(repr(MARK), ""), (path, said)


async def test_a_tenant_cannot_ask_for_all_tenants(crossing: Crossing) -> None:
    for path, query in (
        ("/v1/fleet/stuck", "all_tenants=true"),
        ("/v1/fleet/unserved", "all_tenants=true"),
        ("/v1/fleet/overview", ""),
        ("/metrics", ""),
    ):
        route = Route("GET", path, "viewer")
        status, said = await crossing.ask(route, crossing.stranger, {}, query=query)
        assert status == 403, path
        assert MARK not in said


async def test_no_credentials_open_no_stream(crossing: Crossing) -> None:
    for route in guarded(crossing.app):
        if route.method == "WS":
            path = route.filled(crossing.parameters(route))
            [closed] = await open_socket(crossing.app, path, {})
            assert closed["code"] == 4401
