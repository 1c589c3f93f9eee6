"""Runs over HTTP."""

from __future__ import annotations

import httpx

from holdfast import Holdfast
from tests.server.graphs import Order, orders


async def test_a_run_is_read_as_the_library_shows_it(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o-1")
    row = await run.until("waiting")
    response = await http.get("/v1/runs/o-1")
    assert response.status_code == 200
    assert response.json() == row.as_dict()


async def test_an_unknown_run_is_a_problem(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/runs/none")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "run_not_found"
