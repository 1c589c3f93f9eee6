"""Our signature against botocore's."""

from __future__ import annotations

from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.dynamodb.signing import AccessKeys, Signer

printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
hosts = st.sampled_from(
    ["dynamodb.eu-west-1.amazonaws.com", "127.0.0.1:8000", "localhost:4566", "[::1]:8000"]
)
regions = st.sampled_from(["us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"])
targets = st.sampled_from(["DynamoDB_20120810.PutItem", "DynamoDB_20120810.TransactWriteItems"])
# From 2001 to 2065, and in whole seconds, as a signature has them.
seconds = st.integers(10**9, 3 * 10**9)
keys = st.builds(AccessKeys, printable, printable, st.none() | printable)


def reference(
    host: str, region: str, target: str, body: bytes, keys: AccessKeys, second: int
) -> dict[str, str]:
    """Return what botocore makes of the same request at the same time."""
    request = AWSRequest(
        "POST",
        f"https://{host}/",
        data=body,
        headers={
            "Host": host,
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": target,
        },
    )
    credentials = Credentials(keys.access_key, keys.secret_key, keys.session_token)
    with pytest.MonkeyPatch.context() as patch:
        now = datetime.fromtimestamp(second, UTC)
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_: now)
        botocore.auth.SigV4Auth(credentials, "dynamodb", region).add_auth(request)
    return dict(request.headers.items())


@given(hosts, regions, targets, st.binary(max_size=2000), keys, seconds)
def test_it_is_the_signature_that_botocore_makes(
    host: str, region: str, target: str, body: bytes, keys: AccessKeys, second: int
) -> None:
    ours = Signer(host, region).signed_headers(
        target=target, body=body, keys=keys, now_ms=second * 1000 + 999
    )
    assert ours == reference(host, region, target, body, keys, second)


@given(st.lists(st.tuples(keys, st.integers(0, 20 * 86400), st.binary()), min_size=2, max_size=5))
def test_what_is_kept_never_outlives_its_day_or_its_keys(
    requests: list[tuple[AccessKeys, int, bytes]],
) -> None:
    host, region, target = "127.0.0.1:8000", "us-east-1", "DynamoDB_20120810.GetItem"
    signer = Signer(host, region)
    for keys, offset, body in requests:
        second = 1_700_000_000 + offset
        ours = signer.signed_headers(target=target, body=body, keys=keys, now_ms=second * 1000)
        assert ours == reference(host, region, target, body, keys, second)


def test_keys_do_not_show_their_secrets() -> None:
    shown = repr(AccessKeys("AKIA", "the secret", "the token"))
    assert "AKIA" in shown
    assert "secret" not in shown
    assert "token" not in shown
