"""Credentials, region and endpoint, as every other tool of AWS on this machine finds them.

This is botocore's own chain: environment, profiles, SSO, web identity, processes, containers and
instances. It may read files and ask services, so it runs in a thread; in between its keys are at
hand at no cost, and are renewed some minutes before they expire.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Protocol, cast

import botocore.exceptions
import botocore.session
import msgspec
from botocore.utils import get_environ_proxies  # pyright: ignore[reportUnknownVariableType]

from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    CredentialsMissing,
    EndpointUnreachable,
    HoldfastError,
    InvalidUrl,
)
from holdfast.storage.dynamodb.signing import Keys

__all__ = ["CredentialChain", "Place", "Route"]


class Place(msgspec.Struct, frozen=True):
    """Where the service is."""

    region: str
    endpoint: str
    chosen: bool = False
    """Whether the caller named the endpoint."""


class Route(msgspec.Struct, frozen=True):
    """How the service is reached."""

    proxy: str | None
    """From ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``."""
    ca_bundle: str | None
    """A file of certificates to trust: ``AWS_CA_BUNDLE``, or ``ca_bundle`` of the profile."""


class _Frozen(Protocol):
    access_key: str
    secret_key: str
    token: str | None


class _Credentials(Protocol):
    def get_frozen_credentials(self) -> _Frozen: ...


class _Session(Protocol):
    def get_credentials(self) -> _Credentials | None: ...
    def get_config_variable(self, logical_name: str) -> str | None: ...
    def create_client(self, service_name: str, region_name: str | None) -> Any: ...


class CredentialChain:
    """Finds credentials once, and again when they expire."""

    def __init__(self, *, profile: str | None, region: str | None, endpoint: str | None) -> None:
        self._profile = profile
        self._region = region
        self._endpoint = endpoint
        self._finding = asyncio.Lock()
        self._place = Place(region, endpoint, chosen=True) if region and endpoint else None
        self._credentials: _Credentials | None = None
        self._keys: Keys | None = None

    async def place(self) -> Place:
        """Return where the service is.

        Raises:
            InvalidUrl: no region is named anywhere.
            CredentialsMissing: there is no such profile.
        """
        if self._place is None:
            async with self._finding:
                if self._place is None:
                    self._place = await asyncio.to_thread(self._find_place)
        return self._place

    async def route(self) -> Route:
        """Return how the service is reached.

        Raises:
            InvalidUrl: no region is named anywhere.
            CredentialsMissing: there is no such profile.
        """
        return await asyncio.to_thread(self._find_route, (await self.place()).endpoint)

    async def keys(self) -> Keys:
        """Return keys that are valid now.

        Raises:
            CredentialsMissing: none are found.
            CredentialsExpired: they expired, and a person has to log in again.
            AccessDenied: they were refused where they should have been renewed.
        """
        if self._keys is not None and not self._expiring():
            return self._keys
        async with self._finding:
            if self._keys is None or self._expiring():
                self._keys = await asyncio.to_thread(self._find_keys)
            return self._keys

    async def renew(self, refused: Keys) -> None:
        """Find credentials anew, unless that was done since these were refused."""
        async with self._finding:
            if self._keys is refused:
                self._credentials = None
                self._keys = await asyncio.to_thread(self._find_keys)

    def _expiring(self) -> bool:
        # Only credentials that can be renewed know this; it costs a comparison of two times.
        expiring = getattr(self._credentials, "refresh_needed", None)
        return expiring is not None and expiring()

    def _find_keys(self) -> Keys:
        try:
            if self._credentials is None:
                self._credentials = self._session().get_credentials()
            if self._credentials is None:
                raise CredentialsMissing(_nowhere(self._profile))
            frozen = self._credentials.get_frozen_credentials()
        except _BOTOCORE_ERRORS as error:
            raise credentials_error(error) from error
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    def _find_place(self) -> Place:
        # As all tools of AWS do but botocore, which knows only AWS_DEFAULT_REGION.
        region = self._region or os.environ.get("AWS_REGION") or None
        try:
            session = self._session()
            if self._endpoint is None:
                # A client knows the endpoint of every partition, and those that a person has set.
                client = session.create_client("dynamodb", region)
                return Place(client.meta.region_name, client.meta.endpoint_url)
            region = region or session.get_config_variable("region")
        except botocore.exceptions.NoRegionError:
            region = None
        except _BOTOCORE_ERRORS as error:
            raise credentials_error(error) from error
        if region is None:
            raise InvalidUrl(
                "no region: name one in the address (?region=eu-west-1), in AWS_REGION or in the "
                "profile",
                field="region",
            )
        assert self._endpoint is not None
        return Place(region, self._endpoint, chosen=True)

    def _find_route(self, endpoint: str) -> Route:
        scheme = endpoint.partition(":")[0]
        proxies = cast(Mapping[str, str], get_environ_proxies(endpoint))
        try:
            bundle = self._session().get_config_variable("ca_bundle") if scheme == "https" else None
        except _BOTOCORE_ERRORS as error:
            raise credentials_error(error) from error
        return Route(proxies.get(scheme), bundle)

    def _session(self) -> _Session:
        return cast(_Session, botocore.session.Session(profile=self._profile))  # pyright: ignore[reportUnknownMemberType]


_BOTOCORE_ERRORS = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


def credentials_error(error: Exception) -> HoldfastError:
    """Return what a failure of botocore's chain comes down to."""
    kinds = botocore.exceptions
    match error:
        case kinds.ProfileNotFound() | kinds.PartialCredentialsError() | kinds.ConfigParseError():
            return CredentialsMissing(str(error))
        case (
            kinds.UnauthorizedSSOTokenError()
            | kinds.SSOTokenLoadError()
            | kinds.TokenRetrievalError()
        ):
            return CredentialsExpired(f"{error} (aws sso login renews them)")
        case kinds.HTTPClientError():
            return EndpointUnreachable(f"credentials could not be had: {error}")
        case _:
            return AccessDenied(f"credentials could not be had: {error}")


def _nowhere(profile: str | None) -> str:
    looked = f"the profile {profile!r}" if profile else "the default profile"
    return (
        "no AWS credentials: there are none in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in "
        f"{looked} of ~/.aws, from SSO, from a web identity, from this container or from this "
        "instance (DynamoDB Local takes any: set both variables to 'local')"
    )
