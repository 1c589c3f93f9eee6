"""Reviews that a node asks for: they are listed for people, and the run pauses for the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.runs.inbox import SignalFenced
from holdfast.engine.runs.review_arguments import SHOWN_BYTES_MAX, validated_question
from holdfast.engine.runs.reviewing import (
    load_fenced_review,
    load_review,
    put_decision,
    settle_review,
)
from holdfast.errors import ConditionFailed, InvalidRequest, InvalidResult
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.signal_types import SignalType, signal_type_of
from holdfast.graph.values import deep_copied, durable
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import SignalTaken
from holdfast.model.people import EVERYONE, validated_people, validated_quorum
from holdfast.model.review import ReviewDecision
from holdfast.model.review_times import check_review_times
from holdfast.model.signals import Signal
from holdfast.model.wait import ReviewWait, Wait
from holdfast.records.review import (
    EVERY_FENCE,
    QUESTION_CHARS_SHOWN,
    PendingNotice,
    ReviewContent,
    ReviewKey,
    StoredReview,
    content_of_review,
    create_content_write,
    create_review_write,
    review_name,
    stored_review_of,
)
from holdfast.records.review_state import shown_decision
from holdfast.records.settings import note_reviews_write

__all__ = ["ReviewRequest", "ask_reviewers", "review_request", "reviewed"]

# An item may have 400 KB; this leaves room for its keys.
_CONTENT_BYTES_MAX = 384 * 1024


class ReviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A review as a node asks for it."""

    content: ReviewContent
    form: SignalType | None = None
    expires_ms: int | None = None
    remind_after_ms: int | None = None
    escalate_after_ms: int | None = None
    escalate_to: tuple[str, ...] = ()


def review_request(
    state: Mapping[str, Any],
    question: object,
    *,
    show: Any,
    form: Any,
    values: Any,
    assignees: object,
    expires: Duration | None,
    remind_after: Duration | None,
    escalate_after: Duration | None,
    escalate_to: object,
    quorum: object,
) -> ReviewRequest:
    """Return a review as a node asks for it, after all checks; ``state`` is what the node sees.

    Raises:
        InvalidRequest: an argument is wrong; ``field`` says which.
    """
    people = validated_people(assignees, "assignees")
    votes = validated_quorum(quorum, people)
    kind = None if form is None else signal_type_of(form)
    if kind is None and values is not None:
        raise InvalidRequest("values needs form=, the type of the values", field="values")
    content = ReviewContent(
        question=validated_question(question),
        shown=_durable(_shown(state, show), "show"),
        form=None if kind is None else dict(kind.schema),
        values=_durable(values, "values"),
        assignees=people,
        quorum=votes,
    )
    if kind is not None and values is not None and (misfit := kind.misfit(content.values)):
        raise InvalidRequest(f"values must fit form: {misfit}", field="values")
    asked = ReviewRequest(
        content=content,
        form=kind,
        expires_ms=_ms(expires, "expires"),
        remind_after_ms=_ms(remind_after, "remind_after"),
        escalate_after_ms=_ms(escalate_after, "escalate_after"),
        escalate_to=validated_people(escalate_to, "escalate_to"),
    )
    check_review_times(
        expires_ms=asked.expires_ms,
        remind_after_ms=asked.remind_after_ms,
        escalate_after_ms=asked.escalate_after_ms,
        escalate_to=asked.escalate_to,
    )
    return asked


def _shown(state: Mapping[str, Any], show: Any) -> Any:
    """Return what reviewers are shown: fields of the state by their names, or what was passed."""
    if show is None or isinstance(show, Mapping):
        return cast(Any, show)
    if isinstance(show, str) or not isinstance(show, Sequence):
        raise InvalidRequest(
            f"show must be a list of fields of the state, or a dict, got {show!r:.80}", field="show"
        )
    names = cast(Sequence[Any], show)
    for name in names:
        if not isinstance(name, str) or name not in state:
            known = ", ".join(map(str, state)) or "none"
            raise InvalidRequest(
                f"show must name fields of the state, got {name!r:.80}; it has: {known}. To show "
                'something else, pass a dict: show={"name": value}',
                field="show",
            )
    return {name: state[name] for name in names}


