"""Signs HTTP requests for services of AWS that boto3 has no client for. Needs the extra ``aws``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.errors import CredentialsMissing, InvalidRequest, StoreUnusable

__all__ = ["RequestSigner"]


class RequestSigner:
    """Signs requests for one service in one region, with Signature Version 4."""

    def __init__(self, service: str, region: str, *, profile: str | None = None) -> None:
        """Use the credentials of ``profile``, or those that botocore finds for this process.

        Raises:
            InvalidRequest: the region is not text.
        """
        if not isinstance(region, str) or not region:
            raise InvalidRequest(f"region must name one of AWS, got {region!r:.80}", field="region")
        self._service = service
        self._region = region
        self._profile = profile
        self._session: Any = None
        self._lock = threading.Lock()

    def signed_headers(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers of a request with its signature. It may block: run it in a thread.

        Raises:
            CredentialsMissing: this process has no credentials.
            StoreUnusable: the extra ``aws`` is not installed.
        """
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
        except ImportError as error:
            raise StoreUnusable(
                f"signed requests need botocore: install the extra 'aws' ({error})"
            ) from error
        request: Any = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
        signing: Any = SigV4Auth(self._credentials(), self._service, self._region)
        signing.add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}

    def _credentials(self) -> Any:
        import botocore.exceptions
        import botocore.session

        with self._lock:
            try:
                if self._session is None:
                    session: Any = botocore.session.Session(profile=self._profile)
                    self._session = session
                found = self._session.get_credentials()
                # A copy, since it may be renewed while a request is signed.
                return found.get_frozen_credentials() if found is not None else self._missing()
            except botocore.exceptions.BotoCoreError as error:
                raise CredentialsMissing(f"credentials of AWS cannot be read: {error}") from error

    def _missing(self) -> NoReturn:
        raise CredentialsMissing(
            "this process has no credentials of AWS to sign requests with; set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or name a profile"
        )
