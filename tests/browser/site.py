"""A server process, a browser, and a store that both and the tests use."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page

from holdfast import Holdfast, RunHandle
from holdfast.model.review import ReviewEntry
from tests.browser.graphs import Claim, warranty
from tests.server.processes import ROOT, Served

__all__ = ["Site", "running_server"]

STEP_SECONDS = 30
_MILLISECONDS = STEP_SECONDS * 1000
# What axe may look for: every rule, those of good practice included.
_RULES = {"resultTypes": ["violations"]}


class Site:
    """What a test uses: the store, the address of the server, and pages of a browser."""

    def __init__(self, hf: Holdfast, address: str, browser: Browser, screenshots: Path) -> None:
        self.hf = hf
        self.address = address
        self._browser = browser
        self._screenshots = screenshots
        self._contexts: list[BrowserContext] = []
        self._count = 0

    async def page(self, *, width: int = 1000, dark: bool = False, javascript: bool = True) -> Page:
        """Open a page in a context of its own, without cookies."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
        )
        context.set_default_timeout(_MILLISECONDS)
        self._contexts.append(context)
        return await context.new_page()

    async def close_pages(self) -> None:
        for context in self._contexts:
            await context.close()
        self._contexts.clear()

    async def waiting(
        self, id: str, claim: Claim | None = None, *, tenant: str = "default"
    ) -> tuple[RunHandle[Any], ReviewEntry]:
        """Start a run, and return it with its review when it waits for people."""
        run = await self.hf.start(warranty, claim or Claim(), id=id, tenant=tenant)
        await run.until("waiting", timeout=STEP_SECONDS)
        [review] = (await self.hf.reviews.list(run=id, tenant=tenant)).reviews
        return run, review

    async def look(self, page: Page, name: str) -> None:
        """Take a screenshot of the whole page, and check that axe finds nothing."""
        await page.screenshot(path=self._screenshots / f"{name}.png", full_page=True)
        async with asyncio.timeout(STEP_SECONDS):
            found = await Axe().run(page, options=_RULES)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name}: the page is {wide} pixels wider than the window"


@asynccontextmanager
async def running_server(url: str, *options: str) -> AsyncIterator[Served]:
    """Run ``holdfast serve`` with a worker on a free port."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "serve", "tests.browser.graphs:GRAPHS", "--url", url),
        *("--port", "0", "--poll", "0.05s", *options),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    served = Served(process)
    try:
        await asyncio.wait_for(served.serves(), STEP_SECONDS)
        yield served
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
