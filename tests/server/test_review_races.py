"""Reviewers decide and edit at the same moment, over HTTP, on two servers: one outcome counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from holdfast import Holdfast
from tests.server.callers import bearer
from tests.server.graphs import Sale, reviewed
from tests.server.processes import serving

PAIRS = 200
TRIPLES = 50
EDITS = 100
PEOPLE = ("ana", "bob", "cem")
# No reviewer should be throttled.
SERVE = ("--auth", "--rate", "100000", "--tenant-rate", "100000")


class Reviewer(NamedTuple):
    """A person, who asks one of the servers."""

    name: str
    http: httpx.AsyncClient

    async def decide(self, id: str, *, approve: bool) -> httpx.Response:
        action = "approve" if approve else "reject"
        body = {"comment": f"{self.name} says {action}"}
        return await self.http.post(f"/v1/reviews/{id}/{action}", json=body)


class Place(NamedTuple):
    """A store, and the reviewers."""

    hf: Holdfast
    people: list[Reviewer]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(Holdfast(url))
        keys = {
            name: await hf.keys.create(name, tenant="default", role="reviewer") for name in PEOPLE
        }
        servers = [await stack.enter_async_context(serving(url, *SERVE)) for _ in range(2)]
        people: list[Reviewer] = []
        for number, name in enumerate(PEOPLE):
            http = httpx.AsyncClient(
                base_url=servers[number % 2].address,
                headers=bearer(keys[name].secret),
                timeout=30,
            )
            people.append(Reviewer(name, await stack.enter_async_context(http)))
        yield Place(hf, people)


async def asked(place: Place, count: int, **given: Any) -> dict[str, str]:
    """Start runs that ask for a review; return the ids of their reviews, by the runs' ids."""
    for number in range(count):
        await place.hf.start(reviewed, Sale(f"lamp {number}", **given), id=f"sale-{number}")
    for number in range(count):
        await place.hf.run(f"sale-{number}").until("waiting", timeout=50)
    found: dict[str, str] = {}
    cursor: str | None = None
    while len(found) < count:
        query = {"limit": 100, **({} if cursor is None else {"cursor": cursor})}
        page = (await place.people[0].http.get("/v1/reviews", params=query)).json()
        found |= {each["run"]: each["id"] for each in page["reviews"]}
        cursor = page["cursor"]
        assert cursor is not None or len(found) == count
    return found


async def test_two_reviewers_decide_at_the_same_moment(place: Place) -> None:
    ana, bob, _ = place.people
    reviews = await asked(place, PAIRS)
    won, began = Counter[str](), time.monotonic()
    decided: dict[str, tuple[str, str]] = {}
    for number, (run, id) in enumerate(reviews.items()):
        attempts = {ana.name: ana.decide(id, approve=True), bob.name: bob.decide(id, approve=False)}
        order = [*attempts] if number % 2 else [*reversed(attempts)]
        answers = dict(
            zip(order, await asyncio.gather(*(attempts[name] for name in order)), strict=True)
        )
        (winner,) = [name for name, answer in answers.items() if answer.status_code == 200]
        (loser,) = [name for name, answer in answers.items() if answer.status_code == 409]
        shown = answers[winner].json()["decision"]
        assert (shown["by"], shown["status"]) == (winner, outcome_of(winner))
        problem = answers[loser].json()
        assert problem["code"] == "review_decided"
        assert problem["decision"] == shown  # who won, when, and what
        assert winner in problem["detail"]
        won[winner] += 1
        decided[run] = (winner, shown["comment"])
    seconds = time.monotonic() - began
    for run, (winner, comment) in decided.items():
        result = await place.hf.run(run, graph=reviewed).result(timeout=30)
        assert (result.by, result.status, result.comment) == (winner, outcome_of(winner), comment)
    assert len(decided) == PAIRS
    print(f"{PAIRS} races in {seconds:.1f} s: {dict(won)}; every run has the winner's decision")


def outcome_of(name: str) -> str:
    return "approved" if name == "ana" else "rejected"


async def test_three_voters_and_a_quorum_of_two(place: Place) -> None:
    reviews = await asked(place, TRIPLES, quorum=2, assignees=[*PEOPLE])
    seen, began = Counter[str](), time.monotonic()
    outcomes: dict[str, str] = {}
    for number, (run, id) in enumerate(reviews.items()):
        # Two say the one, the third says the other; who differs changes.
        differs, two_approve = number % 3, number % 2 == 0
        votes = [(at == differs) != two_approve for at in range(3)]
        answers = await asyncio.gather(
            *(
                person.decide(id, approve=vote)
                for person, vote in zip(place.people, votes, strict=True)
            )
        )
        wanted = "approved" if two_approve else "rejected"
        for answer, vote in zip(answers, votes, strict=True):
            shown = answer.json()
            if answer.status_code == 409:  # the other two had decided
                assert shown["code"] == "review_decided", shown
                assert shown["decision"]["status"] == wanted
                assert vote != two_approve
            else:
                assert answer.status_code == 200, answer.text
                assert shown["status"] in ("pending", wanted)
            seen[f"{answer.status_code}"] += 1
        outcomes[run] = wanted
    seconds = time.monotonic() - began
    for run, wanted in outcomes.items():
        result = await place.hf.run(run, graph=reviewed).result(timeout=30)
        assert result.status == wanted
        assert result.votes >= 2
    print(f"{TRIPLES} quorums in {seconds:.1f} s: answers {dict(seen)}")


async def test_an_edit_and_an_approval_at_the_same_moment(place: Place) -> None:
    """Both may be acknowledged only if the approval is on the edited page."""
    ana, bob, _ = place.people
    reviews = await asked(place, EDITS)
    seen, approved, began = Counter[str](), dict[str, int](), time.monotonic()
    for number, (run, id) in enumerate(reviews.items()):
        page = (await ana.http.get(f"/v1/reviews/{id}")).json()
        months = page["values"]["months"]
        edited_values = {**page["values"], "months": months + 1}
        edit = bob.http.post(f"/v1/reviews/{id}/edit", json={"values": edited_values})
        approve = ana.http.post(f"/v1/reviews/{id}/approve", json={"seen": page["rendered"]})
        if number % 2:
            edited, decided = await asyncio.gather(edit, approve)
        else:
            decided, edited = await asyncio.gather(approve, edit)
        answers = edited.status_code, decided.status_code
        if decided.status_code == 200:  # the decision was first
            assert edited.status_code == 409, (edited.text, decided.text)
            assert edited.json()["code"] == "review_decided"
            assert decided.json()["decision"]["values"]["months"] == months
        else:
            assert answers == (200, 409), (edited.text, decided.text)
            problem = decided.json()
            assert problem["code"] == "review_changed"
            assert problem["difference"] == [f"months: {months} → {months + 1}"]
            months += 1
            again = {"seen": edited.json()["rendered"]}
            decided = await ana.http.post(f"/v1/reviews/{id}/approve", json=again)
            assert decided.status_code == 200, decided.text
        approved[run] = months
        seen["edit first" if answers[0] == 200 else "approval first"] += 1
    seconds = time.monotonic() - began
    for run, months in approved.items():
        assert (await place.hf.run(run, graph=reviewed).result(timeout=30)).months == months
    assert sum(seen.values()) == EDITS
    print(f"{EDITS} edits against approvals in {seconds:.1f} s: {dict(seen)}")
