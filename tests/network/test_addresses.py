"""Which addresses a request may go to."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from holdfast.errors import InvalidRequest, TargetRefused
from holdfast.network.addresses import AllowList, is_public, target_of

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::1"]
REFUSED = [
    "0.0.0.0", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1",
    "127.9.9.9", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255",
    "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "2002:808:808::", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_that_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "url",
    [5, None, "", "x", "ftp://a", "file:///etc/passwd", "gopher://a", "https://", "https:///x",
     "https://u@a", "https://u:p@a", "https://a#b", "https://a:99999", "https://a:x",
     "https://a b", "https://a\\@b", "https://a/\n", "https://[::1", "javascript:1",
     "https://a/" + "x" * 3000],
)  # fmt: skip
def test_what_is_no_target(url: Any) -> None:
    with pytest.raises(TargetRefused, match="url must"):
        target_of(url)


def test_targets() -> None:
    assert target_of("https://a.example/x?y=1") == ("https", "a.example", 443)
    assert target_of("http://A.example:8080") == ("http", "a.example", 8080)
    assert target_of("https://[2606:4700::1111]:444/") == ("https", "2606:4700::1111", 444)


@pytest.mark.parametrize("host", [*REFUSED])
def test_a_literal_address_is_refused_early(host: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    with pytest.raises(TargetRefused, match="must be a public address"):
        AllowList().check_url(f"https://{shown}/")


def test_http_needs_the_allow_list() -> None:
    with pytest.raises(TargetRefused, match="must be an https address"):
        AllowList().check_url("http://example.org")
    with pytest.raises(TargetRefused, match="must be an https address"):
        AllowList(["10.0.0.0/8"]).check_url("http://inner.example")
    AllowList(["inner.example:80"]).check_url("http://Inner.example")
    AllowList(["10.0.0.0/8"]).check_url("http://10.1.2.3:99")


def test_an_entry_permits_only_what_it_says() -> None:
    allow = AllowList(["127.0.0.1:9000", "10.1.0.0/16", "inner.example:8443", "[::1]:9000"])
    for url in ("http://127.0.0.1:9000/x", "https://10.1.9.9", "http://[::1]:9000"):
        allow.check_url(url)
    for url in ("http://127.0.0.1:9001", "https://10.2.0.1", "http://[::1]:80"):
        with pytest.raises(TargetRefused):
            allow.check_url(url)
    allow.check_connection("inner.example", 8443, ip_address("192.168.0.1"))
    with pytest.raises(TargetRefused, match="not public"):
        allow.check_connection("inner.example", 443, ip_address("192.168.0.1"))


@pytest.mark.parametrize("entry", ["", "x", "host:", ":80", "host:0", "host:99999", "host:x", 5])
def test_a_wrong_entry(entry: Any) -> None:
    with pytest.raises(InvalidRequest, match="an entry of the allow-list must be"):
        AllowList([entry])


def test_a_text_is_no_list() -> None:
    with pytest.raises(InvalidRequest, match="must be a list of texts"):
        AllowList("10.0.0.0/8")


PAGES = AllowList(["wiki.internal:8080"], plain_http=True, ports=(80, 443), advice=" (ask)")


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "https://a.example/",
        "http://8.8.8.8:443/",
        "http://wiki.internal:8080/",
    ],
)
def test_a_list_may_permit_plain_http_at_some_ports(url: str) -> None:
    PAGES.check_url(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://10.0.0.1/", "must be a public address"),
        ("http://a.example:22/", "must have the port 80 or 443"),
        ("https://8.8.8.8:8080/", "must have the port 80 or 443"),
        ("http://wiki.internal:8081/", "must have the port 80 or 443"),
    ],
)
def test_such_a_list_refuses_the_rest(url: str, why: str) -> None:
    with pytest.raises(TargetRefused, match=rf"{why}, got '.*' \(ask\)"):
        PAGES.check_url(url)
