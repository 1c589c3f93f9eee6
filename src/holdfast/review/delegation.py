"""Assigns reviews to the people who stand in for their assignees, and to those of an escalation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.display import get_logger
from holdfast.engine.runs.reviewing import (
    LoadedReview,
    append_action,
    fence_decisions,
    follow_trail,
    load_review,
)
from holdfast.errors import InvalidRequest
from holdfast.model.people import validated_people
from holdfast.model.review import ReviewEntry
from holdfast.records.review import ReviewKey, StoredReview
from holdfast.records.review_state import DELEGATED, ESCALATED
from holdfast.review.loading import ReviewStore

__all__ = ["Delegate", "delegate_review", "delegates_of", "escalate_review", "replaced_people"]

Delegate: TypeAlias = Callable[
    [str, ReviewEntry],
    str | Sequence[str] | Awaitable[str | Sequence[str] | None] | None,
]
"""Names who stands in for an assignee: one or more people, or None if the assignee decides."""

_log = get_logger("holdfast.reviews")
_HOOK_SECONDS_MAX = 10.0
# Those who stand in may be out of office, too.
_HOPS_MAX = 5


async def delegates_of(
    delegate: Delegate | None, people: Sequence[str], *, review: StoredReview, now_ms: int
) -> dict[str, tuple[str, ...]]:
    """Return who stands in for which of these people. A hook that fails changes nothing."""
    if delegate is None:
        return {}
    # One limit for all of them: a process leases the review meanwhile, or a request waits.
    until = asyncio.get_running_loop().time() + _HOOK_SECONDS_MAX
    hook = _Hook(delegate, review.key, review.shown(now_ms), until)
    found = await asyncio.gather(*(_stand_ins(hook, person) for person in people))
    pairs = zip(people, found, strict=True)
    return {person: deciding for person, deciding in pairs if deciding != (person,)}


class _Hook(NamedTuple):
    """The user's function, and the review about which it is asked."""

    delegate: Delegate
    key: ReviewKey
    entry: ReviewEntry
    until: float
    """When its time is up, by the clock of the loop."""

    async def ask(self, person: str) -> tuple[str, ...]:
        """Return who stands in for one person: the person alone if none does, or the hook fails."""
        key, seconds = self.key, _HOOK_SECONDS_MAX
        try:
            async with asyncio.timeout_at(self.until):
                named = await self._named(person)
            return (person,) if named is None else validated_people(named, "delegate") or (person,)
        except TimeoutError:
            _log.warning(
                "%s: the delegate hook took over %s s for %r", key.log_name, seconds, person
            )
        except InvalidRequest as error:
            _log.warning(
                "%s: the delegate hook named no people for %r: %s", key.log_name, person, error
            )
        except Exception:
            _log.warning("%s: the delegate hook failed for %r", key.log_name, person, exc_info=True)
        return (person,)

    async def _named(self, person: str) -> Any:
        if inspect.iscoroutinefunction(self.delegate):
            return await self.delegate(person, self.entry)
        named: Any = await asyncio.to_thread(self.delegate, person, self.entry)  # it may block
        return await named if inspect.isawaitable(named) else named


async def _stand_ins(hook: _Hook, person: str) -> tuple[str, ...]:
    asked: set[str] = set()
    deciding: tuple[str, ...] = (person,)
    for _ in range(_HOPS_MAX):
        following: dict[str, None] = {}
        for name in deciding:
            known = name.casefold() in asked
            asked.add(name.casefold())
            following |= dict.fromkeys((name,) if known else await hook.ask(name))
        if tuple(following) == deciding:
            break
        deciding = tuple(following)
    return deciding


async def delegate_review(
    store: ReviewStore, key: ReviewKey, delegate: Delegate | None
) -> LoadedReview | None:
    """Assign a review to the people who stand in for its assignees; return the review.

    None if there is no such review, or it is decided.
    """

    async def plan(loaded: LoadedReview) -> dict[str, Any] | None:
        if delegate is None:
            return None
        assignees = loaded.state.assignees
        now_ms = store.kernel.clock.now_ms()
        stand_ins = await delegates_of(delegate, assignees, review=loaded.stored, now_ms=now_ms)
        people = replaced_people(assignees, stand_ins)
        if people == assignees or len(people) < loaded.content.quorum:
            return None
        return {"from": list(assignees), "to": list(people), "reason": DELEGATED}

    return await _reassign(store, key, plan)


async def escalate_review(
    store: ReviewStore, key: ReviewKey, people: Sequence[str]
) -> LoadedReview | None:
    """Assign a review to more people, because none of its assignees has decided in time.

    None if there is no such review, or it is decided. One that everybody may decide stays so.
    """

    async def plan(loaded: LoadedReview) -> dict[str, Any] | None:
        assignees = loaded.state.assignees
        known = {name.casefold() for name in assignees}
        added = [name for name in people if name.casefold() not in known]
        if not assignees or not added:
            return None
        return {"from": list(assignees), "to": [*assignees, *added], "reason": ESCALATED}

    return await _reassign(store, key, plan)


def replaced_people(
    people: Sequence[str], stand_ins: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return people with those who stand in for them, each once."""
    named = [each for name in people for each in stand_ins.get(name, (name,))]
    return tuple({name.casefold(): name for name in reversed(named)}.values())[::-1]


async def _reassign(
    store: ReviewStore,
    key: ReviewKey,
    plan: Callable[[LoadedReview], Awaitable[Mapping[str, Any] | None]],
) -> LoadedReview | None:
    """Reassign a review as planned, if anything is; return it, or None if it is decided."""
    kernel, changed = store.kernel, None
    while changed is None:  # until no other action comes first
        loaded = await load_review(kernel, key)
        if loaded is None or loaded.settled is not None:
            return None
        data = await plan(loaded)
        if data is None:
            return loaded
        changed = await append_action(kernel, loaded, "reassigned", by=None, data=data)
    if not await fence_decisions(kernel, changed):
        return None
    return await follow_trail(kernel, changed)
