"""Who makes a request, and on whose runs it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from litestar.di import NamedDependency

from holdfast.app import Holdfast
from holdfast.handle import RunHandle
from holdfast.model.api_key import ANY_TENANT
from holdfast.server.roles import Role

__all__ = ["ANY_TENANT", "Identity", "Requester", "RequesterOf"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What the credentials of a request say."""

    name: str
    """The key's id or the token's subject, as logs show it."""
    tenant: str
    """The tenant that the caller belongs to, or `ANY_TENANT`."""
    role: Role
    credential: str = field(default="", repr=False)
    """The key or the token itself, to verify it again; no log or response may show it."""
    person: str = ""
    """Who decides reviews with these credentials: the key's name, or the token's subject."""

    @property
    def caller(self) -> str:
        """The name under which requests are counted: subjects of two tenants may be the same."""
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True)
class Requester:
    """One request's identity and tenant, and the Holdfast that it acts on.

    Handlers get it as ``requester``. They read and write only through it, so that no route can
    reach another tenant's runs.
    """

    hf: Holdfast
    tenant: str
    identity: Identity

    def run(self, id: str) -> RunHandle[Any]:
        """Return a handle on a run of the tenant."""
        return self.hf.run(id, tenant=self.tenant)


RequesterOf: TypeAlias = NamedDependency[Requester]
"""The type of a handler's argument ``requester``."""
