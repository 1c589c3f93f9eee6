"""Checksums of what a request sends, as tus names them: ``sha1`` or ``sha256``, and base64."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import NamedTuple

from holdfast.errors import ChecksumMismatch, InvalidRequest

__all__ = ["CHECKSUM_ALGORITHMS", "Checksum", "parsed_checksum"]

CHECKSUM_ALGORITHMS = ("sha1", "sha256")
_DIGEST_BYTES = {"sha1": 20, "sha256": 32}


class Checksum(NamedTuple):
    """What the bytes of one request must hash to."""

    algorithm: str
    digest: bytes

    def check(self, found: bytes) -> None:
        """Compare the hash of the bytes that arrived.

        Raises:
            ChecksumMismatch: they are not the bytes that were sent.
        """
        if not hmac.compare_digest(found, self.digest):
            raise ChecksumMismatch(
                f"the bytes that arrived have another {self.algorithm} than their sender says; "
                "they were not stored: send them again"
            )


def parsed_checksum(text: str) -> Checksum:
    """Return a checksum from ``{algorithm} {digest in base64}``.

    Raises:
        InvalidRequest: the algorithm is not known, or the digest is none.
    """
    algorithm, _, encoded = text.partition(" ")
    size = _DIGEST_BYTES.get(algorithm)
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if size is None or len(digest) != size:
        raise InvalidRequest(
            f"checksum must be one of {', '.join(CHECKSUM_ALGORITHMS)}, a space and the digest in "
            f"base64, got {text!r:.80}",
            field="checksum",
        )
    return Checksum(algorithm, digest)
