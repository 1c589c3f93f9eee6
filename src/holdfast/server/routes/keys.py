"""Routes for API keys. An admin of a tenant acts on the keys of that tenant only."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from holdfast.errors import Forbidden
from holdfast.model.api_key import ANY_TENANT, ApiKey, KeyRole, NewKey
from holdfast.model.json_form import JsonForm
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.routing import route

__all__ = ["KEYS"]

KeyId = Annotated[str, PathParameter(description="The key's id.", max_length=128)]
NamedTenant = Annotated[
    str | None,
    HeaderParameter(
        name="Holdfast-Tenant",
        max_length=64,
        description="The tenant of the key, from a caller of every tenant.",
    ),
]


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The key to create."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    role: KeyRole
    expires_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """How long it is valid; None: until it is revoked."""
    all_tenants: bool = False
    """Whether it acts on every tenant. Only a caller that does so itself may ask for it."""


class KeyList(JsonForm, frozen=True):
    """The API keys of a tenant."""

    keys: list[ApiKey]


@route("GET", "/v1/keys", role="admin", tag="keys")
async def list_keys(
    requester: RequesterOf,
    all_tenants: Annotated[
        bool, QueryParameter(description="The keys of all tenants that the caller acts on.")
    ] = False,
) -> KeyList:
    """List the API keys of the tenant, without their secrets.

    A caller of every tenant also gets the keys for every tenant.
    """
    if all_tenants and requester.identity.tenant == ANY_TENANT:
        return KeyList(await requester.hf.keys.list())
    keys = await requester.hf.keys.list(requester.tenant)
    if requester.identity.tenant == ANY_TENANT:
        keys = [*await requester.hf.keys.list(ANY_TENANT), *keys]
    return KeyList(keys)


@route("POST", "/v1/keys", role="admin", tag="keys", status=201)
async def create_key(requester: RequesterOf, data: KeyRequest) -> NewKey:
    """Create an API key. Its secret is in this response only."""
    return await requester.hf.keys.create(
        data.name,
        tenant=_tenant(requester, all_tenants=data.all_tenants),
        role=data.role,
        expires=data.expires_seconds,
    )


@route("DELETE", "/v1/keys/{id:str}", role="admin", tag="keys", status=204)
async def revoke_key(
    requester: RequesterOf,
    id: KeyId,
    named_tenant: NamedTenant = None,
) -> None:
    """Revoke an API key. Every server refuses it at the latest 5 seconds later.

    If a caller of every tenant names no tenant, it may be a key of any tenant.
    """
    anywhere = requester.identity.tenant == ANY_TENANT and named_tenant is None
    await requester.hf.keys.revoke(id, tenant=None if anywhere else requester.tenant)


def _tenant(requester: Requester, *, all_tenants: bool) -> str:
    if not all_tenants:
        return requester.tenant
    if requester.identity.tenant != ANY_TENANT:
        raise Forbidden("only a caller that acts on every tenant may create a key that does")
    return ANY_TENANT


KEYS = (list_keys, create_key, revoke_key)
