"""Moto's imitation of DynamoDB and S3 (and the rest of AWS), as a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.process import Server, free_port, running


@contextmanager
def serve() -> Iterator[Server]:
    """Run an empty moto.

    Raises:
        ServerFailed: it does not start.
    """
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, port=port) as server:
        yield server
