"""The routes of the server that the client calls: one table from verbs to paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

__all__ = ["ROUTES", "Route", "path_of"]


class Route(NamedTuple):
    """Where a verb is sent."""

    method: str
    path: str
    repeatable: bool = True
    """Whether the same request may be sent again if its response was lost."""


_RUN = "/v1/runs/{id}"
_REVIEW = "/v1/reviews/{id}"

ROUTES: dict[str, Route] = {
    # A start has an id or an idempotency key, and a signal has an id.
    "start": Route("POST", "/v1/runs"),
    "list": Route("GET", "/v1/runs"),
    "get": Route("GET", _RUN),
    "result": Route("GET", f"{_RUN}/result"),
    "input": Route("GET", f"{_RUN}/input"),
    "state": Route("GET", f"{_RUN}/state"),
    "waits": Route("GET", f"{_RUN}/waits"),
    "children": Route("GET", f"{_RUN}/children"),
    "spending": Route("GET", f"{_RUN}/spending"),
    "history": Route("GET", f"{_RUN}/history"),
    "set_aside": Route("GET", f"{_RUN}/set-aside"),
    "stream": Route("GET", f"{_RUN}/stream"),
    "signal": Route("POST", f"{_RUN}/signals"),
    "cancel": Route("POST", f"{_RUN}/cancel"),
    "retry": Route("POST", f"{_RUN}/retry", repeatable=False),
    "extend": Route("POST", f"{_RUN}/extend"),
    "set_budget": Route("PUT", f"{_RUN}/budget"),
    "resolve": Route("POST", f"{_RUN}/calls/{{call}}/resolve", repeatable=False),
    "maps": Route("GET", f"{_RUN}/maps"),
    "map": Route("GET", f"{_RUN}/maps/{{map}}"),
    "map_items": Route("GET", f"{_RUN}/maps/{{map}}/items"),
    "map_retry": Route("POST", f"{_RUN}/maps/{{map}}/items/{{index}}/retry", repeatable=False),
    "ambiguous": Route("GET", "/v1/ambiguous"),
    "session_queue": Route("GET", "/v1/sessions/{session}/queue"),
    "quotas": Route("GET", "/v1/quotas"),
    "bulk_add": Route("POST", "/v1/bulk", repeatable=False),
    "bulk_list": Route("GET", "/v1/bulk"),
    "bulk_get": Route("GET", "/v1/bulk/{id}"),
    "bulk_cancel": Route("DELETE", "/v1/bulk/{id}"),
    "fleet_graphs": Route("GET", "/v1/fleet/graphs"),
    "workers": Route("GET", "/v1/workers"),
    "stuck": Route("GET", "/v1/fleet/stuck"),
    "unserved": Route("GET", "/v1/fleet/unserved"),
    "overview": Route("GET", "/v1/fleet/overview"),
    "cost": Route("GET", "/v1/cost"),
    "keys_list": Route("GET", "/v1/keys"),
    "keys_create": Route("POST", "/v1/keys", repeatable=False),
    "keys_revoke": Route("DELETE", "/v1/keys/{id}"),
    # An action on a review has an idempotency key.
    "reviews_list": Route("GET", "/v1/reviews"),
    "reviews_get": Route("GET", _REVIEW),
    "reviews_approve": Route("POST", f"{_REVIEW}/approve"),
    "reviews_reject": Route("POST", f"{_REVIEW}/reject"),
    "reviews_withdraw": Route("POST", f"{_REVIEW}/withdraw"),
    "reviews_claim": Route("POST", f"{_REVIEW}/claim"),
    "reviews_release": Route("POST", f"{_REVIEW}/release"),
    "reviews_reassign": Route("POST", f"{_REVIEW}/reassign"),
    "reviews_comment": Route("POST", f"{_REVIEW}/comment"),
    "reviews_edit": Route("POST", f"{_REVIEW}/edit"),
    "reviews_link": Route("POST", f"{_REVIEW}/link"),
    "webhooks_list": Route("GET", "/v1/webhooks"),
    "webhooks_add": Route("POST", "/v1/webhooks", repeatable=False),
    "webhooks_get": Route("GET", "/v1/webhooks/{id}"),
    "webhooks_remove": Route("DELETE", "/v1/webhooks/{id}"),
    "webhooks_test": Route("POST", "/v1/webhooks/{id}/test", repeatable=False),
    "webhooks_deliveries": Route("GET", "/v1/webhooks/{id}/deliveries"),
}


def path_of(route: Route, names: Mapping[str, str]) -> str:
    """Return the path of a route; no name can lead out of its segment."""
    return route.path.format(**{name: quote(value, safe="") for name, value in names.items()})
