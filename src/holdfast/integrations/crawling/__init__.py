"""Crawls web pages, politely and within limits. Needs holdfast[documents]."""

from holdfast.integrations.crawling.crawl import crawl
from holdfast.integrations.crawling.limits import CrawlLimits
from holdfast.integrations.crawling.results import CrawledPage, CrawlFailure, CrawlFailureKind

__all__ = ["CrawlFailure", "CrawlFailureKind", "CrawlLimits", "CrawledPage", "crawl"]
