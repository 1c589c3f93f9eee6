"""Orders over HTTP: place one, look at it, approve it, follow it. Run: uvicorn app:app"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse

from holdfast import Context, Graph, HistoryEntry, Holdfast, RunStream, days, signal
from holdfast.errors import (
    AlreadyExists,
    HoldfastError,
    InvalidRequest,
    RunEnded,
    RunNotFound,
)


@dataclass
class Order:
    item: str
    cents: int
    receipt: str = ""
    approved: bool = False


graph = Graph("orders", Order)
APPROVED = signal("approved", bool)


async def charge(cents: int, *, idempotency_key: str) -> str:
    """Stand for a payment service, which charges once for each key."""
    return f"receipt {idempotency_key[:8]} for {cents}"


@graph.node
async def pay(order: Order, ctx: Context) -> Order:
    return replace(order, receipt=await ctx.call(charge, order.cents))


@graph.node
async def approve(order: Order, ctx: Context) -> Order:
    about = {"item": order.item, "cents": order.cents}
    return replace(order, approved=await ctx.wait(APPROVED, max_wait=days(3), about=about))


graph.route(pay, approve)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    url = os.environ.get("HOLDFAST_URL", "sqlite:///orders.db")
    async with Holdfast(url) as hf, hf.worker([graph], lease=10, drain=10):
        app.state.hf = hf
        yield


app = FastAPI(lifespan=lifespan)


def opened(request: Request) -> Holdfast:
    hf: Holdfast = request.app.state.hf
    return hf


Opened = Annotated[Holdfast, Depends(opened)]


@app.post("/orders", status_code=202)
async def place(
    order: Order, hf: Opened, idempotency_key: Annotated[str, Header()]
) -> dict[str, str]:
    """Start a run. The client may repeat the request: the same key gives the same run."""
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
    run = await hf.start(graph, Order(order.item, order.cents), id=f"order-{digest[:32]}")
    return {"id": run.id}


@app.get("/orders/{id}")
async def show(id: str, hf: Opened) -> dict[str, object]:
    row = await hf.run(id).get()
    order: Order = await hf.run(id, graph=graph).state()
    waits = [{"for": wait.signal, "about": wait.about} for wait in row.waits]
    return {"status": row.status, "receipt": order.receipt, "waits": waits}


@app.post("/orders/{id}/approval")
async def decide(id: str, approved: bool, hf: Opened) -> dict[str, bool]:
    """Send the decision. It counts once, however often the form is sent."""
    receipt = await hf.run(id).signal("approved", approved, signal_id="decision")
    return {"repeated": receipt.repeated}


@app.get("/orders/{id}/events")
async def follow(
    id: str, hf: Opened, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Stream the history. A browser that reconnects sends the id of the last event it got."""
    stream = hf.run(id).events(after=last_event_id)
    await stream.open()  # reads the run: an unknown id is a 404, and not an empty stream
    return StreamingResponse(sse_lines(stream), media_type="text/event-stream")


async def sse_lines(stream: RunStream[HistoryEntry]) -> AsyncIterator[str]:
    async with stream:  # closes it when the browser leaves
        async for entry in stream:
            told = entry.as_dict()
            shown = {"at": told["at"], "node": told["node"]}  # details are not for every reader
            yield f"id: {entry.cursor}\nevent: {entry.kind}\ndata: {json.dumps(shown)}\n\n"


@app.exception_handler(HoldfastError)
async def explain(request: Request, error: HoldfastError) -> JSONResponse:
    """Answer with the status of an error, and its code, which never changes."""
    match error:
        case RunNotFound():
            status = 404
        case AlreadyExists() | RunEnded():
            status = 409
        case InvalidRequest():
            status = 422
        case _:
            status = 503 if error.retryable else 500
    text = str(error) if status < 500 else "the order service has a problem"
    return JSONResponse({"code": error.code, "error": text}, status_code=status)
