"""The pytest plugin of Holdfast: the fixture ``holdfast_kit``.

pytest loads it in every session of an environment that has Holdfast. So it stands outside of the
package, and imports the package only for tests that use the fixture.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing import TestKit

__all__ = ["holdfast_kit", "pytest_itemcollected"]

_FIXTURE = "holdfast_kit"


@pytest.fixture
def holdfast_kit(request: pytest.FixtureRequest) -> TestKit:
    """A kit with a store in memory and a clock that stands still; see `holdfast.testing.TestKit`.

    The kit is closed at the end of the test, in the event loop of the test.
    """
    from holdfast.testing import TestKit

    if not inspect.iscoroutinefunction(request.function):
        pytest.fail(f"{_FIXTURE} needs a test that is a coroutine: async def …", pytrace=False)
    return TestKit()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let each async test that uses the fixture close its kit.

    Not the fixture itself: a fixture that awaits would need to know which plugin runs async tests.
    """
    if not isinstance(item, pytest.Function) or _FIXTURE not in item.fixturenames:
        return
    function: Any = item.obj
    if not inspect.iscoroutinefunction(function):
        return

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> None:
        try:
            await function(*args, **kwargs)
        finally:
            kit: Any = item.funcargs.get(_FIXTURE)
            if kit is not None:
                await kit.close()

    item.obj = run
