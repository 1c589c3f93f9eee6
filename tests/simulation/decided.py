"""Reviews, checked after every write: what is decided, what reviewers are told, what nodes get.

P1  a decision that was acknowledged is what the node gets; votes that were acknowledged, and that
    decide, have decided
P1  an edit or a reassignment that was acknowledged is on the page that is approved or rejected
    after it; one that comes after the decision is not acknowledged
P4  one decision counts, for every reader, for ever; a vote counts once, and with others of its
    round only; the trail is a chain, and has the decision once
P7  what people decide at the millisecond of the expiry, or later, does not count; nothing expires
    before its time
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.model.event import Event, SignalTaken
from holdfast.model.review import Review, ReviewDecision
from holdfast.model.wait import ReviewWait, signal_kind
from holdfast.records.codec import unpack_value
from holdfast.records.head import ENDED, TROUBLED
from holdfast.records.journal import fence_of, is_fence
from holdfast.records.keys import RunKey
from holdfast.records.review import (
    DECISION_ID,
    ReviewContent,
    ReviewKey,
    StoredReview,
    content_of_review,
    stored_review_of,
)
from holdfast.records.review_state import ReviewState, folded_review
from holdfast.records.review_trail import (
    StoredAction,
    StoredVote,
    is_action,
    is_vote,
    stored_action_of,
    stored_vote_of,
)
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Case", "Decided", "is_decision"]

Outcome = tuple[str, str | None, str]
"""How a review was decided: its status, by whom, and the comment."""


@dataclass
class Case:
    """One review, as the table truly tells it."""

    key: ReviewKey
    entry: StoredReview | None = None
    content: ReviewContent | None = None
    digest: str = ""
    actions: list[StoredAction] = field(default_factory=list)
    votes: dict[str, StoredVote] = field(default_factory=dict)
    """By their keys."""
    decision: dict[str, Any] | None = None
    """What stands in the inbox, or stood there when the run took it or was freed."""
    changed: int = -1
    """The position of the last edit or reassignment that was acknowledged."""
    taken: bool = False
    told: Outcome | None = None
    """What somebody was told that it came to."""
    told_by: str = ""

    @property
    def final(self) -> Mapping[str, Any] | None:
        """How it was decided: what its trail says, until then what stands in the inbox."""
        decided = [action.data for action in self.actions if action.kind == "decided"]
        return decided[0] if decided else self.decision

    @property
    def round(self) -> int:
        """How often its values were edited."""
        return sum(action.kind == "edited" for action in self.actions)

    @property
    def assignees(self) -> tuple[str, ...]:
        """Who may decide."""
        return self.pages[-1].assignees

    @property
    def pages(self) -> list[ReviewState]:
        """What people may decide on: the review after the last change that was acknowledged, and
        after each action that came since, whose person was not told yet."""
        assert self.content is not None
        counts = range(self.changed + 1, len(self.actions) + 1)
        return [folded_review(self.content, self.actions[:count]) for count in counts]


def is_decision(key: Key) -> bool:
    """Return whether a key in an inbox is that of the decision of a review."""
    *_, name, id = key.sk.split("#")
    return id == DECISION_ID and isinstance(signal_kind(name), ReviewWait)


def outcome_of(payload: Mapping[str, Any]) -> Outcome:
    return payload["status"], payload.get("by"), payload.get("comment", "")


class Decided:
    """Watches reviews, and raises `Broken` at the write, or the answer, that breaks a promise."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str], *, skew_ms: int) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._skew_ms = skew_ms
        self.cases: dict[tuple[RunKey, str, str], Case] = {}

    def case(self, key: ReviewKey) -> Case:
        """Return what is known of a review."""
        return self.cases.setdefault((key.run, key.generation, key.name), Case(key))

    def of_id(self, id: str, tenant: str) -> Case:
        """Return the review that has an id now."""
        run, name = id.rsplit("~", 1)
        row = self._runs.row(RunKey(tenant, run))
        assert row is not None
        return self.case(ReviewKey(row.key, row.generation, name))

    # --- every write ------------------------------------------------------------------------------

    def item(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check a write of one of the items of a review."""
        _, generation, name, *part = key.sk.split("#", 4)
        case = self.case(ReviewKey(self._runs.of(key.pk, generation).key, generation, name))
        what = f"{process} wrote {key.sk} of {case.key.run.id}"
        if new is None:
            if process != TTL_SWEEPER:
                raise Broken(f"P1: {process} deleted {key.sk} of {case.key.run.id}")
            return
        if part and old is not None:
            # An extension of the run lets it last longer.
            if {**old, "ttl": 0, TOKEN: ""} != {**new, "ttl": 0, TOKEN: ""}:
                raise Broken(f"P4: {what}, and something else stood there")
            return
        if not part:
            self._entry(case, old, stored_review_of(new), what)
        elif part[0] == "SHOWN":
            case.content, case.digest = content_of_review(new)
        elif is_action(key.sk):
            self._action(case, stored_action_of(new), what)
        elif is_vote(key.sk):
            self._vote(case, key, stored_vote_of(new), what)

    def _entry(self, case: Case, old: Item | None, entry: StoredReview, what: str) -> None:
        if case.content is None:
            raise Broken(f"P1: {what}, and what it shows is not there")
        before, case.entry = case.entry, entry
        self._seen["review asked for"] += old is None
        if before is not None and before.status != "pending" and entry.status != before.status:
            raise Broken(f"P4: {what}: it was {before.status}, and is {entry.status}")
        if before is not None and before.expires_ms != entry.expires_ms:
            raise Broken(f"P7: {what}: it expired at {before.expires_ms}, now {entry.expires_ms}")
        if entry.status == "pending":
            return
        self._seen[f"review {entry.status}"] += before is None or before.status == "pending"
        if case.final is not None:
            if entry.status != case.final["status"]:
                raise Broken(f"P4: {what} as {entry.status}, and decided was {case.final}")
        elif not self._is_over(case):
            raise Broken(f"P1: {what} as {entry.status}, and no decision stands")

    def _is_over(self, case: Case) -> bool:
        """Return whether nobody waits for a review any more: its run has ended."""
        chronicle = self._runs.of(case.key.run.pk, case.key.generation)
        if chronicle.over:
            return True
        row = self._runs.own_row(chronicle)
        return row is None or (row.status in ENDED and row.status not in TROUBLED)

    def _action(self, case: Case, action: StoredAction, what: str) -> None:
        if action.position != len(case.actions):
            raise Broken(f"P4: {what}, where {len(case.actions)} comes next")
        if action.before != (case.actions[-1].hash if case.actions else case.digest):
            raise Broken(f"P4: {what}, which does not follow what stands before it")
        if action.kind == "decided":
            if any(earlier.kind == "decided" for earlier in case.actions):
                raise Broken(f"P4: {what}: it is decided a second time")
            if case.decision is None and not self._is_over(case):
                raise Broken(f"P1: {what}, and no decision stands")
            final, stands = outcome_of(action.data), case.decision
            # A decision that comes after the end of its run counts no more: the trail says so.
            if stands is not None and final != outcome_of(stands) and not self._is_over(case):
                raise Broken(f"P4: {what} as {final}, and decided was {stands}")
            if case.told is not None and case.told != final:
                raise Broken(f"P4: {what} as {final}, and {case.told_by} has {case.told}")
        self._seen[f"review {action.kind}"] += 1
        case.actions.append(action)

    def _vote(self, case: Case, key: Key, vote: StoredVote, what: str) -> None:
        if key.sk in case.votes:
            raise Broken(f"P4: {what} a second time")
        if any(
            (vote.round, vote.reviewer) == (other.round, other.reviewer)
            for other in case.votes.values()
        ):
            raise Broken(f"P4: {what}: {vote.reviewer} votes twice in round {vote.round}")
        self._seen["review voted on"] += 1
        case.votes[key.sk] = vote

    def put(self, key: Key, item: Item | None, data: bytes | None) -> None:
        """Check a decision that was put into an inbox, or taken out of it."""
        _, generation, _, name, _ = key.sk.split("#")
        run = self._runs.of(key.pk, generation).key
        case = self.case(ReviewKey(run, generation, signal_kind(name).subject))
        if item is None or data is None:
            if not case.taken and case.told is None:
                case.decision = None
            return
        payload: dict[str, Any] = unpack_value(data)
        if case.decision is not None and case.decision != payload and case.told is not None:
            if self._is_over(case):
                return  # it comes after the end of its run, and its sender takes it back
            raise Broken(f"P4: {case.key.id} was {case.decision}, and is {payload}")
        if case.decision == payload:
            return
        case.decision = payload
        what = f"{case.key.id} is decided as {payload}"
        if case.entry is None or case.content is None:
            raise Broken(f"P1: {what}, and is not there")
        self._check_time(case, item["accepted_ms"], payload, what)
        self._check_page(case, payload, what)

    def fence(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check a fence that is written where the decision belongs, or replaced."""
        _, generation, _, name, _ = key.sk.split("#")
        run = self._runs.of(key.pk, generation).key
        case = self.case(ReviewKey(run, generation, signal_kind(name).subject))
        was_fence = old is not None and is_fence(old)
        if new is None or not is_fence(new):
            self._seen["decided over a fence"] += was_fence and new is not None
            return
        what = f"{process} fenced {case.key.id} at {fence_of(new)}"
        if old is not None and not was_fence:
            raise Broken(f"P1: {what}, over the decision {case.decision}")
        if old is not None and (fence_of(new) < fence_of(old) or new["ttl"] < old["ttl"]):
            raise Broken(f"P4: {what}, and before at {fence_of(old)}")
        changes = [a.position for a in case.actions if a.kind in ("edited", "reassigned")]
        if fence_of(new) not in changes:
            raise Broken(f"P4: {what}, and it was changed at {changes}")
        self._seen["review fenced"] += 1

    def changed(self, case: Case, by: str, key: str) -> None:
        """Hear that a person was told that an edit or a reassignment counts."""
        for action in case.actions:
            if (action.by, action.request_key) == (by, key):
                case.changed = max(case.changed, action.position)
                self._seen["change acknowledged"] += 1
                if case.decision is not None:
                    what = f"{by} is told that {action.kind} counts, and {case.key.id}"
                    self._check_page(case, case.decision, f"{what} is {case.decision}")

    def _check_page(self, case: Case, payload: Mapping[str, Any], what: str) -> None:
        """Check that people decide on a page with all changes that were acknowledged."""
        assert case.content is not None
        if payload["status"] not in ("approved", "rejected"):
            return
        if case.content.quorum > 1:
            self._check_votes(case, payload, what)
        elif payload["seen"] not in {page.rendered(case.digest) for page in case.pages}:
            raise Broken(f"P1: {what}, on a page from before the change at {case.changed}")
        if payload["status"] == "approved" and case.content.form is not None:
            self._check_values(case, payload, what)

    def _check_time(
        self, case: Case, accepted_ms: int, payload: Mapping[str, Any], what: str
    ) -> None:
        assert case.entry is not None
        expires_ms, now_ms = case.entry.expires_ms, self._world.now_ms()
        row = self._runs.own_row(self._runs.of(case.key.run.pk, case.key.generation))
        if payload["status"] == "expired":
            ends = [expires_ms, None if row is None else row.expires_ms]
            if now_ms + self._skew_ms < min(end for end in ends if end is not None):
                raise Broken(f"P7: {what}, before its time")
            return
        if expires_ms is None or payload.get("by") is None:
            return
        self._seen["decided within 16 ms of the expiry"] += expires_ms - 16 <= accepted_ms
        cast = [vote["at_ms"] for vote in payload.get("votes") or ()] or [accepted_ms]
        if max(cast) >= expires_ms:
            raise Broken(f"P7: {what}, accepted at {accepted_ms}, and it expires at {expires_ms}")

    def _check_votes(self, case: Case, payload: Mapping[str, Any], what: str) -> None:
        """Check that a decision follows from votes that stand, of one round, one of each person."""
        assert case.content is not None
        votes = [
            StoredVote(
                reviewer=vote["reviewer"],
                approve=vote["approve"],
                at_ms=vote["at_ms"],
                comment=vote.get("comment", ""),
                round=vote.get("round", 0),
            )
            for vote in payload.get("votes", ())
        ]
        cast = {(vote.round, vote.reviewer): vote.approve for vote in case.votes.values()}
        if len({vote.reviewer for vote in votes}) != len(votes):
            raise Broken(f"P4: {what}: a vote counts twice")
        if len({vote.round for vote in votes}) > 1:
            raise Broken(f"P4: {what}: votes of several rounds count")
        if any(cast.get((vote.round, vote.reviewer)) != vote.approve for vote in votes):
            raise Broken(f"P4: {what}: a vote counts that was not cast")
        pages = [page for page in case.pages if votes and votes[0].round == page.round]
        if not pages:
            raise Broken(f"P4: {what}: votes of round {votes[0].round} count, it is {case.round}")
        quorum, status = case.content.quorum, payload["status"]
        if status not in {decided_by(votes, quorum, page.assignees) for page in pages}:
            raise Broken(f"P4: {what}, which does not follow from its votes")
        self._seen["decided by votes"] += 1
        self._seen["decided by a divided vote"] += len({vote.approve for vote in votes}) > 1

    def _check_values(self, case: Case, payload: Mapping[str, Any], what: str) -> None:
        """Check that approved values are those that stood, or that the reviewer passed."""
        stood = [page.values for page in case.pages]
        passed = {"months": int(str(payload.get("comment") or "0").rpartition("=")[2] or 0)}
        if payload.get("values") not in (*stood, passed):
            raise Broken(f"P1: {what}, and the values were {stood}")

    # --- what the world is told -------------------------------------------------------------------

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Check a decision that a run takes."""
        if not isinstance(event, SignalTaken):
            return
        kind = signal_kind(event.name)
        if not isinstance(kind, ReviewWait):
            return
        case = self.case(ReviewKey(chronicle.key, chronicle.generation, kind.subject))
        if case.decision is None or outcome_of(event.payload) != outcome_of(case.decision):
            raise Broken(f"P1: {what}, and decided was {case.decision}")
        if event.payload["status"] == "withdrawn" and event.payload.get("by") is None:
            raise Broken(f"P1: {what}: nobody withdrew it, and its node waits for it")
        case.taken = True
        self.told(case, outcome_of(event.payload), f"{what}")

    def told(self, case: Case, outcome: Outcome, by: str, *, was_open: bool = False) -> None:
        """Hear that somebody was told how a review was decided.

        ``was_open`` says that it was undecided when they began to read. If a late write has decided
        it since, they may have looked before it: their time was up, and the run is still open.
        """
        missed = was_open and case.final is not None
        ahead = case.final is None and not self._is_lapsed(case)
        if outcome == ("expired", None, "") and (missed or ahead):
            # Its run was about to expire, and so it is refused as a signal is: somebody may extend
            # the run.
            self._seen["told of the expiry of its run"] += 1
            return
        if case.told is not None and case.told != outcome:
            raise Broken(f"P4: {by} has {outcome} of {case.key.id}, and {case.told_by} {case.told}")
        if case.told is None:
            case.told, case.told_by = outcome, by
        if case.final is not None and outcome_of(case.final) != outcome:
            raise Broken(f"P4: {by} has {outcome} of {case.key.id}, and it is {case.final}")

    def _is_lapsed(self, case: Case) -> bool:
        """Return whether the time of a review itself is up, by every clock."""
        expires_ms = None if case.entry is None else case.entry.expires_ms
        return expires_ms is not None and self._world.now_ms() - self._skew_ms >= expires_ms

    def read(
        self,
        case: Case,
        review: Review,
        by: str,
        *,
        knew: Outcome | None,
        was_open: bool = False,
    ) -> None:
        """Hear what somebody read of a review, who began to when ``knew`` was known of it."""
        if review.decision is not None:
            self.told(case, _outcome(review.decision), by, was_open=was_open)
            if review.status != review.decision.status:
                raise Broken(f"P4: {by} reads {review.status}, and {review.decision}")
        elif knew is not None:
            raise Broken(f"P1: {by} reads that {case.key.id} is {review.status}; it was {knew}")

    def refused(self, case: Case, decision: ReviewDecision[Any] | None, by: str) -> None:
        """Hear that somebody was told that a review was decided before."""
        self._seen["decided before"] += 1
        if decision is not None:
            self.told(case, _outcome(decision), by)

    def acknowledged(
        self, case: Case, review: Review, *, by: str, approve: bool, comment: str
    ) -> None:
        """Hear that a reviewer was told that a decision, or a vote, counts."""
        self.read(case, review, by, knew=None)
        assert case.content is not None
        status = "approved" if approve else "rejected"
        if case.content.quorum == 1:
            if case.final is None or outcome_of(case.final) != (status, by, comment):
                raise Broken(f"P1: {by} {status} {case.key.id}, and it is {case.final}")
            if review.decision is None:
                raise Broken(f"P1: {by} {status} {case.key.id}, and reads that it is pending")
            self._seen["decision acknowledged"] += 1
            return
        votes = [vote for vote in case.votes.values() if vote.reviewer == by]
        if not any((vote.approve, vote.comment) == (approve, comment) for vote in votes):
            raise Broken(
                f"P1: the vote of {by} on {case.key.id} was acknowledged, and is not there"
            )
        self._seen["vote acknowledged"] += 1

    def is_decisive(self, case: Case, by: str, *, approve: bool) -> bool:
        """Return whether a vote of this person decides, with those that stand now."""
        if case.content is None or case.content.quorum == 1:
            return False
        votes = [vote for vote in case.votes.values() if vote.round == case.round]
        if any(vote.reviewer == by for vote in votes):
            return False
        own = StoredVote(reviewer=by, approve=approve, at_ms=0)
        return decided_by([*votes, own], case.content.quorum, case.assignees) is not None

    def is_there(self, case: Case) -> bool:
        """Return whether the run of a review has its id still."""
        row = self._runs.row(case.key.run)
        return row is not None and row.generation == case.key.generation

    # --- at rest ----------------------------------------------------------------------------------

    def check_told(self, within_ms: int) -> None:
        """Check, in calm times, that nodes are told of an expiry soon after it."""
        before_ms = self._world.now_ms() - within_ms - self._skew_ms
        for case in self.cases.values():
            expires_ms = None if case.entry is None else case.entry.expires_ms
            if expires_ms is None or expires_ms > before_ms or case.taken or self._is_over(case):
                continue
            raise Broken(f"P6: {case.key.id} expired at {expires_ms}, and its node is not told")

    def settled(self) -> None:
        """Check what must hold once everything has come to rest, and everybody has looked."""
        for case in self.cases.values():
            row = self._runs.own_row(self._runs.of(case.key.run.pk, case.key.generation))
            if case.entry is None or row is None or row.status not in ENDED:
                continue
            if row.status in TROUBLED:
                continue
            what = f"{case.key.id} of a run that is {row.status}"
            if case.entry.status == "pending":
                raise Broken(f"P6: {what} is pending still; decided was {case.decision}")
            if case.told is not None and case.entry.status != case.told[0]:
                raise Broken(f"P4: {what} is listed as {case.entry.status}; it is {case.told}")
            ends = [action for action in case.actions if action.kind == "decided"]
            if len(ends) != 1 or ends[0].data["status"] != case.entry.status:
                raise Broken(f"P4: {what} is {case.entry.status}, and its trail has {ends}")
            if row.status == "finished" and not case.taken:
                raise Broken(f"P1: {what} was never answered")


def decided_by(votes: Sequence[StoredVote], quorum: int, assignees: Sequence[str]) -> str | None:
    """Return what votes come to; written here anew, not asked of the product."""
    yes = {vote.reviewer for vote in votes if vote.approve}
    no = {vote.reviewer for vote in votes if not vote.approve}
    if len(yes) >= quorum:
        return "approved"
    # Those who voted before a reassignment count, and the assignees who have yet to vote may.
    hopeless = bool(assignees) and len(yes | (set(assignees) - no)) < quorum
    return "rejected" if len(no) >= quorum or hopeless else None


def _outcome(decision: ReviewDecision[Any]) -> Outcome:
    return decision.status, decision.by, decision.comment
