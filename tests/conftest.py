"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers import dynamodb_local as dynamodb_local_module
from tests.servers import moto_server as moto_server_module
from tests.servers.component import required
from tests.simulation.fresh import fresh

# Here every run draws anew and may find something new; a merge must not hang on that.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


def pytest_report_header() -> str:
    """Tell which seeds this commit draws, so that what they break can be seen again."""
    return str(fresh())


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[None]:
    """Credentials that open nothing; those of the person who runs the tests are out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.upper().startswith("AWS_")]:
            patch.delenv(name)
        for name in [name for name in os.environ if name.upper().endswith("_PROXY")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Let SIGINT end the processes that a test starts.

    A process inherits that SIGINT is ignored, from ``nohup`` or from a shell's ``&`` for example.
    Then Python raises no KeyboardInterrupt in it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Each worker of pytest-xdist starts its own servers when a test first asks for them. They are up in
# half a second, which is less than what sharing them between processes would cost in code.


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[str]:
    """The endpoint of a DynamoDB Local."""
    with required(), dynamodb_local_module.serve() as server:
        yield server.endpoint


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    """The endpoint of a moto that serves DynamoDB and S3."""
    with required(), moto_server_module.serve() as server:
        yield server.endpoint
