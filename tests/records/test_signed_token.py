"""Signed tokens: nothing but the exact text that a key signed for a purpose is valid."""

from __future__ import annotations

import string

import pytest

from holdfast.errors import InvalidRequest, JournalDamaged
from holdfast.records.signed_token import parsed_token, signed_token, verified_claims
from holdfast.records.signing_keys import (
    TOKEN_LIFETIME_MS_MAX,
    SigningKey,
    find_signing_key,
    new_signing_key,
    rotated_keys,
    signing_keys_of,
    signing_keys_write,
)

KEY = SigningKey("k1", b"s" * 32, 1_000)
CLAIMS = ["acme", "o-1", "generation", "payment", "nonce"]
TOKEN = signed_token("callback", CLAIMS, KEY, expires_ms=5_000)
ALPHABET = string.ascii_letters + string.digits + "-_.=~ "


def claims(token: str, purpose: str = "callback", key: SigningKey = KEY) -> list[str] | None:
    parsed = parsed_token(token)
    return None if parsed is None else verified_claims(parsed, purpose, key)


def test_a_token_has_what_was_signed() -> None:
    assert claims(TOKEN) == CLAIMS
    parsed = parsed_token(TOKEN)
    assert parsed is not None
    assert (parsed.key, parsed.expires_ms) == ("k1", 5_000)


def test_no_other_spelling_is_valid() -> None:
    """Every character replaced by every other one, left out, or doubled."""
    for place, there in enumerate(TOKEN):
        before, after = TOKEN[:place], TOKEN[place + 1 :]
        assert claims(before + after) is None
        assert claims(before + there + there + after) is None
        for other in ALPHABET:
            if other != there:
                assert claims(before + other + after) is None, (place, other)


@pytest.mark.parametrize("cut", range(len(TOKEN)))
def test_a_truncated_token_is_not_valid(cut: int) -> None:
    assert claims(TOKEN[:cut]) is None


@pytest.mark.parametrize(
    "text",
    ["", "v1", "v1..", "v2" + TOKEN[2:], TOKEN + ".", "v1.AAAA." + "A" * 43, "é" * 50, "v1." * 900],
)
def test_another_text_is_no_token(text: str) -> None:
    assert claims(text) is None


def test_another_purpose_or_key_is_refused() -> None:
    assert claims(TOKEN, "review") is None
    assert claims(TOKEN, key=SigningKey("k1", b"x" * 32, 1_000)) is None
    assert claims(TOKEN, key=SigningKey("k2", b"s" * 32, 1_000)) is None


def test_a_key_does_not_show_its_secret() -> None:
    assert "sss" not in repr(KEY)
    assert "sss" not in str([KEY])


def test_an_old_key_verifies_until_all_that_it_signed_has_expired() -> None:
    new = new_signing_key("0190-1234-5678abcdef", b"n" * 32, now_ms=2_000)
    keys = rotated_keys((KEY,), new, now_ms=2_000, revoke=False)
    assert [key.id for key in keys] == [new.id, "k1"]
    last = 2_000 + TOKEN_LIFETIME_MS_MAX
    assert find_signing_key(keys, "k1", now_ms=last) is not None
    assert find_signing_key(keys, "k1", now_ms=last * 2) is None
    assert find_signing_key(keys, new.id, now_ms=last * 2) is not None
    assert [key.id for key in rotated_keys(keys, KEY, now_ms=last * 2, revoke=False)] == [
        "k1",
        new.id,
    ]


def test_a_revoked_key_is_gone() -> None:
    new = new_signing_key("0190-1234-5678abcdef", b"n" * 32, now_ms=2_000)
    assert rotated_keys((KEY,), new, now_ms=2_000, revoke=True) == (new,)


def test_the_number_of_keys_is_limited() -> None:
    keys: tuple[SigningKey, ...] = (KEY,)
    for number in range(99):
        new = SigningKey(f"n{number}", b"n" * 32, 2_000)
        keys = rotated_keys(keys, new, now_ms=2_000, revoke=False)
    with pytest.raises(InvalidRequest, match="signing keys are still needed"):
        rotated_keys(keys, KEY, now_ms=2_000, revoke=False)


def test_the_item_has_all_keys() -> None:
    new = SigningKey("n", b"n" * 32, 2_000)
    keys = rotated_keys((KEY,), new, now_ms=2_000, revoke=False)
    item = dict(signing_keys_write(keys, item_read=None, token="t").item)
    assert signing_keys_of(item) == keys
    for damaged in (b"", b"\x00\x90", 5, "text"):
        with pytest.raises(JournalDamaged):
            signing_keys_of({**item, "keys": damaged})
