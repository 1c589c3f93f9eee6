"""Opens the socket that a server listens on: on loopback only, unless callers authenticate."""

from __future__ import annotations

import ipaddress
import socket

from holdfast.errors import InvalidRequest
from holdfast.server.options import ServerOptions

__all__ = ["checked_bind", "listening_socket"]

_BACKLOG = 2048


def checked_bind(host: str, options: ServerOptions) -> None:
    """Check that a server with these options may listen on a host.

    Raises:
        InvalidRequest: other machines could reach the host, and requests need no credentials; or
            the host has no address.
    """
    for address in _addresses(host):
        if not options.authentication and not ipaddress.ip_address(address).is_loopback:
            raise InvalidRequest(
                f"host {host!r:.80} can be reached from other machines, and requests need no "
                "credentials: turn authentication on, or listen on 127.0.0.1",
                field="host",
            )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the host's first address; port 0 takes a free port.

    Raises:
        InvalidRequest: the host has no address.
        OSError: the address cannot be used.
    """
    address = _addresses(host)[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)


def _addresses(host: str) -> list[str]:
    try:
        # The empty name is every address of this machine.
        found = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"host must be an address or a name of this machine, got {host!r:.80}: {error}",
            field="host",
        ) from None
    return [str(each[4][0]).partition("%")[0] for each in found]
