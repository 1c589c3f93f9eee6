"""One browser and one server for each module of tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from holdfast import Holdfast
from tests.browser.chromium import ARGUMENTS, executable
from tests.browser.site import Site, running_server
from tests.servers.component import required


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    with required():
        path = executable()
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield launched
        await launched.close()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the screenshots: HOLDFAST_SCREENSHOTS can name one that is kept."""
    given = os.environ.get("HOLDFAST_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded_site(
    browser: Browser, screenshots: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """A server with authentication."""
    url = f"sqlite:///{tmp_path_factory.mktemp('guarded')}/runs.db"
    async with Holdfast(url) as hf, running_server(url, "--auth") as served:
        hf.callbacks.set_public_url(served.address)
        yield Site(hf, served.address, browser, screenshots)


@pytest_asyncio.fixture(loop_scope="module")
async def site(guarded_site: Site) -> AsyncIterator[Site]:
    yield guarded_site
    await guarded_site.close_pages()
