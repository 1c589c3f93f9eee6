"""A model that is paid for whenever it is reached, and what runs truly paid it.

Checked whenever it is: no run with a budget has paid more than it may, with all that it started,
nor any run more than its journal says that it may have, or than it was given out of another one's.

Where budgets allow estimates, no more than the calls in flight took beyond theirs: see `estimates`.

In some fleets it now and then tells of a usage that cannot be. Such an answer is recorded with what
was reserved for it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ModelUnavailable
from holdfast.model.budget import Budget
from holdfast.model.event import CallFinished, Event
from holdfast.model.invocation import Answer, Emit, Request
from holdfast.model.pricing import ModelPrice, Usage
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, NO_SPENDING, Spending
from holdfast.model.wait import BudgetWait
from holdfast.records.codec import arguments_digest
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey, account_key, grant_key
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.estimates import INPUT_MAX, Estimates

if TYPE_CHECKING:
    from tests.simulation.once import Journey
    from tests.simulation.world import World

__all__ = [
    "MOST_TOKENS",
    "NANODOLLARS_A_TOKEN",
    "Books",
    "Oracle",
    "asked_of",
    "budget_of",
    "cost_of",
    "digest_of",
]

MOST_TOKENS = 100
"""What an answer takes at most."""
NANODOLLARS_A_TOKEN = 100
_BUSY = 0.05
_HALF_TOKENS = MOST_TOKENS // 2
"""What is reserved for each side of an answer."""
_ABSURD = 0.3
"""How many answers tell of a usage that cannot be, in fleets whose model does."""

Name = tuple[str, str]
"""A run: its partition, and its generation."""
Ask = Callable[[Request], Coroutine[Any, Any, Any]]
"""Asks, and returns the answer."""
Tell = Callable[[str, Emit], Coroutine[Any, Any, None]]
"""Tells the text of an answer, piece by piece."""


class Oracle:
    """The model, as a process sees it. Implements `holdfast.model.invocation.Model`."""

    max_tokens = _HALF_TOKENS
    price = ModelPrice(input_usd=NANODOLLARS_A_TOKEN / 1000, output_usd=NANODOLLARS_A_TOKEN / 1000)

    def __init__(self, name: str, ask: Ask, tell: Tell, *, input_max: int = _HALF_TOKENS) -> None:
        self.name = name
        self._input_max = input_max
        self._ask = ask
        self._tell = tell

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return self._input_max, _HALF_TOKENS

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        try:
            answer = await self._ask(request)
            if emit is not None:
                await self._tell(answer.text, emit)
            return answer
        except ConnectionError as error:
            raise ModelUnavailable(str(error)) from error


class Books:
    """What each run truly paid, and what it and those that it started may pay."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._paid: dict[Name, Spending] = {}
        """What each run paid with all that it started."""
        self._own: dict[Name, Spending] = {}
        self._may: dict[Name, int] = {}
        """The largest budget that each run ever had, in tokens."""
        self._parents: dict[Name, Name] = {}
        self._drawing: dict[Name, Name] = {}
        """On whose account each run draws."""
        self._accounts: dict[Name, Spending] = {}
        self._grants: dict[Name, dict[str, Spending]] = {}
        self._slices: dict[Name, int] = {}
        """What was set aside for each run that has a slice, in tokens."""
        self._beyond: set[Name] = set()
        """Accounts that gave more just now, and more than they may by now."""
        self._raised: dict[Name, dict[str, int]] = {}
        """Who was given more just now, and how much."""
        self._changed: set[Name] = set()
        self._answers = 0
        self._costs: dict[str, Spending] = {}
        """What each answer has to cost in a journal."""
        self._absurd: random.Random | None = None
        self.estimates = Estimates(world, seen)

    @property
    def input_max(self) -> int:
        """The upper bound of a question's input."""
        return INPUT_MAX if self.estimates.on else _HALF_TOKENS

    def budget_of(self, tokens: int) -> Budget:
        """Return the budget that users of this fleet give to a run."""
        return msgspec.structs.replace(budget_of(tokens), estimate=self.estimates.on)

    def draw_usage(self) -> None:
        """Draw whether the model tells of usages that cannot be."""
        # Its own: what is drawn for the other fleets stays as it was.
        draw = random.Random(f"{self._world.seed}/usage")
        if draw.random() < self._world.plan.absurd_usage:
            self._absurd = draw

    # --- what is paid -----------------------------------------------------------------------------

    def reached(self, journey: Journey, what: str = "oracle") -> Answer | ModelUnavailable:
        """Return what the model answers, and write down what that costs.

        What it says begins with its number: no two answers are alike.
        """
        draw = self._world.random.random
        if self._world.plan.effects and draw() < _BUSY:
            self._seen["model busy, unpaid"] += 1
            return ModelUnavailable("busy", unpaid=True)
        usage = Usage(*(1 + int(draw() * MOST_TOKENS / 2) for _ in range(2)))
        if self.estimates.on:
            usage = self.estimates.usage()
        cost = cost_of(usage, self.input_max)
        self.estimates.paid(journey, cost.tokens)
        self._pay(journey.chronicle, cost)
        self._answers += 1
        told, text = self._told(usage), f"{self._answers:05d} {what}"
        self._costs[text] = cost_of(told, self.input_max)
        return Answer(text=text, usage=told, model=journey.effect.tool)

    def _told(self, usage: Usage) -> Usage:
        """Return the usage of which the model tells."""
        draw = self._absurd
        if draw is None or draw.random() >= _ABSURD:
            return usage
        self._seen["usage out of bounds"] += 1
        return draw.choice(
            [
                Usage(-5 * MOST_TOKENS, usage.output_tokens),
                Usage(usage.input_tokens, -5 * MOST_TOKENS),
                Usage(usage.input_tokens, 5 * MOST_TOKENS),
                Usage(usage.input_tokens, 2**62),
                Usage(0, 0),
                Usage(usage.input_tokens, 0),
                Usage(usage.input_tokens, usage.output_tokens, 2**62),
            ]
        )

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Check what a journal says that an answer cost."""
        self.estimates.recorded(chronicle, event, what)
        if not isinstance(event, CallFinished) or not isinstance(event.result, dict):
            return
        cost = self._costs.get(event.result.get("text", ""))
        if cost is not None and event.by != "cache" and event.spent != cost:
            raise Broken(f"{what}, and its answer cost {cost}")

    def _pay(self, chronicle: Chronicle, cost: Spending) -> None:
        name = payer = (chronicle.key.pk, chronicle.generation)
        own = self._own[name] = self._own.get(name, NO_SPENDING) + cost
        limited = name in self._drawing
        while True:
            paid = self._paid[payer] = self._paid.get(payer, NO_SPENDING) + cost
            if payer in self._may:
                limited = True
                if paid.tokens > self._may[payer] + self._excess_below(payer):
                    raise Broken(f"{payer} paid {paid}, and may only {self._may[payer]} tokens")
            if payer not in self._parents:
                break
            payer = self._parents[payer]
        if limited:
            self._seen["paid within a budget"] += 1
            self._check_written(name, chronicle, own)

    def _excess_below(self, name: Name) -> int:
        """Return what calls of a run and of those that it started took beyond what was known."""
        if not self.estimates.on:
            return 0
        return sum(self.estimates.excess(run) for run in self._own if self._is_below(run, name))

    def _is_below(self, run: Name, name: Name) -> bool:
        while run != name and run in self._parents:
            run = self._parents[run]
        return run == name

    def _check_written(self, name: Name, chronicle: Chronicle, own: Spending) -> None:
        own = self._less(own, self.estimates.excess_in_flight(name))
        written = chronicle.execution.spent if chronicle.execution is not None else NO_SPENDING
        if own.tokens > written.tokens or own.nanodollars > written.nanodollars:
            raise Broken(f"{chronicle.key.id} paid {own}, and its journal says {written}")
        drawn = None if chronicle.execution is None else chronicle.execution.drawn
        if name in self._drawing or (name in self._accounts and drawn is not None):
            self._seen["paid out of a shared budget"] += 1
            owner = self._drawing.get(name, name)
            given = self._grants.get(owner, {}).get(chronicle.key.id, NO_SPENDING)
            own = self._less(own, self.estimates.excess(name))
            if own.tokens > given.tokens or own.nanodollars > given.nanodollars:
                raise Broken(f"{chronicle.key.id} paid {own}, and was given {given}")

    def _less(self, spending: Spending, tokens: int) -> Spending:
        return spending - Spending(tokens, tokens * NANODOLLARS_A_TOKEN)

    # --- every write ------------------------------------------------------------------------------

    def row(self, before: Head | None, head: Head) -> None:
        """Hear of a row, which says what a run may spend, and out of whose budget."""
        name = (head.key.pk, head.generation)
        if before is None and head.parent is not None:
            parent = RunKey(head.key.tenant, head.parent.id)
            self._parents[name] = (parent.pk, head.parent.generation)
            self._check_slice(head, self._runs.of(*self._parents[name]))
        if head.payer is not None:
            owner = RunKey(head.key.tenant, head.payer.id)
            self._drawing[name] = (owner.pk, head.payer.generation)
            if head.status in ENDED and not self._runs.is_seen_to(head) and self.owes(head):
                raise Broken(f"{head.key.id} is {head.status}, and gives nothing back")
        if head.budget is not None and head.budget.tokens is not None:
            self._may[name] = max(self._may.get(name, 0), head.budget.tokens)
            if head.budget.tokens > self._slices.get(name, head.budget.tokens):
                raise Broken(f"{head.key.id} may spend more than the slice {self._slices[name]}")
        if head.owner is None and any(isinstance(wait.kind, BudgetWait) for wait in head.waits):
            self._seen["out of money"] += 1
            self._seen["out of shared money"] += head.payer is not None

    def _check_slice(self, head: Head, parent: Chronicle) -> None:
        """What a child may spend of its own its parent has set aside."""
        name = (parent.key.pk, parent.generation)
        limited = name in self._may or name in self._drawing
        if head.budget is None or head.status in ENDED or not limited:
            return
        self._seen["child with a slice"] += 1
        self._slices[head.key.pk, head.generation] = head.budget.tokens or 0
        slices = {} if parent.execution is None else parent.execution.slices
        if slices.get(head.key.id, NO_SPENDING).tokens < (head.budget.tokens or 0):
            raise Broken(f"{head.key.id} may spend {head.budget}, and set aside is {slices}")

    def owes(self, head: Head) -> bool:
        """Return whether a run that has ended has not given back what it did not need."""
        if head.payer is None or head.status not in ("finished", "failed", "cancelled"):
            return False
        owner = RunKey(head.key.tenant, head.payer.id)
        grant = self._world.truth.item(grant_key(owner, head.payer.generation, head.key.id))
        account = self._world.truth.item(account_key(owner, head.payer.generation))
        return grant is not None and account is not None and not grant.get("closed")

    def account(self, key: Key, new: Item | None) -> None:
        """Hear of an account, or of what one run was given out of it."""
        kind, generation, *holder = key.sk.split("#", 2)
        name = (key.pk, generation)
        if new is None:
            self._accounts.pop(name, None)
            return
        if kind == "ACCOUNT":
            self._account(name, new)
        else:
            grants, total = self._grants.setdefault(name, {}), Spending(*new["total"])
            before = grants.get(holder[0], NO_SPENDING)
            if total.tokens > before.tokens:
                more = total.tokens - before.tokens
                self._raised.setdefault(name, {})[holder[0]] = more
            grants[holder[0]] = total
            self._seen["gave back"] += new.get("closed", False)
            self._check_lowered(name, holder[0], new, before)
            run = self._name_of(name, holder[0])
            paid = NO_SPENDING if run is None else self._own.get(run, NO_SPENDING)
            if run is not None and total.tokens + self.estimates.excess(run) < paid.tokens:
                raise Broken(f"{holder[0]} paid {paid}, and keeps {total}")
        self._changed.add(name)

    def _name_of(self, account: Name, id: str) -> Name | None:
        """Return the run that has this id now, of those that draw on an account."""
        row = self._runs.row(RunKey(account[0].split("#")[1], id))
        return None if row is None else (row.key.pk, row.generation)

    def _excess_of(self, account: Name, id: str) -> int:
        run = self._name_of(account, id)
        return 0 if run is None else self.estimates.excess(run)

    def _check_lowered(self, name: Name, id: str, new: Item, before: Spending) -> None:
        """Check that a run that goes on has no more by its journal than its grant still says."""
        total, former = Spending(*new["total"]), Spending(*new.get("former", (0, 0)))
        if new.get("closed") or total.tokens >= before.tokens:
            return
        self._seen["rest returned"] += 1
        run = RunKey(name[0].split("#")[1], id)
        execution = self._runs.of(run.pk, new["generation"]).execution
        drawn = None if execution is None else execution.drawn
        if drawn is not None and drawn.tokens > (total - former).tokens:
            raise Broken(f"{id} has {drawn} by its journal, and is left {total - former}")

    def _account(self, name: Name, new: Item) -> None:
        """Check that an account gives no more than it ever might, nor what was given back."""
        before, granted = self._accounts.get(name, NO_SPENDING), Spending(*new["granted"])
        self._accounts[name] = granted
        limit, more = new["limits"]["tokens"], granted.tokens > before.tokens
        excess = self._excess_below(name)
        if granted.tokens > self._may[name] + excess:
            raise Broken(f"{name} gave {granted}, and never might more than {self._may[name]}")
        if granted.tokens > limit:
            self._seen["budget lowered below what was given"] += 1
            self._beyond |= {name} if more else set()
        row = self._runs.own_row(self._runs.of(*name))
        if more and row is not None and row.parent is not None and name in self._slices:
            parent = self._runs.of(*self._parents[name]).execution
            left = NO_SPENDING if parent is None else parent.slices.get(row.key.id, NO_SPENDING)
            if granted.tokens > left.tokens + excess:
                raise Broken(f"{row.key.id} gave {granted}, and its parent keeps {left} for it")

    def balance(self) -> None:
        """Check, after each write, that what is granted is the sum of what was given."""
        for name in self._beyond:
            # Only what its own run spent before it knew of the account, or of the lower limit.
            others = [
                id
                for id, more in self._raised.get(name, {}).items()
                if not name[0].endswith(f"#{id}") and more > self._excess_of(name, id)
            ]
            if others:
                raise Broken(f"{name} gave {others} more, and more than it may by now")
        self._beyond.clear()
        self._raised.clear()
        for name in self._changed:
            given = sum(self._grants.get(name, {}).values(), NO_SPENDING)
            if name in self._accounts and self._accounts[name] != given:
                raise Broken(f"{name} gave {given}, and its account says {self._accounts[name]}")
        self._changed.clear()


def cost_of(usage: Usage, input_max: int = _HALF_TOKENS) -> Spending:
    """Return what an answer costs that tells of this usage: if it cannot be, the upper bound."""
    tokens = usage.input_tokens + usage.output_tokens
    sides = (usage.input_tokens, usage.output_tokens)
    cached = 0 <= usage.cached_input_tokens <= usage.input_tokens
    if not cached or any(
        not 1 <= side <= most for side, most in zip(sides, (input_max, _HALF_TOKENS), strict=True)
    ):
        tokens = input_max + _HALF_TOKENS
    return Spending(tokens, tokens * NANODOLLARS_A_TOKEN)


def budget_of(tokens: int) -> Budget:
    """Return a budget of so many tokens, and of what they cost."""
    return Budget(tokens=tokens, usd=tokens * NANODOLLARS_A_TOKEN / NANODOLLARS_PER_DOLLAR)


def asked_of(request: Request) -> str:
    """Return what names the call by which something is asked."""
    return str(request.messages[0]["content"])


def digest_of(request: Request) -> bytes:
    """Return the digest of a question, as its record has it."""
    unkeyed = msgspec.structs.replace(request, idempotency_key="")
    return arguments_digest(((unkeyed,), {}))
