"""What a server's robots.txt permits a crawler."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protego import Protego

from holdfast.errors import TargetRefused
from holdfast.integrations.crawling.results import CrawlFailureKind
from holdfast.integrations.crawling.robots_tags import ROBOT_NAME
from holdfast.integrations.crawling.web_addresses import Origin, resolved_link
from holdfast.network.bounded_gets import GetFailed, HttpAnswer

__all__ = ["ROBOTS_BYTES_MAX", "RobotsFiles", "RobotsRules", "robots_rules"]

ROBOTS_BYTES_MAX = 512 * 1024
# RFC 9309 asks for at least five.
_REDIRECTS_MAX = 5
_AGENT_LINE = re.compile(r"\s*user[ -]?agent\s*[:\s]\s*(.*)", re.IGNORECASE)
_TOO_MANY_REQUESTS = 429
# Protego keeps the rules of a group once for each robot that it names: a small file of many robots
# and rules would fill the memory. So all other robots become one.
_ANOTHER = "another-robot"


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What a robots.txt permits, or why nothing is permitted."""

    parsed: Protego | None = None
    """None permits everything."""
    forbidden: str = ""
    """Why nothing of the server may be asked for; empty if the rules decide."""
    kind: CrawlFailureKind = "robots"
    """The kind of failure if nothing may be asked for."""

    @property
    def delay_seconds(self) -> float:
        """The time between two requests that the server asks for."""
        if self.parsed is None:
            return 0.0
        delay = self.parsed.crawl_delay(ROBOT_NAME) or 0.0
        rate = self.parsed.request_rate(ROBOT_NAME)
        if rate is not None and rate.requests > 0:
            delay = max(delay, rate.seconds / rate.requests)
        return delay

    def permits(self, address: str) -> bool:
        """Return whether the server permits a request."""
        if self.forbidden:
            return False
        return self.parsed is None or self.parsed.can_fetch(address, ROBOT_NAME)


def robots_rules(answer: HttpAnswer) -> RobotsRules:
    """Return the rules of an answer for robots.txt, as RFC 9309 has them.

    A client's error means that there are no rules. With an error of the server, or too many
    requests, nothing is permitted.
    """
    if answer.status >= 500 or answer.status == _TOO_MANY_REQUESTS:
        return RobotsRules(forbidden=f"robots.txt could not be read: status {answer.status}")
    if answer.status >= 300:
        return RobotsRules()
    lines = answer.body.decode("utf-8-sig", "replace").splitlines()
    return RobotsRules(Protego.parse("\n".join(map(_with_few_robots, lines))))


def _with_few_robots(line: str) -> str:
    found = _AGENT_LINE.match(line.partition("#")[0])
    if found is None:
        return line
    name = found[1].strip().lower()
    if name != "*":
        name = re.split(r"[^a-z_-]", name.replace("*", ""))[0]
        name = ROBOT_NAME if name == ROBOT_NAME else _ANOTHER
    return f"User-agent: {name}"


class RobotsFiles:
    """The rules of each server of a crawl. They are read once, before its first page."""

    def __init__(self, get: Callable[[str], Awaitable[HttpAnswer]]) -> None:
        self._get = get
        self._rules: dict[Origin, RobotsRules] = {}

    async def rules(self, origin: Origin) -> RobotsRules:
        """Return the rules of a server."""
        if origin not in self._rules:
            self._rules[origin] = await self._read(origin.robots_address)
        return self._rules[origin]

    async def _read(self, address: str) -> RobotsRules:
        try:
            for _ in range(_REDIRECTS_MAX + 1):
                answer = await self._get(address)
                if not 300 <= answer.status < 400:
                    # In a thread: half a megabyte of rules takes a second.
                    return await asyncio.to_thread(robots_rules, answer)
                target = resolved_link(answer.headers.get("location", ""), seen_from=address)
                if target is None:
                    return RobotsRules()
                address = target
        except (GetFailed, TargetRefused) as error:
            kind = error.kind if isinstance(error, GetFailed) else "refused"
            return RobotsRules(forbidden=f"robots.txt could not be read: {error}", kind=kind)
        return RobotsRules()  # too many redirects mean that there is none
