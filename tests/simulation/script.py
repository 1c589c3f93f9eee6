"""What the users of a fleet want: the plans of their runs, and what they do to them when."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.run import OnBusy
from tests.simulation.effects import CALLS, TELLING
from tests.simulation.flow import HEAVY, branches_of
from tests.simulation.oracle import MOST_TOKENS

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = [
    "DAY_SECONDS",
    "FOLLOWER",
    "RIVAL",
    "RUNS",
    "SLEEPER",
    "TENANT",
    "Line",
    "Profile",
    "Script",
    "Wish",
    "add_choosers",
    "asked",
    "drawn_profile",
    "drawn_script",
]

RUNS = 20
SHARDS = (1, 1, 2, 3)
"""Into how many shards the due index of a fleet is cut at first."""
PLENTY_TOKENS = 1_000_000
_TOLD = ("call told", "call shared", "call twins")
PAID = ("call model", "call heirs", "call slice", "call torn", "call estate", *_TOLD)
BURSTS = 0.5
"""How many of the runs that ask for several signals of one name get them in one go."""
TELLING_PART = 0.6
TEXTS = ("call told", "call tolds", "call retold")
SESSIONS = ("desk", "phone")
TENANT = "acme"
DAY_SECONDS = 24 * 3600.0
SLEEPER = "sleeper"
"""Waits for weeks, extended, in a session."""
FOLLOWER = "follower"
"""Is started behind it when everything that it had before it was extended has gone."""
CHOOSERS = 3
"""How many runs of a fleet wait for the first of several, where some do."""
CHOOSERS_SECONDS = 60.0
IN_MEMORY = 0.15
EXPIRING = 0.2
RIVAL = "rival"
"""A run of another tenant, which asks what all others ask; and that tenant."""


@dataclass(frozen=True)
class Profile:
    """What the runs of one fleet do more often than those of others."""

    sessions: float = 0.4
    in_memory: float = 0.15
    expires: float = 0.2
    calls: float = 0.0
    """Which part of what they do is calls of the world outside."""
    tells: bool = False
    """Whether half of these share their answers, or let the text be followed."""


# How many fleets have which, by how seldom what it leads to is met. Without profiles, where every
# fourth fleet called, 1,000 fleets had some 20 with a call that a person voided, 20 with an answer
# refused under a burned key, 50 with a child that expired and 50 with a run never written.
PROFILES = (
    (6, Profile()),
    # More of them are in memory, where it shows what they did.
    (3, Profile(calls=0.5, in_memory=0.4)),
    (2, Profile(calls=0.5, in_memory=0.4, tells=True)),
    (1, Profile(calls=0.8, sessions=0.1, expires=0.1)),
    (1, Profile(calls=0.8, sessions=0.1, expires=0.1, tells=True)),
    (1, Profile(sessions=0.8)),
    (2, Profile(expires=0.6)),
    (2, Profile(in_memory=0.6, sessions=0.2)),
)


def drawn_profile(
    draw: random.Random, *, calling: bool | None = None, telling: bool | None = None
) -> Profile:
    """Draw what a fleet does more often, of what fits: ``None`` leaves it to the draw."""
    fit = [
        (weight, profile)
        for weight, profile in PROFILES
        if calling in (None, profile.calls > 0) and telling in (None, profile.tells)
    ]
    return draw.choices([one for _, one in fit], [weight for weight, _ in fit])[0]


@dataclass
class Wish:
    """A run, as its user wants it."""

    plan: list[str]
    expires: float | None = None
    ballast: int = 0
    session: str | None = None
    on_busy: OnBusy = "queue"
    tokens: int | None = None
    """What it may spend at first."""
    in_memory: bool = False
    """Whether nothing of it is to be written before it pauses."""
    tenant: str = TENANT

    @property
    def user(self) -> str | None:
        """For whom it is started."""
        return "ann" if self.session == "phone" else None

    @property
    def speaks(self) -> bool:
        """Whether there is text to be followed."""
        return any(call in step for step in self.plan for call in TEXTS)


@dataclass
class Line:
    """One line of a client's script."""

    at_seconds: float
    verb: str
    run: str
    argument: str = ""
    id: str = ""
    """Of a signal; of several that are sent one after the other, all, with commas between them."""
    done: bool = False
    refused: bool = False


