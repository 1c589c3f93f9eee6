"""Bodies of requests: JSON that is decoded strictly, in one pass."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.exceptions import ClientException

from holdfast.server.expectations import expectation

__all__ = ["BodyReader"]


class BodyReader:
    """Decodes the bodies of requests to one route."""

    def __init__(self, kind: Any, *, is_optional: bool) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._is_optional = is_optional

    def read(self, body: bytes) -> Any:
        """Return the value of a body; None if a body that may be missing is empty.

        A body that is not JSON, or does not have the right form, is answered with 400.
        """
        if not body:
            if self._is_optional:
                return None
            raise ClientException("the request needs a body: send a JSON object")
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            told = f"{error}{expectation(self._kind, str(error))}"
            raise ClientException(f"the body does not have the right form: {told}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClientException(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise ClientException("the body is nested too deeply") from None
