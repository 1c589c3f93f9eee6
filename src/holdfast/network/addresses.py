"""Which addresses a request may connect to: public ones, and those on an allow-list."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import InvalidRequest, TargetRefused

__all__ = ["Address", "AllowList", "Target", "is_public", "target_of"]

Address: TypeAlias = IPv4Address | IPv6Address
_Network: TypeAlias = IPv4Network | IPv6Network

_URL_CHARS_MAX = 2_048
_PORTS = {"http": 80, "https": 443}
_PERMIT = (
    ". To permit it, pass --webhook-allow or set HOLDFAST_WEBHOOK_ALLOW. On a server, that is "
    "holdfast serve --webhook-allow, or webhook_allow of ServerOptions"
)
# Besides what `ipaddress` calls not global, which differs between releases of Python.
_REFUSED: tuple[_Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds have their metadata service there
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, with the metadata service
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "::/96",  # unspecified, loopback, and IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo and other special purposes
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",  # unique local, with the metadata service fd00:ec2::254
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)


def is_public(address: Address) -> bool:
    """Return whether everybody on the Internet reaches the same machine at this address."""
    return address.is_global and not any(address in network for network in _REFUSED)


class Target(NamedTuple):
    """Where a request goes, as its address says."""

    scheme: str
    host: str
    port: int


def target_of(url: object) -> Target:
    """Return where a request to an address goes.

    Raises:
        TargetRefused: it is not an http or https address, or has credentials or a fragment.
    """
    if not isinstance(url, str) or not 1 <= len(url) <= _URL_CHARS_MAX or not url.isprintable():
        raise _refused(url, f"must be a text of at most {_URL_CHARS_MAX:,} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused(url, "must be a valid address") from None
    if parts.scheme not in _PORTS or not host or " " in url or "\\" in url:
        raise _refused(url, "must be an http or https address")
    if "@" in parts.netloc or parts.fragment:
        raise _refused(url, "must have no credentials and no fragment")
    return Target(parts.scheme, host, _PORTS[parts.scheme] if port is None else port)


def _refused(url: object, why: str, advice: str = "") -> TargetRefused:
    return TargetRefused(f"url {why}, got {url!r:.120}{advice}", field="url")


class AllowList:
    """Addresses that are permitted although they are not public: networks, and hosts with ports.

    An entry is a network (``10.1.0.0/16``, ``10.1.2.3``) or a host and a port
    (``hooks.internal:8443``, ``127.0.0.1:9000``, ``[::1]:9000``). The list is empty by default.
    """

    def __init__(
        self,
        entries: Iterable[str] = (),
        *,
        plain_http: bool = False,
        ports: Collection[int] | None = None,
        advice: str = _PERMIT,
    ) -> None:
        """Permit the entries, and public addresses.

        ``plain_http`` permits public addresses without TLS. ``ports`` are those that public
        addresses may be reached at; None permits all. ``advice`` ends the errors.
        """
        self._plain_http = plain_http
        self._ports = ports
        self._advice = advice
        if isinstance(entries, str):
            raise InvalidRequest(
                f"an allow-list must be a list of texts, got {entries!r:.80}", field="allow"
            )
        self._networks: list[_Network] = []
        self._hosts: set[tuple[str, int]] = set()
        for entry in entries:
            self._add(entry)

    def _add(self, entry: object) -> None:
        text = entry if isinstance(entry, str) else ""
        try:
            self._networks.append(ip_network(text))
            return
        except ValueError:
            host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]").lower()
        if not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
            raise InvalidRequest(
                "an entry of the allow-list must be a network (10.1.0.0/16) or a host and a port "
                f"(hooks.internal:8443), got {entry!r:.80}",
                field="allow",
            )
        self._hosts.add((host, int(port)))

    def admits_host(self, host: str, port: int) -> bool:
        """Return whether an entry permits everything at a host and a port."""
        return (host.lower(), port) in self._hosts

    def admits(self, host: str, port: int, address: Address) -> bool:
        """Return whether an entry permits a connection."""
        if self.admits_host(host, port):
            return True
        return any(address in network for network in self._networks)

    def check_url(self, url: object) -> Target:
        """Check an address before anything is resolved; return where it goes.

        The connection is checked again, because what a name means may change. Plain http needs an
        entry for the host and the port, or an address in a network of the list, unless the list
        permits it everywhere.

        Raises:
            TargetRefused: the address is not valid, not public, or not of a permitted scheme or
                port.
        """
        target = target_of(url)
        address = _literal(target.host)
        permitted = self.admits_host(target.host, target.port) or (
            address is not None and self.admits(target.host, target.port, address)
        )
        if permitted:
            return target
        if target.scheme != "https" and not self._plain_http:
            raise _refused(url, "must be an https address", self._advice)
        if address is not None and not is_public(address):
            raise _refused(url, "must be a public address", self._advice)
        if self._ports is not None and target.port not in self._ports:
            ports = " or ".join(map(str, sorted(self._ports)))
            raise _refused(url, f"must have the port {ports}", self._advice)
        return target

    def check_connection(self, host: str, port: int, address: Address) -> None:
        """Check an address to which a connection is about to be made.

        Raises:
            TargetRefused: it is neither public nor on the list.
        """
        if not self.admits(host, port, address) and not is_public(address):
            # Without the address: the error must not tell what a name means in this network.
            raise TargetRefused(
                f"{host!r:.120} is at an address that is not public, and the allow-list does not "
                "have it",
                field="url",
            )


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
