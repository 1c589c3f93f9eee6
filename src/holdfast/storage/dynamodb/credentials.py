"""Credentials, region and endpoint, from the same sources as all AWS tools on this machine.

Botocore's credential chain looks in the environment, profiles, SSO, web identity, processes,
containers and instances. It may read files and call services, so it runs in a thread. Its keys are
kept, and renewed some minutes before they expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

import botocore.exceptions
import botocore.session
import msgspec
from botocore.utils import get_environ_proxies  # pyright: ignore[reportUnknownVariableType]

from holdfast.clock import Clock
from holdfast.errors import (
    AccessDenied,
    CredentialsMissing,
    EndpointUnreachable,
    HoldfastError,
    InvalidUrl,
)
from holdfast.redaction import without_credentials
from holdfast.storage.aws import (
    CHAIN_ERRORS,
    configured_region,
    credentials_error,
    credentials_unavailable,
)
from holdfast.storage.dynamodb.signing import AccessKeys

__all__ = ["ConnectionSettings", "CredentialChain", "ServiceEndpoint"]


class ServiceEndpoint(msgspec.Struct, frozen=True):
    """The region and the address of the service."""

    region: str
    endpoint: str


class ConnectionSettings(msgspec.Struct, frozen=True):
    """The proxy and the certificates for connections to the service."""

    proxy: str | None
    """From ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``."""
    ca_bundle: str | None
    """A file of certificates to trust: ``AWS_CA_BUNDLE``, or ``ca_bundle`` of the profile."""

    def __repr__(self) -> str:
        return f"ConnectionSettings({without_credentials(self.proxy)!r}, {self.ca_bundle!r})"


class _FrozenKeys(Protocol):
    access_key: str
    secret_key: str
    token: str | None


class _Credentials(Protocol):
    def get_frozen_credentials(self) -> _FrozenKeys: ...


class _Session(Protocol):
    def get_credentials(self) -> _Credentials | None: ...
    def get_config_variable(self, logical_name: str) -> str | None: ...
    def create_client(self, service_name: str, region_name: str, **keys: str) -> Any: ...


# Botocore renews keys 15 minutes before they expire. They stay valid until then, so requests wait
# for new ones only in the last minute.
_EXPIRY_MARGIN_SECONDS = 60
_RENEWAL_INTERVAL_SECONDS = 30.0
_PLACEHOLDER_KEYS = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}


class CredentialChain:
    """Finds credentials once, and again when they expire."""

    def __init__(
        self, *, profile: str | None, region: str | None, endpoint: str | None, clock: Clock
    ) -> None:
        self._clock = clock
        self._profile = profile
        self._region = region
        self._endpoint = endpoint
        self._lock = asyncio.Lock()
        self._service_endpoint = ServiceEndpoint(region, endpoint) if region and endpoint else None
        self._credentials: _Credentials | None = None
        self._keys: AccessKeys | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_not_before = float("-inf")

    async def load_endpoint(self) -> ServiceEndpoint:
        """Return the region and the address of the service.

        Raises:
            InvalidUrl: no region is configured.
            CredentialsMissing: there is no such profile.
        """
        if self._service_endpoint is None:
            async with self._lock:
                if self._service_endpoint is None:
                    self._service_endpoint = await asyncio.to_thread(self._find_endpoint)
        return self._service_endpoint

    async def load_connection_settings(self) -> ConnectionSettings:
        """Return the proxy and the certificates for connections to the service.

        Raises:
            InvalidUrl: no region is configured.
            CredentialsMissing: there is no such profile.
        """
        return await asyncio.to_thread(
            self._find_connection_settings, (await self.load_endpoint()).endpoint
        )

    async def load_keys(self) -> AccessKeys:
        """Return keys that are valid now.

        Raises:
            CredentialsMissing: there are no credentials.
            CredentialsExpired: the credentials expired, and a person must log in again.
            AccessDenied: the credentials could not be renewed.
        """
        if self._keys is not None and not self._is_expiring(_EXPIRY_MARGIN_SECONDS):
            if self._is_expiring():
                self._schedule_renewal()
            return self._keys
        async with self._lock:
            if self._keys is None or self._is_expiring(_EXPIRY_MARGIN_SECONDS):
                self._keys = await asyncio.to_thread(self._find_keys)
            return self._keys

    async def renew(self, refused: AccessKeys) -> None:
        """Find credentials again, unless another request did so since these were refused."""
        async with self._lock:
            if self._keys is refused:
                self._credentials = None
                self._keys = await asyncio.to_thread(self._find_keys)

    def _is_expiring(self, within_seconds: int | None = None) -> bool:
        # Only credentials that can be renewed have this method. It is cheap.
        expiring = getattr(self._credentials, "refresh_needed", None)
        return expiring is not None and expiring(within_seconds)

    def _schedule_renewal(self) -> None:
        """Renew valid keys in the background; after a failure, again some time later."""
        under_way = self._renewal is not None and not self._renewal.done()
        if not under_way and self._clock.monotonic() >= self._renewal_not_before:
            self._renewal_not_before = self._clock.monotonic() + _RENEWAL_INTERVAL_SECONDS
            self._renewal = asyncio.ensure_future(self._renew_in_background())

    async def _renew_in_background(self) -> None:
        # If this fails, a request fails with the same error when the keys expire.
        with suppress(HoldfastError):
            keys = await asyncio.to_thread(self._find_keys)
            async with self._lock:
                self._keys = keys

    def _find_keys(self) -> AccessKeys:
        try:
            if self._credentials is None:
                self._credentials = self._create_session().get_credentials()
            if self._credentials is None:
                raise CredentialsMissing(_missing_message(self._profile))
            frozen = self._credentials.get_frozen_credentials()
        except CHAIN_ERRORS as error:
            raise _chain_error(error) from error
        parts = (frozen.access_key, frozen.secret_key, frozen.token or "")
        if not all(part.isprintable() for part in parts):
            raise AccessDenied(
                "the AWS credentials must not contain control characters, such as a line break"
            )
        return AccessKeys(frozen.access_key, frozen.secret_key, frozen.token)

    def _find_endpoint(self) -> ServiceEndpoint:
        region = configured_region(self._region)
        try:
            session = self._create_session()
            region = region or session.get_config_variable("region")
            if region is None:
                raise InvalidUrl(
                    "no region is configured: set it in the address (?region=eu-west-1), in "
                    "AWS_REGION or in the profile",
                    field="region",
                )
            if self._endpoint is not None:
                return ServiceEndpoint(region, self._endpoint)
            # A client knows the endpoint of every partition, and any that is configured. With these
            # keys it does not look for credentials, which may take seconds.
            client = session.create_client("dynamodb", region, **_PLACEHOLDER_KEYS)
            return ServiceEndpoint(client.meta.region_name, client.meta.endpoint_url)
        except CHAIN_ERRORS as error:
            raise _chain_error(error) from error

    def _find_connection_settings(self, endpoint: str) -> ConnectionSettings:
        scheme = endpoint.partition(":")[0]
        proxies = cast(Mapping[str, str], get_environ_proxies(endpoint))
        try:
            bundle = (
                self._create_session().get_config_variable("ca_bundle")
                if scheme == "https"
                else None
            )
        except CHAIN_ERRORS as error:
            raise _chain_error(error) from error
        return ConnectionSettings(proxies.get(scheme), bundle)

    def _create_session(self) -> _Session:
        return cast(_Session, botocore.session.Session(profile=self._profile))  # pyright: ignore[reportUnknownMemberType]


def _chain_error(error: Exception) -> HoldfastError:
    if isinstance(error, botocore.exceptions.HTTPClientError):
        return EndpointUnreachable(f"could not get AWS credentials: {error}")
    return credentials_error(error) or credentials_unavailable(error)


def _missing_message(profile: str | None) -> str:
    looked = f"the profile {profile!r}" if profile else "the default profile"
    return (
        "no AWS credentials: there are none in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in "
        f"{looked} of ~/.aws, from SSO, from a web identity, from this container or from this "
        "instance (DynamoDB Local accepts any: set both variables to 'local')"
    )
