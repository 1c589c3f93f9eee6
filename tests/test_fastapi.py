"""What callers read, as responses of FastAPI and as fields of pydantic models."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx
import pydantic
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import HistoryPage, Run, RunEntry, RunPage, SignalReceipt
from tests.model.test_json_form import ENTRY, EVENT, RUN


class Shown(pydantic.BaseModel):
    run: Run
    others: dict[str, RunEntry | None]


app = FastAPI()


@app.get("/typed")
async def typed() -> Run:
    return RUN


@app.get("/untyped")
async def untyped():  # type: ignore[no-untyped-def]
    return RUN


@app.get("/wrapped")
async def wrapped():  # type: ignore[no-untyped-def]
    return {"run": RUN, "more": [ENTRY]}


@app.get("/several")
def several() -> list[RunEntry]:
    return [ENTRY, ENTRY]


@app.get("/page")
async def page() -> RunPage:
    return RunPage([ENTRY], "c")


@app.get("/history")
async def history() -> HistoryPage:
    return HistoryPage([EVENT], None)


@app.get("/missing")
async def missing() -> Run | None:
    return None


@app.get("/nested")
async def nested() -> Shown:
    return Shown(run=RUN, others={"a": ENTRY, "b": None})


@app.get("/model", response_model=SignalReceipt)
async def model() -> Any:
    return SignalReceipt(repeated=False, answers_wait=True, waits_for=("go",))


@app.get("/wrong")
async def wrong() -> Run:
    return {"id": "doc-42"}  # type: ignore[return-value]


async def get(path: str, app: Any = app) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/typed", RUN.as_dict()),
        ("/untyped", RUN.as_dict()),
        ("/wrapped", {"run": RUN.as_dict(), "more": [ENTRY.as_dict()]}),
        ("/several", [ENTRY.as_dict(), ENTRY.as_dict()]),
        ("/page", RunPage([ENTRY], "c").as_dict()),
        ("/history", HistoryPage([EVENT], None).as_dict()),
        ("/missing", None),
        ("/nested", {"run": RUN.as_dict(), "others": {"a": ENTRY.as_dict(), "b": None}}),
        (
            "/model",
            {"repeated": False, "answers_wait": True, "waits_for": ["go"], "waits_again": False},
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_response_is_the_dict(path: str, expected: Any) -> None:
    response = await get(path)
    assert (response.status_code, response.json()) == (200, expected)


async def test_something_else_is_refused() -> None:
    with pytest.raises(Exception, match="instance of Run"):
        await get("/wrong")


async def test_the_description_of_the_api_has_the_schemas() -> None:
    described = (await get("/openapi.json")).json()
    schemas = described["components"]["schemas"]
    assert {"Run", "RunEntry", "RunPage", "HistoryPage", "SignalReceipt", "Shown"} <= schemas.keys()
    run = schemas["Run"]
    assert run["properties"].keys() == RUN.as_dict().keys() == set(run["required"])
    assert run["properties"]["created_at"] == {"type": "string", "format": "date-time"}
    assert run["properties"]["waits"]["items"]["properties"]["until_at"]
    returned = described["paths"]["/typed"]["get"]["responses"]["200"]
    assert returned["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Run"}


def test_a_model_dumps_and_describes_it() -> None:
    shown = Shown(run=RUN, others={})
    assert shown.run is RUN
    assert shown.model_dump() == {"run": RUN.as_dict(), "others": {}}
    assert shown.model_dump(mode="json") == shown.model_dump()
    for mode in ("validation", "serialization"):
        assert Shown.model_json_schema(mode=mode)["$defs"]["Run"]["properties"]["id"]
    with pytest.raises(pydantic.ValidationError, match="instance of Run"):
        Shown.model_validate({"run": {"id": "doc-42"}, "others": {}})


async def test_starlette_takes_the_dict() -> None:
    async def show(request: Request) -> JSONResponse:
        return JSONResponse(RUN.as_dict())

    app = Starlette(routes=[Route("/", show)])
    assert (await get("/", app)).json() == RUN.as_dict()


def test_holdfast_does_not_import_pydantic() -> None:
    code = "import holdfast, sys; holdfast.RunPage([], None).as_dict(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "pydantic_core", "fastapi"} & set(ran.stdout.split())
