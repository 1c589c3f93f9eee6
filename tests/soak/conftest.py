"""What the tests of the soak have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: fleets in trouble complain a lot, and to write that down takes time."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
