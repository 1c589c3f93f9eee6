"""Where a server may listen: without authentication, on this machine only."""

from __future__ import annotations

import ipaddress
import socket

from holdfast.errors import InvalidRequest
from holdfast.server.options import ServerOptions

__all__ = ["checked_bind"]


def checked_bind(host: str, options: ServerOptions) -> str:
    """Return the host to listen on.

    ``unix:`` and a path is a socket in a file, which its permissions protect.

    Raises:
        InvalidRequest: authentication is off, and the host can be reached from other machines.
    """
    if options.authentication or host.startswith("unix:"):
        return host
    addresses = _addresses(host)
    if addresses and all(ipaddress.ip_address(each).is_loopback for each in addresses):
        return host
    raise InvalidRequest(
        f"host must be a loopback address such as 127.0.0.1 without authentication, got "
        f"{host!r:.80}: everyone who can reach the server would be an admin; turn authentication "
        "on to listen there",
        field="host",
    )


def _addresses(host: str) -> set[str]:
    """Return every address of a host; none if it has none."""
    if not host:  # every address of this machine
        return set()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    # An address of IPv6 may name an interface: fe80::1%eth0.
    return {str(entry[4][0]).partition("%")[0] for entry in found}
