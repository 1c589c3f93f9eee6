"""Every route names its role, and a weaker role, or no credentials, cannot use it."""

from __future__ import annotations

from importlib import import_module

import httpx
import pytest
from litestar import get

from holdfast import Holdfast
from holdfast.errors import InvalidRequest
from holdfast.model.api_key import KEY_ROLES
from holdfast.server import ServerOptions, asgi
from holdfast.server.roles import ROLES, Role
from tests.server.callers import bearer, key_for, serving
from tests.server.graphs import GRAPHS
from tests.server.route_table import NAMED, routes_of

# What each route needs. A new route is a line here.
NEEDED: dict[str, Role] = {
    "GET /healthz": "public",
    "GET /login": "public",
    "POST /login": "public",
    "POST /logout": "public",
    "GET /metrics": "operator",
    "GET /pages/{name}": "public",
    "GET /r/{token}": "public",
    "POST /r/{token}": "public",
    "GET /readyz": "public",
    "GET /reviews": "reviewer",
    "GET /reviews/{id}": "reviewer",
    "POST /reviews/{id}": "reviewer",
    "GET /v1/ambiguous": "viewer",
    "GET /v1/bulk": "viewer",
    "POST /v1/bulk": "operator",
    "GET /v1/bulk/{id}": "viewer",
    "DELETE /v1/bulk/{id}": "operator",
    "POST /v1/callbacks/{token}": "public",
    "GET /v1/cost": "viewer",
    "GET /v1/fleet/graphs": "viewer",
    "GET /v1/fleet/overview": "operator",
    "GET /v1/fleet/stuck": "viewer",
    "GET /v1/fleet/unserved": "viewer",
    "GET /v1/graphs": "viewer",
    "GET /v1/graphs/{name}": "viewer",
    "GET /v1/graphs/{name}/drawing": "viewer",
    "GET /v1/keys": "admin",
    "POST /v1/keys": "admin",
    "DELETE /v1/keys/{id}": "admin",
    "GET /v1/openapi.json": "public",
    "GET /v1/quotas": "viewer",
    "GET /v1/reviews": "reviewer",
    "GET /v1/reviews/{id}": "reviewer",
    "POST /v1/reviews/{id}/approve": "reviewer",
    "POST /v1/reviews/{id}/claim": "reviewer",
    "POST /v1/reviews/{id}/comment": "reviewer",
    "POST /v1/reviews/{id}/edit": "reviewer",
    "POST /v1/reviews/{id}/link": "reviewer",
    "POST /v1/reviews/{id}/reassign": "reviewer",
    "POST /v1/reviews/{id}/reject": "reviewer",
    "POST /v1/reviews/{id}/release": "reviewer",
    "POST /v1/reviews/{id}/withdraw": "operator",
    "GET /v1/runs": "viewer",
    "POST /v1/runs": "operator",
    "GET /v1/runs/{id}": "viewer",
    "PUT /v1/runs/{id}/budget": "operator",
    "POST /v1/runs/{id}/calls/{call}/resolve": "operator",
    "POST /v1/runs/{id}/cancel": "operator",
    "GET /v1/runs/{id}/children": "viewer",
    "POST /v1/runs/{id}/extend": "operator",
    "GET /v1/runs/{id}/history": "viewer",
    "GET /v1/runs/{id}/input": "viewer",
    "GET /v1/runs/{id}/interrupts": "reviewer",
    "POST /v1/runs/{id}/interrupts": "reviewer",
    "GET /v1/runs/{id}/maps": "viewer",
    "GET /v1/runs/{id}/maps/{map}": "viewer",
    "GET /v1/runs/{id}/maps/{map}/items": "viewer",
    "POST /v1/runs/{id}/maps/{map}/items/{index}/retry": "operator",
    "GET /v1/runs/{id}/result": "viewer",
    "GET /v1/runs/{id}/reviews": "reviewer",
    "POST /v1/runs/{id}/retry": "operator",
    "GET /v1/runs/{id}/set-aside": "viewer",
    "POST /v1/runs/{id}/signals": "reviewer",
    "GET /v1/runs/{id}/spending": "viewer",
    "GET /v1/runs/{id}/state": "viewer",
    "GET /v1/runs/{id}/stream": "viewer",
    "GET /v1/runs/{id}/waits": "viewer",
    "WS /v1/runs/{id}/ws": "viewer",
    "GET /v1/sessions/{session}/queue": "viewer",
    "GET /v1/streams/runs": "viewer",
    "WS /v1/streams/runs/ws": "viewer",
    "GET /v1/webhooks": "admin",
    "POST /v1/webhooks": "admin",
    "GET /v1/webhooks/{id}": "admin",
    "DELETE /v1/webhooks/{id}": "admin",
    "GET /v1/webhooks/{id}/deliveries": "admin",
    "POST /v1/webhooks/{id}/test": "admin",
    "GET /v1/workers": "operator",
}


