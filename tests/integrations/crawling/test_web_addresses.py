"""A page has one address, however a link spells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.integrations.crawling.web_addresses import canonical_address, resolved_link, site_of


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("HTTP://A.Example:80", "http://a.example/"),
        ("https://a.example:443/x#part", "https://a.example/x"),
        ("https://a.example:80/", "https://a.example:80/"),
        ("http://a.example/a/../b/./c", "http://a.example/b/c"),
        ("http://a.example/../../x", "http://a.example/x"),
        ("http://a.example/%2e%2e/x", "http://a.example/x"),
        ("http://a.example/a//b/./c", "http://a.example/a//b/c"),
        ("http://a.example/%7ea%2fb%c3%a4", "http://a.example/~a%2Fb%C3%A4"),
        ("http://münchen.example/ä b?q=ü", "http://xn--mnchen-3ya.example/%C3%A4%20b?q=%C3%BC"),
        ("http://a.example/?", "http://a.example/"),
        ("http://a.example/?b=2&a=1", "http://a.example/?b=2&a=1"),
        ("http://a.example/?utm_source=x&b=2&fbclid=y&GCLID=z", "http://a.example/?b=2"),
        ("http://a.example/?utm=x", "http://a.example/?utm=x"),
        ("  http://a.example/  ", "http://a.example/"),
        ("http://[::1]:80/", "http://[::1]/"),
    ],
)
def test_one_form(address: str, canonical: str) -> None:
    assert canonical_address(address) == canonical
    assert canonical_address(canonical) == canonical


@pytest.mark.parametrize(
    "address",
    ["", "a", "//a.example/", "ftp://a/", "file:///x", "http:///x", "http://u@a/", "http://u:p@a/",
     "javascript:x", "data:,x", "http://a\\@b/", "http://a b/", "http://a\x00/", "http://[::1/",
     "http://a:x/", "http://256.0.0.1/", "http://a.example/" + "x" * 2_048],
)  # fmt: skip
def test_no_address_of_a_page(address: str) -> None:
    assert canonical_address(address) is None


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_none(text: str) -> None:
    for found in (
        canonical_address(text),
        canonical_address(f"http://{text}"),
        canonical_address(f"http://a.example/{text}"),
        resolved_link(text, seen_from="http://a.example/b/c?d"),
    ):
        if found is not None:
            assert found.isascii()
            assert found.startswith(("http://", "https://"))
            assert canonical_address(found) == found


def test_a_site_is_a_host_and_its_port() -> None:
    assert site_of("http://www.a.example/x") == site_of("https://a.example/") == "a.example"
    assert site_of("http://a.example:8080/") == "a.example:8080"