def _durable(value: Any, field: str) -> Any:
    if value is None:
        return None
    try:
        return durable(value, bytes_max=SHOWN_BYTES_MAX)
    except TooLarge as error:
        raise InvalidRequest(
            f"{field} must have at most {SHOWN_BYTES_MAX:,} bytes, got {error.size:,}: keep large "
            "documents in a bucket, and show their address",
            field=field,
        ) from None
    except Mismatch as error:
        raise InvalidRequest(f"{field} must be JSON values: {error}", field=field) from None


def _ms(duration: Duration | None, field: str) -> int | None:
    return None if duration is None else milliseconds_of(duration, field)


# --- asking ---------------------------------------------------------------------------------------


async def reviewed(visit: Visit, waits: VisitWaits, request: ReviewRequest) -> ReviewDecision[Any]:
    """Return the decision of a review; pause the run until there is one.

    Values that a reviewer edited, and that the type does not accept after all, are asked for again
    in another review, which says why.
    """
    number, again = waits.next_review(), 0
    while True:
        subject = f"{number}.{again}" if again else f"{number}"
        payload = (await ask_reviewers(visit, waits, request, subject)).payload
        try:
            return _decision(payload, request.form)
        except Mismatch as mismatch:
            again += 1
            note = f"{payload.get('by')} approved values that do not fit: {mismatch}"
            content = msgspec.structs.replace(request.content, note=note)
            request = msgspec.structs.replace(request, content=content)


async def ask_reviewers(
    visit: Visit, waits: VisitWaits, request: ReviewRequest, subject: str
) -> SignalTaken:
    """Return the signal with the decision of a review; pause the run until there is one."""
    claimed = visit.claimed
    head, kernel = claimed.head, claimed.kernel
    name = review_name(head.generation, visit.path, subject)
    key, kind = ReviewKey(head.key, head.generation, name), ReviewWait(name)
    answer = visit.strand.answers.get(kind.key())
    if answer is None:
        with visit.call_ids.keep_running():
            wait = await waits.begin(kind, request.expires_ms, about=request.content.question)
            if all(known.key != wait.key for known in claimed.known_waits(visit.branch)):
                with visit.remember_loss():
                    listed = await _create(visit, key, request, wait)
                if listed is not None:  # by an earlier attempt: reviewers were told its expiry
                    wait = msgspec.structs.replace(wait, deadline_ms=listed.expires_ms)
            await claimed.sleep(0)  # reviews that the node asks for at the same time begin, too

        async def expire() -> Signal:
            return await claimed.claim.retry_store_errors(lambda: _expire(visit, key, wait))

        answer = await waits.resolve(wait, on_timeout=expire)
    if not isinstance(answer, SignalTaken):
        raise InvalidResult(f"review {key.id!r} has an answer that is no decision")
    decision: dict[str, Any] = answer.payload
    with visit.call_ids.keep_running(), visit.remember_loss():
        await claimed.claim.retry_store_errors(
            lambda: settle_review(kernel, key, decision, alive=claimed.claim.alive)
        )
    return answer


async def _expire(visit: Visit, key: ReviewKey, wait: Wait) -> Signal:
    """Decide a review at its expiry, unless it is decided; return the decision that stands.

    A reviewer may have died after the vote that decided it: votes in time count first.
    """
    claimed = visit.claimed
    head, kernel = claimed.head, claimed.kernel
    expires_ms = wait.deadline_by(head.expires_ms)
    loaded = await load_review(kernel, key)
    while loaded is not None and (counted := loaded.votes_decision(expires_ms)) is not None:
        read = loaded.next_position
        try:
            return await put_decision(kernel, head, key, counted, fences_below=read)
        except SignalFenced:  # an edit voids the votes, or others may vote
            loaded = await load_fenced_review(kernel, loaded)
    now_ms = visit.now_ms()
    expired = {"status": "expired", "at_ms": min(expires_ms or now_ms, now_ms)}
    return await put_decision(kernel, head, key, expired, fences_below=EVERY_FENCE)