async def test_the_routes_and_their_roles(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS, worker=False)
    assert {f"{route.method} {route.path}": route.role for route in routes_of(app)} == NEEDED


async def test_each_weaker_role_is_refused_on_every_route(hf: Holdfast) -> None:
    keys = {role: await key_for(hf, role) for role in KEY_ROLES}
    async with serving(hf, ServerOptions(authentication=True, key_rate=None)) as (http, app):
        for route in routes_of(app):
            if route.method == "WS":
                continue
            path = route.filled(NAMED)
            refused = {
                role: await http.request(
                    route.method, path, json=route.body, headers=bearer(keys[role])
                )
                for role in KEY_ROLES
                if ROLES.index(role) < ROLES.index(route.role)
            }
            assert {role: each.status_code for role, each in refused.items()} == dict.fromkeys(
                refused, 403
            ), route


async def test_no_credentials_open_no_route(hf: Holdfast) -> None:
    options = ServerOptions(authentication=True)
    async with serving(hf, options) as (http, app):
        for route in routes_of(app):
            if route.method == "WS" or route.role == "public":
                continue
            path = route.filled(NAMED)
            answer = await http.request(route.method, path, json=route.body)
            assert answer.status_code == 401, route
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_options_tell_the_methods_and_need_no_role(hf: Holdfast) -> None:
    async with serving(hf) as (http, _):
        answer = await http.options("/v1/keys")
    assert answer.status_code == 204
    assert "access-control-allow-origin" not in answer.headers


def test_a_route_without_a_role_stops_the_server(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @get("/v1/open", sync_to_thread=False)
    def forgotten() -> str:
        return "everything"

    monkeypatch.setattr(import_module("holdfast.server.asgi"), "HANDLERS", [forgotten])
    with pytest.raises(InvalidRequest, match="/v1/open must name its role"):
        asgi(hf, GRAPHS)


async def test_an_admin_of_a_tenant_stays_in_it(hf: Holdfast) -> None:
    acme, every = await key_for(hf, tenant="acme"), await key_for(hf, tenant="*")
    async with serving(hf) as (http, _):

        async def ask(method: str, path: str, key: str, body: object = None) -> httpx.Response:
            headers = {**bearer(key), "Holdfast-Tenant": "acme"}
            return await http.request(method, path, json=body, headers=headers)

        body = {"name": "mine", "role": "operator"}
        made = await ask("POST", "/v1/keys", acme, body)
        assert made.status_code == 201
        assert made.json()["tenant"] == "acme"
        wide = await ask("POST", "/v1/keys", acme, {**body, "all_tenants": True})
        assert wide.status_code == 403
        assert (await ask("POST", "/v1/keys", every, {**body, "all_tenants": True})).is_success
        names = [key["tenant"] for key in (await ask("GET", "/v1/keys", acme)).json()["keys"]]
        assert names == ["acme", "acme"]
        wide = await ask("GET", "/v1/keys?all_tenants=true", acme)
        assert [key["tenant"] for key in wide.json()["keys"]] == names
        wide = await ask("GET", "/v1/keys?all_tenants=true", every)
        assert {key["tenant"] for key in wide.json()["keys"]} == {"acme", "*"}
        [other] = [key for key in await hf.keys.list("*") if key.name == "mine"]
        assert (await ask("DELETE", f"/v1/keys/{other.id}", acme)).status_code == 404
        # A key for every tenant is none of the tenant that the header names.
        assert (await ask("DELETE", f"/v1/keys/{other.id}", every)).status_code == 404
        gone = await http.delete(f"/v1/keys/{other.id}", headers=bearer(every))
        assert gone.status_code == 204
        assert (await ask("DELETE", f"/v1/keys/{made.json()['id']}", acme)).status_code == 204
        for wrong in (
            {"name": "x", "role": "root"},
            {"name": "x", "role": "viewer", "tenant": "b"},
            {"name": "x", "role": "viewer", "expires_seconds": 0},
            {},
        ):
            assert (await ask("POST", "/v1/keys", acme, wrong)).status_code == 400
        assert (await ask("POST", "/v1/keys", acme, {**body, "name": "a#b"})).status_code == 422