@dataclass
class Script:
    """All wishes, and what each client does."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    clients: list[list[Line]] = field(default_factory=list)
    shards: int = 1

    @property
    def lines(self) -> list[Line]:
        """Every line of every client."""
        return [line for lines in self.clients for line in lines]

    @property
    def in_memory(self) -> frozenset[str]:
        """The runs of which nothing is to be written before they pause."""
        return frozenset(run for run, wish in self.wishes.items() if wish.in_memory)

    @property
    def has_bursts(self) -> bool:
        """Whether some signals are sent one right after the other."""
        return any("," in line.id for line in self.lines)

    def about(self, run: str) -> list[Line]:
        """Return what is done to a run."""
        return [line for line in self.lines if line.run == run]


def drawn_script(draw: random.Random, seconds: float, profile: Profile) -> Script:
    """Draw what users do within that time."""
    drawing = _Drawing(draw, profile)
    script = Script()
    lines: list[Line] = []
    for number in range(RUNS):
        run = f"run-{number:02d}"
        start = draw.random() * seconds * 0.5
        wish = script.wishes[run] = drawing.wish()
        lines.append(Line(start, "start", run))
        if draw.random() < 0.2 and wish.on_busy != "reject":
            lines.append(Line(start + draw.random() * 5, "start", run))  # asked for twice
        lines += drawing.signals(run, wish, start)
        if draw.random() < 0.12:
            lines.append(Line(start + draw.random() * 60, "cancel", run))
        if draw.random() < 0.15:
            lines.append(Line(start + 30 + draw.random() * 90, "retry", run))
        if wish.tokens is not None:
            given = draw.choice(["", "", "0 ", f"{MOST_TOKENS} "]) + str(PLENTY_TOKENS)
            lines.append(Line(start + 10 + draw.random() * 90, "fund", run, given))
        if wish.expires is not None and draw.random() < 0.7:
            # Now and then at the last moment.
            after = draw.choice([draw.random() * wish.expires, wish.expires - draw.random()])
            longer = draw.choice([60 + draw.random() * 60, 20 * DAY_SECONDS])
            lines.append(Line(start + after, "extend", run, f"{longer:.3f}"))
    shards = script.shards = draw.choice(SHARDS)
    lines.append(Line(draw.random() * seconds, "grow", "", str(shards + draw.randint(1, 2))))
    script.wishes[SLEEPER] = Wish(["work 0.1", "ask wake"], expires=DAY_SECONDS, session="long")
    lines.append(Line(draw.random() * 20, "start", SLEEPER))
    lines.append(Line(20 + draw.random() * 40, "extend", SLEEPER, f"{30 * DAY_SECONDS}"))
    if profile.tells:
        plan = ["work 0.1", "call shared", "call retold", "nap 9", "call twins"]
        script.wishes[RIVAL] = Wish(plan, tenant=RIVAL)
        lines.append(Line(draw.random() * 40, "start", RIVAL))
    lines.sort(key=lambda line: line.at_seconds)
    # A line may wait for a run that another client starts; no client waits for itself.
    starters = [line for line in lines if line.verb == "start"]
    others = [line for line in lines if line.verb != "start"]
    script.clients = [starters, others[::2], others[1::2]]
    return script


class _Drawing:
    """Draws the parts of a script."""

    def __init__(self, draw: random.Random, profile: Profile) -> None:
        self._draw = draw
        self._profile = profile
        self._telling = profile.tells
        self._calls = profile.calls

    def wish(self) -> Wish:
        draw = self._draw
        if draw.random() < self._profile.sessions:
            # Short, so that a queue gets through within the time of a fleet.
            on_busy: list[OnBusy] = ["queue"] * 5 + ["replace", "replace", "promote", "promote"]
            wish = Wish(
                self._plan(draw.randint(1, 2), brief=True),
                session=draw.choice(SESSIONS),
                on_busy=draw.choice([*on_busy, "reject"]),
            )
        else:
            wish = Wish(self._plan(draw.randint(1, 6), brief=False))
            wish.in_memory = draw.random() < self._profile.in_memory
        if draw.random() < self._profile.expires:
            wish.expires = 30 + draw.random() * 90
            wish.plan = _beyond(wish.plan, wish.expires)
        if draw.random() < 0.25:
            wish.ballast = draw.choice([700, HEAVY])
        if any(call in step for step in wish.plan for call in PAID) and draw.random() < 0.7:
            # For an answer or two, unless one is lost.
            wish.tokens = draw.choice([0, MOST_TOKENS, 2 * MOST_TOKENS, 12 * MOST_TOKENS])
        return wish

    def signals(self, run: str, wish: Wish, start: float) -> list[Line]:
        draw = self._draw
        lines: list[Line] = []
        for name, ids in self._batches(asked(wish.plan)):
            at = start + draw.random() * (30 if wish.session else 80)
            edge = wish.expires is not None and draw.random() < 0.5
            if edge and wish.expires is not None:
                at = start + wish.expires + draw.uniform(-1, 1)  # at the last moment
            lines.append(Line(at, "signal", run, name, ids))
            if draw.random() < (0.7 if edge else 0.3):
                again = at + draw.random() * (3 if edge else 20)
                lines.append(Line(again, "signal", run, name, ids))  # the same once more
        return lines

    def _batches(self, asked: list[str]) -> list[tuple[str, str]]:
        """Return the signals that are asked for, and which of them are sent one after the other."""
        ids: dict[str, list[str]] = {}
        for number, name in enumerate(asked):
            ids.setdefault(name, []).append(f"s{number}")
        batches: list[tuple[str, str]] = []
        for name, of_name in ids.items():
            if len(of_name) > 1 and self._draw.random() < BURSTS:
                # The ids fall: an order that goes by them is the wrong one.
                batches.append((name, ",".join(reversed(of_name))))
            else:
                batches += [(name, id) for id in of_name]
        return batches

    def _plan(self, count: int, *, brief: bool) -> list[str]:
        plan = ["work 0.2"]
        for _ in range(count):
            step = self._step(brief=brief)
            restless = [text.split()[0] in ("swift", "side") for text in (plan[-1], step)]
            if not all(restless):
                plan.append(step)
        return plan

    def _step(self, *, brief: bool) -> str:
        draw = self._draw
        if self._is_call():
            return self._simple("call", brief=brief)
        number = draw.random()
        if number < 0.12:
            return f"fork {self._branch(2)}|{self._branch(2)}"
        if number < 0.2:
            parts = [self._part() for _ in range(draw.randint(1, 4))]
            return f"each {'|'.join(parts)}"
        if number < 0.24:
            return f"side {self._branch(2)}"
        if number < 0.3:
            return f"kids {'|'.join(self._child() for _ in range(draw.randint(1, 3)))}"
        if number < 0.32:
            return "kid"
        kinds = ["work", "work", "work", "ask", "ask", "nap", "shaky", "heavy", "swift"]
        return self._simple(draw.choice(kinds), brief=brief)

    def _branch(self, most: int) -> str:
        kinds = ["work", "ask", "ask", "nap", "shaky", "work", "ask", "nap", "shaky", "kid"]
        count = self._draw.randint(1, most)
        return ";".join(self._few(kinds, count))

    def _child(self) -> str:
        # Nobody sends it anything: whatever it asks for it gives up at some time.
        kinds = ["work", "nap", "shaky", "kid", "heavy", "ask go<6"]
        count = self._draw.randint(1, 2)
        return ";".join(["work 0.1", *self._few(kinds, count)])

    def _few(self, kinds: list[str], count: int) -> list[str]:
        return [
            self._simple("call" if self._is_call() else self._draw.choice(kinds), brief=True)
            for _ in range(count)
        ]

    def _is_call(self) -> bool:
        return self._calls > 0 and self._draw.random() < self._calls

    def _part(self) -> str:
        branch = self._branch(2)
        if self._draw.random() < 0.3:
            return f"{branch};twin {self._draw.choice([0, 0, 1, 3])}"
        return branch

    def _simple(self, kind: str, *, brief: bool) -> str:
        draw = self._draw
        match kind:
            case "work":
                return f"work {draw.random() ** 3 * (3 if brief else 8):.3f}"
            case "ask":
                most = 15 if brief else 40
                limit = f"<{5 + draw.random() * most:.3f}" if draw.random() < 0.25 else ""
                return f"ask {draw.choice(['go', 'pay'])}{limit}"
            case "nap":
                return f"nap {draw.random() * (8 if brief else 30):.3f}"
            case "call":
                if self._telling and draw.random() < TELLING_PART:
                    return f"call {draw.choice(TELLING)}"
                return f"call {draw.choice(CALLS)}"
            case "shaky":
                return f"shaky {draw.choice([0, 1, 1, 2, 3])}"
            case _:
                return kind


def add_choosers(world: World, script: Script) -> None:
    """Let some runs of some fleets wait for the first of several."""
    # Its own: what is drawn for the other fleets stays as it was.
    draw = random.Random(f"{world.seed}/choosers")
    if draw.random() >= world.plan.choosers:
        return
    drawing = _Drawing(draw, Profile(sessions=0, in_memory=0.1))
    for number in range(CHOOSERS):
        run, start = f"chooser-{number}", draw.random() * CHOOSERS_SECONDS
        plan = draw.choice(
            [[_first(draw)], [_first(draw), "work 0.5", _first(draw)], [_forked(draw)]]
        )
        wish = script.wishes[run] = Wish(["work 0.1", *plan])
        wish.in_memory = draw.random() < IN_MEMORY
        if draw.random() < EXPIRING:
            wish.expires = 60 + draw.random() * 60
        script.clients[0].append(Line(start, "start", run))
        for line in drawing.signals(run, wish, start):
            script.clients[draw.randint(1, 2)].append(line)
    for lines in script.clients:
        lines.sort(key=lambda line: line.at_seconds)


def _first(draw: random.Random) -> str:
    names = ["go", "pay", *(["kid"] if draw.random() < 0.4 else [])]
    draw.shuffle(names)
    sign = draw.choice(["", "<", "<", "!"])
    limit = f"{sign}{5 + draw.random() * 20:.3f}" if sign else ""
    return f"first {','.join(names)}{limit}"


def _forked(draw: random.Random) -> str:
    branches = [_first(draw) for _ in range(2)]
    return f"{draw.choice(['fork', 'each'])} {'|'.join(branches)}"


def _beyond(plan: list[str], expires: float) -> list[str]:
    """Return a plan in which every second wait may last beyond the expiry of its run.

    Nothing is drawn for it, so that the rest of the script stays as it is.
    """
    waits = itertools.count()

    def raised(ask: re.Match[str]) -> str:
        limit = float(ask[2] or 0) + expires
        return f"ask {ask[1]}<{limit:.3f}" if next(waits) % 2 else ask[0]

    return [re.sub(r"ask (go|pay)(?:<([\d.]+))?", raised, step) for step in plan]


def asked(plan: list[str]) -> list[str]:
    """Return the names of all signals that a plan asks for."""
    steps: list[str] = []
    for step in plan:
        kind, _, argument = step.partition(" ")
        branched = kind in ("fork", "each", "side")
        steps += [s for b in branches_of(argument) for s in b] if branched else [step]
    asks = [step.partition(" ")[2] for step in steps if step.startswith("ask ")]
    firsts = [step.partition(" ")[2] for step in steps if step.startswith("first ")]
    return [ask.partition("<")[0] for ask in asks] + ["go", "pay"] * len(firsts)