async def _create(
    visit: Visit, key: ReviewKey, request: ReviewRequest, wait: Wait
) -> StoredReview | None:
    """List a review for people; return its entry if an earlier attempt has listed it."""
    claimed = visit.claimed
    if claimed.persistence.in_memory is not None:  # a decision must find the run
        await claimed.persistence.store_from_node()
    head, kernel, alive = claimed.head, claimed.kernel, claimed.claim.alive
    settings = await claimed.claim.retry_store_errors(kernel.get_settings)
    if not settings.reviews:  # first, so that no process overlooks a review that is there
        await kernel.resolve_write(
            kernel.settings_table, note_reviews_write(token=kernel.ids.new()), alive=alive
        )
        kernel.adopt_settings(msgspec.structs.replace(settings, reviews=True))
    put, digest = create_content_write(key, request.content, ttl=head.ttl, token=kernel.ids.new())
    if len(put.item["data"]) > _CONTENT_BYTES_MAX:
        raise InvalidRequest(
            f"show and values together must have at most {_CONTENT_BYTES_MAX:,} bytes, compressed, "
            f"got {len(put.item['data']):,}: keep large documents in a bucket, and show their "
            "address",
            field="show",
        )
    try:
        await kernel.resolve_write(kernel.reviews, put, alive=alive)
    except ConditionFailed as failed:  # what was shown first counts
        content, digest = content_of_review(failed.item or {})
        request = msgspec.structs.replace(request, content=content)
    made = _entry(visit, key, request, wait, digest)
    write = create_review_write(
        made, head, list_shards=settings.list_shards, token=kernel.ids.new()
    )
    try:
        await kernel.resolve_write(kernel.reviews, write, alive=alive)
    except ConditionFailed as failed:
        return stored_review_of(failed.item or {})
    kernel.notice_nudges.nudge(key)
    return None


def _entry(
    visit: Visit, key: ReviewKey, request: ReviewRequest, wait: Wait, digest: str
) -> StoredReview:
    content, now_ms = request.content, wait.since_ms
    to = content.assignees or (EVERYONE,)
    notices = [PendingNotice(kind="requested", due_ms=now_ms, to=to)]
    if request.remind_after_ms is not None:
        due_ms = now_ms + request.remind_after_ms
        notices.append(PendingNotice(kind="reminder", due_ms=due_ms, to=to))
    if request.escalate_after_ms is not None:
        due_ms = now_ms + request.escalate_after_ms
        notices.append(
            PendingNotice(kind="escalation", due_ms=due_ms, to=request.escalate_to or to)
        )
    return StoredReview(
        tenant=key.run.tenant,
        run=key.run.id,
        generation=key.generation,
        name=key.name,
        graph=visit.claimed.head.graph,
        node=visit.node,
        question=content.question[:QUESTION_CHARS_SHOWN],
        digest=digest,
        created_ms=now_ms,
        visit=visit.visit,
        branch=visit.branch,
        # A wait that went stale takes no decision.
        expires_ms=wait.due_ms,
        due_ms=min((notice.due_ms for notice in notices[1:]), default=None),
        quorum=content.quorum,
        assignees=content.assignees,
        notices=tuple(notices),
    )


def _decision(payload: dict[str, Any], form: SignalType | None) -> ReviewDecision[Any]:
    """Return the decision in the payload of its signal.

    Raises:
        Mismatch: the values do not fit the form.
    """
    decision = shown_decision(payload)
    if form is None or not decision.approved:
        return decision
    return msgspec.structs.replace(decision, values=form.converted(deep_copied(decision.values)))
