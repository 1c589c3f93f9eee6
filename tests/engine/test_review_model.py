"""Random actions of several people on a review, against a small model of what they should do."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from holdfast.errors import (
    AlreadyVoted,
    HoldfastError,
    InvalidRequest,
    NotAssigned,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
)
from holdfast.model.review import Review
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.support import House, reached

PEOPLE = ("ana", "bob", "cleo", "dan")
STEPS = 25


class Vote(msgspec.Struct, frozen=True):
    by: str
    approve: bool
    round: int
    key: str | None


class Model(msgspec.Struct):
    """What a review is, and what becomes of it; each method raises the error that is expected."""

    assignees: tuple[str, ...]
    quorum: int
    months: int = 1
    claimer: str | None = None
    round: int = 0
    votes: list[Vote] = []
    decided: tuple[str, str, str | None] | None = None
    """The status, who decided, and the key."""
    trail: list[tuple[str, str]] = []
    done: set[tuple[str, str, str]] = set()
    """The actions with a key: the kind, the person, the key."""

    @property
    def shown(self) -> tuple[Any, ...]:
        return self.round, self.months, self.assignees

    @property
    def current(self) -> list[Vote]:
        return [vote for vote in self.votes if vote.round == self.round]

    def do(self, name: str, by: str, **given: Any) -> None:
        key = given.get("key")
        if name in ("approve", "reject", "withdraw"):
            status = {"approve": "approved", "reject": "rejected"}.get(name, "withdrawn")
            if key and self.decided == (status, by, key):
                return
            vote = (by, name == "approve", key)
            votes = [(each.by, each.approve, each.key) for each in self.votes]
            if key and name != "withdraw" and vote in votes:
                return
        if self.decided:
            raise ReviewDecided("")
        if name == "claim" and self.quorum > 1:
            raise InvalidRequest("")
        if name != "withdraw" and not given.get("force"):
            if self.assignees and by not in self.assignees:
                raise NotAssigned("")
            claims_count = name not in ("comment", "reassign") and not given.get("take_over")
            if claims_count and self.claimer not in (None, by):
                raise ReviewClaimed("", by="")
        getattr(self, f"_{name}")(by, given)
        if (
            key
            and name in ("comment", "reassign", "edit")
            and self.trail[-1:] == [(self._kind(name), by)]
        ):
            self.done.add((name, by, key))
        self.count_votes()

    @staticmethod
    def _kind(name: str) -> str:
        return {"comment": "commented", "reassign": "reassigned", "edit": "edited"}[name]

    def _note(self, kind: str, by: str) -> None:
        self.trail.append((kind, by))

    def _check_seen(self, given: dict[str, Any]) -> None:
        if given.get("seen") not in (None, self.shown):
            raise ReviewChanged("", review=None, difference=())  # type: ignore[arg-type]

    def _claim(self, by: str, given: dict[str, Any]) -> None:
        if self.claimer != by:
            self.claimer = by
            self._note("claimed", by)

    def _release(self, by: str, given: dict[str, Any]) -> None:
        if self.claimer is not None:
            self.claimer = None
            self._note("released", by)

    def _comment(self, by: str, given: dict[str, Any]) -> None:
        if ("comment", by, given["key"]) not in self.done:
            self._note("commented", by)

    def _reassign(self, by: str, given: dict[str, Any]) -> None:
        if ("reassign", by, given["key"]) in self.done:
            return
        if given["to"] and len(given["to"]) < self.quorum:
            raise InvalidRequest("")
        if given["to"] != self.assignees:
            self.assignees, self.claimer = given["to"], None
            self._note("reassigned", by)

    def _edit(self, by: str, given: dict[str, Any]) -> None:
        if ("edit", by, given["key"]) in self.done:
            return
        self._check_seen(given)
        self._set(by, given["months"])

    def _set(self, by: str, months: int) -> None:
        if months != self.months:
            self.months, self.round = months, self.round + 1
            self._note("edited", by)

    def _withdraw(self, by: str, given: dict[str, Any]) -> None:
        self._decide("withdrawn", by, given["key"])

    def _reject(self, by: str, given: dict[str, Any]) -> None:
        self._vote(by, False, given)

    def _approve(self, by: str, given: dict[str, Any]) -> None:
        self._vote(by, True, given)

    def _vote(self, by: str, approve: bool, given: dict[str, Any]) -> None:
        self._check_seen(given)
        months = given.get("months") or self.months
        if self.quorum == 1:
            self._decide("approved" if approve else "rejected", by, given["key"])
            return
        self._set(by, months)
        if any(vote.by == by for vote in self.current):
            raise AlreadyVoted("")
        self.votes = [*self.votes, Vote(by, approve, self.round, given["key"])]

    def count_votes(self) -> None:
        if self.decided or self.quorum == 1 or not self.current:
            return
        yes = [vote.by for vote in self.current if vote.approve]
        no = [vote.by for vote in self.current if not vote.approve]
        missing = {*self.assignees} - {*yes, *no}
        if len(yes) >= self.quorum:
            self._decide("approved", yes[-1], None)
        elif len(no) >= self.quorum or (self.assignees and len(yes) + len(missing) < self.quorum):
            self._decide("rejected", (no or yes)[-1], None)

    def _decide(self, status: str, by: str, key: str | None) -> None:
        self.decided = status, by, key
        self._note("decided", by)


def drawn(rng: random.Random, seen: list[tuple[str, tuple[Any, ...]]]) -> dict[str, Any]:
    """Return what a person asks for: the arguments of the request, and of the model."""
    weights = {
        "claim": 3, "release": 2, "comment": 3, "reassign": 3, "edit": 3, "approve": 4,
        "reject": 2, "withdraw": 0.3,
    }  # fmt: skip
    (name,) = rng.choices([*weights], [*weights.values()])
    asked: dict[str, Any] = {"name": name, "by": rng.choice(PEOPLE)}
    if name not in ("claim", "release"):
        asked["key"] = rng.choice([None, None, "k1", "k2"])
    if name == "claim":
        asked["take_over"] = rng.random() < 0.3
    if name in ("comment", "reassign"):
        asked["force"] = rng.random() < 0.2
    if name == "reassign":
        asked["to"] = tuple(sorted(rng.sample(PEOPLE, rng.randint(0, 4))))
    if name == "edit" or (name == "approve" and rng.random() < 0.3):
        asked["months"] = rng.randint(1, 3)
    if name in ("edit", "approve", "reject") and rng.random() < 0.5:
        asked["seen"] = rng.choice([seen[-1], rng.choice(seen)])
    return asked


async def send(reviews: Any, id: str, asked: dict[str, Any]) -> Review:
    given = {**asked}
    name = given.pop("name")
    if "months" in given:
        given["values"] = {"months": given.pop("months"), "note": ""}
    if "seen" in given:
        given["seen"] = given["seen"][0]
    if name == "comment":
        given["text"] = "hm"
    return await getattr(reviews, name)(id, **given)


def expect(model: Model, asked: dict[str, Any]) -> type[HoldfastError] | None:
    given = {**asked}
    if "seen" in given:
        given["seen"] = given["seen"][1]
    try:
        model.do(given.pop("name"), given.pop("by"), **given)
    except HoldfastError as error:
        return type(error)
    return None


@pytest.mark.parametrize("seed", range(40))
async def test_people_get_what_the_model_says(house: House, seed: int) -> None:
    rng = random.Random(seed)
    quorum = rng.choice([1, 1, 2, 2, 3])
    people = tuple(sorted(rng.sample(PEOPLE, rng.choice([0, 3, 4]))))
    graph = reviewing(form=Terms, values=Terms(1), assignees=people, quorum=quorum)
    hf = house.open()
    run, review = await asked(house, hf, graph)
    model = Model(people, quorum)
    seen = [(review.rendered, model.shown)]
    log: list[Any] = [("quorum", quorum, people)]
    for _ in range(STEPS):
        house.clock.advance(1)
        wanted = drawn(rng, seen)
        expected, got = expect(model, wanted), None
        log.append((wanted, expected and expected.__name__))
        try:
            await send(hf.reviews, review.id, wanted)
        except HoldfastError as error:
            got = type(error)
        assert got == expected, log
        review = await hf.reviews.get(review.id)
        check(review, model, log)
        seen.append((review.rendered, model.shown))
    if model.decided is None:
        await hf.reviews.withdraw(review.id, by="ana")
        model.do("withdraw", "ana", key=None)
    await work(house, graph)
    await reached(hf, "r", "finished")
    state = await run.result()
    assert model.decided is not None
    assert (state["status"], state["by"]) == model.decided[:2], log
    check(await hf.reviews.get(review.id), model, log)


def check(review: Review, model: Model, log: list[Any]) -> None:
    assert review.status == (model.decided[0] if model.decided else "pending"), log
    assert (review.assignees, review.claimed_by) == (model.assignees, model.claimer), log
    assert review.values["months"] == model.months, log
    votes = {(vote.by, vote.approve) for vote in review.votes}
    assert votes == {(vote.by, vote.approve) for vote in model.current}, log
    assert [(action.kind, action.by) for action in review.trail] == model.trail, log
    assert sum(action.kind == "decided" for action in review.trail) == bool(model.decided), log
    assert review.is_intact, log
