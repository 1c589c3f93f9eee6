"""A small server for tests of the client: the routes that it calls, on a Holdfast of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from holdfast import Budget, Holdfast, Program, RunFilter
from holdfast.errors import HoldfastError, UnknownGraph
from holdfast.model.json_form import JsonForm
from holdfast.model.progress import BulkProgress
from holdfast.server.problems import status_of

Send = Callable[[dict[str, Any]], Awaitable[None]]
ENDED = {"finished", "failed", "cancelled", "expired", "quarantined", "promoted"}


class StubServer:
    """An ASGI application with the contract of the server, as far as the client needs it."""

    def __init__(self, hf: Holdfast, graphs: Iterable[Program]) -> None:
        self.hf = hf
        self.graphs = {graph.name: graph for graph in graphs}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.cut_after: int | None = None
        """After how many messages the next stream is cut."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with self.hf.worker(list(self.graphs.values())):
            yield

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = [unquote(part) for part in scope["raw_path"].split(b"?")[0].decode().split("/")[2:]]
        query = parse_qs(scope["query_string"].decode())
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((scope["method"], scope["path"]))
        self.headers.append(headers)
        try:
            if path[0] == "runs" and path[2:] == ["stream"]:
                await self._stream(path[1], query, headers, send)
                return
            given = msgspec.json.decode(body) if body else {}
            status, answer = await self._answer(scope["method"], path, query, given, headers)
        except HoldfastError as error:
            status = status_of(error)
            answer = {"status": status, "code": error.code, "detail": str(error), "title": ""}
            if getattr(error, "field", None):
                answer["field"] = error.field  # type: ignore[attr-defined]
        if isinstance(answer, JsonForm):
            answer = answer.as_dict()
        content = b"" if answer is None else msgspec.json.encode(answer)
        await _respond(send, status, content, "application/json")

    async def _answer(
        self, method: str, path: list[str], query: dict[str, list[str]], body: Any, headers: Any
    ) -> tuple[int, Any]:
        one = {name: values[0] for name, values in query.items()}
        tenant = headers.get("holdfast-tenant")
        match method, path:
            case "POST", ["runs"]:
                return await self._start(body, tenant)
            case "GET", ["runs"]:
                labels = dict(each.split("=", 1) for each in query.pop("label", []))
                limit, cursor = int(one.pop("limit", 100)), one.pop("cursor", None)
                status = query.pop("status", None)
                rest = {name: one[name] for name in query if name in one}
                for name in ("cost_usd_min", "cost_usd_max"):
                    if name in rest:
                        rest[name] = float(rest[name])
                found = RunFilter(status, labels=labels, **rest)
                return 200, await self.hf.list(found, tenant=tenant, limit=limit, cursor=cursor)
            case "GET", ["ambiguous"]:
                calls = [call.as_dict() async for call in self.hf.ambiguous(tenant=tenant)]
                return 200, {"calls": calls, "cursor": None}
            case "GET", ["sessions", session, "queue"]:
                queue = await self.hf.session_queue(session, user=one.get("user"), tenant=tenant)
                return 200, {"runs": [each.as_dict() for each in queue], "cursor": None}
            case _, ["bulk", *rest]:
                return await self._bulk(method, rest, body, tenant)
            case "GET", ["graphs"]:
                return 200, {"graphs": [{"name": name} for name in self.graphs], "cursor": None}
            case _, ["runs", id, *action]:
                return await self._run(method, action, self.hf.run(id, tenant=tenant), one, body)
            case _:
                return 404, {"code": "not_found", "detail": "", "status": 404}

    async def _start(self, body: Any, tenant: str | None) -> tuple[int, Any]:
        graph = self.graphs.get(body.pop("graph"))
        if graph is None:
            raise UnknownGraph(f"this server has only {', '.join(self.graphs)}")
        if "budget" in body:
            body["budget"] = Budget(**body["budget"])
        run = await self.hf.start(graph, body.pop("input", None), tenant=tenant, **body)
        return 201, {"id": run.id, "tenant": run.tenant, "url": f"/v1/runs/{run.id}"}

    async def _run(
        self, method: str, action: list[str], run: Any, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        limit, cursor = int(query.get("limit", 100)), query.get("cursor")
        match method, action:
            case "GET", []:
                return 200, await run.get()
            case "GET", ["result"]:
                return 200, {"result": await run.result()}
            case "GET", ["input"]:
                return 200, {"input": await run.input()}
            case "GET", ["state"]:
                branch = query.get("branch", "")
                return 200, {"state": await run.state(at=query.get("at"), branch=branch)}
            case "GET", ["waits"]:
                return 200, await run.waits(limit=limit, cursor=cursor)
            case "GET", ["history"]:
                return 200, await run.history(limit=limit, cursor=cursor)
            case "GET", ["spending"]:
                return 200, await run.spending()
            case "GET", ["children"]:
                found = [each.as_dict() for each in await run.children()]
                return 200, {"runs": found, "cursor": None, "damaged": []}
            case "GET", ["set-aside"]:
                found = [each.as_dict() for each in await run.set_aside()]
                return 200, {"signals": found, "cursor": None}
            case "POST", ["signals"]:
                name, payload = body["name"], body.get("payload")
                return 200, await run.signal(name, payload, signal_id=body.get("signal_id"))
            case "POST", ["cancel"]:
                return 204, await run.cancel(**body)
            case "POST", ["retry"]:
                return 204, await run.retry(**body)
            case "POST", ["extend"]:
                return 204, await run.extend(**body)
            case "PUT", ["budget"]:
                return 204, await run.set_budget(Budget(**body))
            case "POST", ["calls", call, "resolve"]:
                return 204, await run.resolve(call, **body)
            case _:
                return 405, {"code": "method_not_allowed", "detail": "", "status": 405}

    async def _bulk(
        self, method: str, path: list[str], body: Any, tenant: str | None
    ) -> tuple[int, Any]:
        if method == "GET":
            return 200, self.jobs[path[0]]
        action, conditions = body.pop("action"), body.pop("filter")
        act = self.hf.cancel_all if action == "cancel" else self.hf.retry_all
        progress = BulkProgress()
        async for each in act(RunFilter(**conditions), tenant=tenant, **body):
            progress = each
        job = {"id": f"job-{len(self.jobs)}", "status": "finished", "error": None}
        self.jobs[job["id"] or ""] = {**job, "progress": progress.as_dict()}
        return 202, {**job, "status": "pending", "progress": BulkProgress().as_dict()}

    async def _stream(self, id: str, query: Any, headers: Any, send: Send) -> None:
        run = self.hf.run(id, tenant=headers.get("holdfast-tenant"))
        wanted = {name: values[0] == "true" for name, values in query.items()}
        events, _, text = headers.get("last-event-id", "~").partition("~")
        row = await run.get()
        source: Any = (
            run.events(after=events or None, follow=wanted["follow"], ephemeral=False)
            if wanted["events"]
            else run.tokens(after=text or None, follow=wanted["follow"])
        )
        await source.open()
        await send(_head(200, "text/event-stream"))
        await _message(send, "snapshot", None, row.as_dict())
        left, self.cut_after = self.cut_after, None
        last = headers.get("last-event-id", "~")
        async for item in source:
            if left == 0:
                await source.aclose()
                reason = {"reason": "shutdown", "resume": last, "status": None}
                await _message(send, "end", last, reason)
                await send({"type": "http.response.body", "body": b""})
                return
            left = None if left is None else left - 1
            last = f"{item.cursor}~" if wanted["events"] else f"~{item.cursor}"
            await _message(send, "event" if wanted["events"] else "text", last, item.as_dict())
        reason = "ended" if wanted["follow"] else "caught_up"
        ending = {"reason": reason, "status": (await run.get()).status, "resume": last}
        await _message(send, "end", last, ending)
        with suppress(asyncio.CancelledError):
            await send({"type": "http.response.body", "body": b""})


def _head(status: int, media_type: str) -> dict[str, Any]:
    headers = [(b"content-type", media_type.encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _respond(send: Send, status: int, content: bytes, media_type: str) -> None:
    await send(_head(status, media_type))
    await send({"type": "http.response.body", "body": content})


async def _message(send: Send, kind: str, id: str | None, data: Any) -> None:
    lines = [] if id is None else [f"id: {id}"]
    if kind == "end":
        lines.append("retry: 1")
    lines += [f"event: {kind}", f"data: {msgspec.json.encode(data).decode()}", "", ""]
    frame = "\n".join(lines).encode()
    await send({"type": "http.response.body", "body": frame, "more_body": True})
