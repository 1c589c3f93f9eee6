"""Runs that wait for people, and forms as a browser posts them."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import httpx
from msgspec import Meta

from holdfast import Context, Graph, Holdfast
from holdfast.model.review import Review
from holdfast.server import ServerApp, ServerOptions, asgi

__all__ = ["ANA", "BEN", "Desk", "Question", "asked", "desk", "form_of"]

_TEXTAREA = r'<textarea [^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>'
_SELECT = r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>'
ANA, BEN = "ana@example.com", "ben@example.com"


@dataclass
class Terms:
    months: Annotated[int, Meta(ge=1, le=60)]
    cover: Literal["parts", "all"]
    notes: list[str] = field(default_factory=list)
    urgent: bool = False


@dataclass
class Question:
    text: str = "Approve it?"
    shown: Any = None
    assignees: list[str] = field(default_factory=list)
    expires: str | None = None
    quorum: int = 1
    with_form: bool = False
    outcome: str = ""
    months: int = 0


asked = Graph("asked", Question)


@asked.node
async def ask(question: Question, ctx: Context) -> Question:
    decision = await ctx.review(
        question.text,
        show=question.shown,
        form=Terms if question.with_form else None,
        values=Terms(24, "parts", ["frost"]) if question.with_form else None,
        assignees=question.assignees,
        expires=question.expires,
        quorum=question.quorum,
    )
    months = decision.values.months if question.with_form and decision.approved else 0
    return replace(question, outcome=decision.status, months=months)


@dataclass
class Desk:
    """A server whose runs wait for people, and a client of it."""

    hf: Holdfast
    app: ServerApp
    http: httpx.AsyncClient

    async def review(self, id: str = "run", *, tenant: str = "default", **given: Any) -> Review:
        run = await self.hf.start(asked, Question(**given), id=id, tenant=tenant)
        await run.until("waiting", timeout=20)
        [entry] = (await self.hf.reviews.list(run=id, tenant=tenant)).reviews
        return await self.hf.reviews.get(entry.id, tenant=tenant)

    async def link(self, review: Review, reviewer: str = ANA, **given: Any) -> str:
        """Return the path of a link."""
        address = await self.hf.reviews.link(
            review.id, reviewer=reviewer, tenant=review.tenant, **given
        )
        return address.removeprefix("http://localhost")

    async def status(self, review: Review) -> str:
        return (await self.hf.reviews.get(review.id, tenant=review.tenant)).status


@asynccontextmanager
async def desk(hf: Holdfast, options: ServerOptions | None = None) -> AsyncIterator[Desk]:
    """Serve runs that wait for people."""
    hf.callbacks.set_public_url("http://localhost")
    app = asgi(hf, [asked], options=options or ServerOptions())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield Desk(hf, app, http)


def form_of(page: str) -> dict[str, str]:
    """Return what a browser posts from the form with the decision, as it is."""
    found = {}
    form = re.search(r'<h2 id="decide">.*?</form>', page, re.DOTALL)
    assert form is not None, page
    for tag in re.findall(r"<input [^>]*>", form[0]):
        given = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        if given.get("type") != "checkbox" or " checked" in tag:
            found[given["name"]] = html.unescape(given["value"])
    for name, text in re.findall(_TEXTAREA, form[0], re.DOTALL):
        found[name] = html.unescape(text).replace("\n", "\r\n")
    for name, options in re.findall(_SELECT, form[0], re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options)
        found[name] = chosen[1] if chosen else ""
    return found
