"""What `route` makes of a function, and what the description says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from litestar.params import QueryParameter
from litestar.response import Stream
from openapi_spec_validator import validate

from holdfast import Holdfast, Quota
from holdfast.engine.effects.quotas import Permit
from holdfast.integrations.offline import Offline
from holdfast.model.quota import Cost
from holdfast.model.run import Run
from holdfast.model.service import BulkJobPage
from holdfast.server import asgi
from holdfast.server.encoding import JsonResponse
from holdfast.server.openapi import api_description
from holdfast.server.routes import HANDLERS
from holdfast.server.routing import described_routes, route
from tests.server.graphs import GRAPHS


@route("GET", "/v1/stream", role="viewer", tag="streams", media_type="text/event-stream")
async def follow(after: Annotated[str, QueryParameter(description="x")] = "") -> Stream:
    """Follow."""
    raise NotImplementedError


@route("GET", "/v1/row", role="public", tag="rows", open=True)
async def row() -> JsonResponse[Run]:
    """Get a row."""
    raise NotImplementedError


REFUSED = {"400", "403", "414", "421", "431"}  # before a route sees the request


def operations(*handlers: Any) -> dict[str, Any]:
    document = api_description(described_routes(handlers))
    validate(document)
    return {
        operation["operationId"]: operation
        for methods in document["paths"].values()
        for operation in methods.values()
    }


def test_a_stream_and_a_wrapped_answer_are_described() -> None:
    found = operations(follow, row)
    content = found["follow"]["responses"]["200"]["content"]
    assert content == {"text/event-stream": {"schema": {"type": "string"}}}
    content = found["row"]["responses"]["200"]["content"]
    assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/Run"}}}
    assert found["row"]["responses"].keys() == {"200", "500"} | REFUSED
    assert found["row"]["security"] == []


def test_only_possible_problems_are_described() -> None:
    found = operations(*HANDLERS)
    reading, listing = found["get_run"]["responses"], found["list_runs"]["responses"]
    assert {"409", "413", "415"}.isdisjoint(reading)
    assert "404" not in listing
    assert all(each["responses"].keys() >= REFUSED for each in found.values())
    assert "408" in found["start_run"]["responses"]
    assert "408" not in reading
    assert found["start_run"]["responses"].keys() >= {"200", "201", "404", "409", "413", "415"}
    assert all("304" in found[name]["responses"] for name in ("get_run", "get_history"))


def test_limits_and_enums_are_exact() -> None:
    found = operations(*HANDLERS)
    parameters = {each["name"]: each for each in found["list_runs"]["parameters"]}
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert parameters["limit"]["schema"] == limit
    assert "waiting" in parameters["status"]["schema"]["items"]["enum"]
    key = next(each for each in found["start_run"]["parameters"] if each["in"] == "header")
    assert (key["name"], key["schema"]["maxLength"]) == ("Idempotency-Key", 255)


def test_a_page_of_jobs_has_the_schema_of_its_json_form() -> None:
    document = api_description(described_routes(HANDLERS))
    job = document["components"]["schemas"][BulkJobPage.__name__]["properties"]["jobs"]["items"]
    assert job["properties"]["created_at"] == {"type": "string", "format": "date-time"}


@pytest.fixture
async def limited(tmp_path: Any) -> AsyncIterator[Holdfast]:
    quotas = {"small": Quota("tokens", tokens=1_000, per=60, concurrency=2)}
    async with Holdfast(
        f"sqlite:///{tmp_path}/runs.db", models={"small": Offline([])}, quotas=quotas
    ) as hf:
        yield hf


async def test_quotas_show_what_is_used(limited: Holdfast) -> None:
    limiter = limited._resources.quota_limiter
    quota = limited._resources.quotas["small"]
    permit = await limiter.acquire(quota, "default", cost=Cost(1, 300), retry_at_ms=None)
    assert isinstance(permit, Permit)
    transport = httpx.ASGITransport(asgi(limited, GRAPHS, worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        (shown,) = (await client.get("/v1/quotas")).json()["quotas"]
    assert (shown["name"], shown["models"], shown["per_seconds"]) == ("tokens", ["small"], 60.0)
    assert (shown["tokens"], shown["tokens_used"]) == (1_000, 300)
    assert (shown["concurrency"], shown["concurrent"]) == (2, 1)
    permit.release()
