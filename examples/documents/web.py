"""The step ``webcrawler``: pages of a site, each a segment.

The pages are crawled group by group. A group that is stored is not asked for again: after a crash
the crawl goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, TypedDict

from documents.catalogue import GROUP, Catalogue
from documents.pieces import store_content
from documents.processing import Desk, Processing, Work
from documents.segments import SegmentContent, SegmentRecord
from documents.steps import ATTEMPTS, TRANSIENT, StepFailed
from holdfast import Context, Graph, Retry
from holdfast.integrations.crawling import CrawledPage, CrawlFailure, crawl

__all__ = ["add_crawling"]

_GROUPS_MAX = 500


class Crawled(TypedDict, total=False):
    """What the crawler made."""

    crawled: str
    segments: int


class CrawledGroup(TypedDict):
    """What is recorded of a group of pages."""

    group: str
    """Their records; "" if there are none."""
    pages: int
    results: str
    """The address of what was found where, without texts: the crawl goes on from these."""
    ended: bool
    reason: str
    """Why the first address gave no page."""


def add_crawling(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``webcrawler`` to the graph, and return it."""

    @graph.node(retry=Retry(attempts=ATTEMPTS, on=TRANSIENT))
    async def webcrawler(state: Processing, ctx: Context) -> Crawled:
        job = state.job
        if job is None or "webcrawler" not in state.needed:
            return {}
        work = Work(desk, ctx, job)

        async def crawl_group(results: list[str], pages: int) -> CrawledGroup:
            """Crawl on from stored results until a group of pages is full."""
            return await _crawled_group(desk, work, results, pages)

        async with work.steps.running("webcrawler"):
            groups, results, pages, reason = list[str](), list[str](), 0, ""
            for _ in range(_GROUPS_MAX):
                found = await ctx.call(crawl_group, results, pages)
                pages += found["pages"]
                results = [*results, found["results"]]
                groups += [found["group"]] if found["group"] else []
                reason = reason or found["reason"]
                if found["ended"]:
                    break
            if not pages:
                raise StepFailed(f"no page could be read: {reason}")
            uri = await Catalogue.put(work.shelf, "crawled", groups)
            await work.steps.update(total_segments=pages)
        return {"crawled": uri, "segments": pages}

    return webcrawler


async def _crawled_group(desk: Desk, work: Work, results: list[str], pages: int) -> CrawledGroup:
    earlier = [_result_of(stored) for uri in results for stored in await work.shelf.load(uri)]
    found: list[CrawledPage | CrawlFailure] = []
    records: dict[int, SegmentRecord] = {}
    ended = True
    crawling = crawl(
        work.job.uri, limits=desk.crawl_limits, allow=desk.crawl_allowed, earlier=earlier
    )
    async with aclosing(crawling) as arriving:
        async for result in arriving:
            found.append(result)
            if isinstance(result, CrawledPage):
                index = pages + len(records)
                records[index] = await store_content(work, _content_of(result, index + 1))
            if len(records) == GROUP:
                ended = False
                break
    group = pages // GROUP
    stored = [_stored(result) for result in found]
    return {
        "group": await Catalogue.put_group(work.shelf, "crawled", group, records)
        if records
        else "",
        "pages": len(records),
        "results": await work.shelf.put(f"crawl/{len(results):05}", stored),
        "ended": ended,
        "reason": next((each.reason for each in found if isinstance(each, CrawlFailure)), ""),
    }


def _content_of(page: CrawledPage, number: int) -> SegmentContent:
    return SegmentContent(
        index=number, title=page.title, text=page.text, source="web", address=page.address
    )


def _stored(result: CrawledPage | CrawlFailure) -> dict[str, Any]:
    """Return a result as JSON, without the text of a page, which its segment has."""
    kind = "page" if isinstance(result, CrawledPage) else "failure"
    without = {"text": ""} if kind == "page" else {}
    return json.loads(json.dumps({"is": kind, **asdict(result), **without}))


def _result_of(stored: dict[str, Any]) -> CrawledPage | CrawlFailure:
    values = {name: value for name, value in stored.items() if name != "is"}
    values["links"] = tuple(values["links"])
    return CrawledPage(**values) if stored["is"] == "page" else CrawlFailure(**values)
