"""A fleet of workers and clients that do everything to runs, while everything goes wrong.

Each run has a plan (`flow`): which nodes it goes through, which signals it waits for. Each client
has a script (`script`) of what it does to whom and when; it repeats each line until it is
acknowledged, also after it has crashed. The scripts, the plans and what came of them are outside
the world: they stand for the users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.records.head import OPEN
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.effects import Outside
from tests.simulation.faults import FaultPlan, calm, hostile
from tests.simulation.flow import Users, flow
from tests.simulation.inboxes import drawn_crowd
from tests.simulation.lot import drawn_lot, jump_clocks, lengthen, plant_dead
from tests.simulation.members import LEASE_SECONDS, TROUBLE_SECONDS, Fleet
from tests.simulation.outages import OutageWatch, drawn_outages
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.rates import rates
from tests.simulation.reduction import REUSE, WHOLE, Reduction
from tests.simulation.reviewing import reviewing
from tests.simulation.script import (
    DAY_SECONDS,
    FOLLOWER,
    RUNS,
    SLEEPER,
    Line,
    Script,
    Wish,
    add_choosers,
    drawn_profile,
    drawn_script,
)
from tests.simulation.setting import setting
from tests.simulation.strangers import are_strangers_there
from tests.simulation.streams import Screen
from tests.simulation.treasurer import Treasurer
from tests.simulation.verdict import check_results, statuses_of
from tests.simulation.world import World, simulate

__all__ = ["RUNS", "TROUBLE_SECONDS", "WORKERS", "Outcome", "fleet", "rough"]

WORKERS = 3
REST_SECONDS = 12 * LEASE_SECONDS
"""After that much more, nothing may be left undone."""
TOLD_SECONDS = 4 * 50.0
"""How much longer it may take where runs ask several shared questions, one after the other."""
STILL_LEASES = 1
"""For how many leases nothing may have been left undone before a fleet is sent home earlier."""
TICK_MS = 16
"""How far clocks move at once where signals come one right after the other."""
SHARED = 0.5
"""How many fleets have their clients in the processes of their workers."""
REAPED_SECONDS = 3.5 * LEASE_SECONDS
"""So long after the trouble is over no dead worker is left."""
CROWDED = 5
"""Of so many fleets that call the world outside, processes crowd at one quota: see `rates`."""
ESTIMATED = 5
"""Of so many fleets that call the world outside, another one has budgets that allow estimates."""
REVIEWED = 3
"""Of so many fleets, people decide reviews beside one: see `reviewing`."""
SLUGGISH = 0.15
"""How many fleets that call the world outside are slow in everything that they do."""
STUCK_SECONDS = TROUBLE_SECONDS + REST_SECONDS + TOLD_SECONDS
"""For so long nothing may be stuck, whatever goes wrong: by then even a slow fleet is at rest."""
RUNS_FOLLOWED = 3
FLOORS_BYTES = (0, 1_000, 64 * 1024)
"""From how much on a journal is worth a snapshot: mostly little, so that there are many."""


@dataclass
class Outcome:
    """What became of a simulated fleet."""

    world: World
    promises: Promises
    statuses: dict[str, str]
    calls: bool
    """Whether its runs called the world outside."""


def rough() -> FaultPlan:
    """Return the plan of faults for fleets."""
    return hostile().evolve(
        throttled=0.015,
        unreachable=0.015,
        lost_answer=0.025,
        slow=0.015,
        crash=0.0016,
        stall=0.0018,
        stall_seconds_max=90.0,
        restart_seconds_max=15.0,
        late_write=0.02,
        slow_signal=0.03,
        abandoned=0.4,
        effect_lost=0.02,
        effect_unanswered=0.03,
        effect_late=0.03,
        effect_crash=0.03,
        effect_stall=0.02,
        dead_workers=0.1,
        clock_jumps=0.25,
        few_resumes=0.1,
        crowds=0.15,
        strangers=0.1,
        choosers=0.3,
        absurd_usage=0.2,
        settle_stall=0.03,
        family_stall=0.02,
        table_outage=0.2,
        blob_outage=0.25,
        stream_broken=0.06,
        stream_crash=0.06,
        stream_stall=0.05,
    )


def fleet(
    seed: int | str,
    plan: FaultPlan | None = None,
    *,
    reuse: bool = True,
    calling: bool | None = None,
    telling: bool | None = None,
    estimating: bool = False,
    reduction: Reduction = WHOLE,
) -> Outcome:
    """Let a fleet work through everything, first in trouble, then in peace; check the promises.

    ``calling`` says whether its runs call the world outside, ``telling`` whether they also share
    answers, and let texts be followed; unless said, the seed decides. ``estimating`` says whether
    their budgets allow estimates, and its model takes what it likes.
    ``reduction`` leaves parts of what was drawn out.
    """
    chosen = plan or rough()

    async def scenario(world: World) -> Outcome:
        profile = drawn_profile(world.random, calling=calling, telling=telling)
        calls, tells = profile.calls > 0, profile.tells
        lot = drawn_lot(world, chosen, calling=calls)
        promises = Promises(
            world,
            skew_ms=round(2 * chosen.skew_seconds_max * 1000) + 100,
            stuck_ms=round((STUCK_SECONDS + lot.skew_seconds_max) * 1000),
            lease_seconds=LEASE_SECONDS,
            lot=lot,
        )
        script = drawn_script(world.random, TROUBLE_SECONDS, profile)
        add_choosers(world, script)
        lengthen(script.wishes, lot)
        script = reduction.reduced(script)
        if tells:
            promises.streams.screens += _screens(script)
        promises.books.estimates.on = estimating
        floor_bytes = world.random.choice(FLOORS_BYTES)
        outside = Outside(
            world,
            promises.seen,
            once=promises.once,
            books=promises.books,
            gate=promises.gate,
            shared=promises.shared,
            streams=promises.streams,
        )
        outside.begun_again = script.in_memory
        promises.books.draw_usage()
        if script.has_bursts:
            world.plan = world.plan.evolve(tick_ms=TICK_MS)
        world.users = Users(promises.entered, outside, promises.choices)
        state = Fleet(world, promises, script, floor_bytes, flow(), outside, lot)
        state.crowd = drawn_crowd(world, script)
        promises.inboxes.items_max = None if state.crowd is None else state.crowd.items_max
        state.strange = are_strangers_there(world)
        state.shared = world.random.random() < SHARED
        if calls and world.random.random() < SLUGGISH:
            world.plan = world.plan.evolve(sluggish=1.0)
        _draw_outages(world, state)
        state.trouble_seconds = reduction.trouble_seconds or TROUBLE_SECONDS
        if reduction.dice:
            world.throw_anew(reduction.dice)
        with setting(script.shards):
            await _worked_through(world, state, calls=calls)
            promises.settled()
            check_results(world, state)
            statuses = statuses_of(world)
            if reuse and REUSE not in reduction.without:
                await _reused(world, state)
        return Outcome(world, promises, statuses, calls)

    outcome = simulate(scenario, seed, chosen, muted=reduction.faults)
    alone = isinstance(seed, int) and reduction == WHOLE and not estimating
    if alone and plan is None and int(seed) % REVIEWED == 0:
        outcome.promises.seen.update(reviewing(seed))
    if outcome.calls and isinstance(seed, int) and alone:
        if seed % CROWDED == 0:
            outcome.promises.seen.update(rates(seed))
        if seed % ESTIMATED == 1:
            estimated = fleet(seed, plan, calling=True, telling=False, estimating=True)
            outcome.promises.seen.update(estimated.promises.seen)
    return outcome


def _draw_outages(world: World, state: Fleet) -> None:
    names = [f"w{number}" for number in range(WORKERS)]
    world.outages = drawn_outages(world.seed, world.plan, seconds=TROUBLE_SECONDS, processes=names)
    if world.outages.windows:
        world.watch = OutageWatch(
            world, state.promises.seen, patience_seconds=LEASE_SECONDS, shared=state.shared
        )


def _screens(script: Script) -> list[Screen]:
    """Return who follows the texts of some runs: each of them twice."""
    speaking = [RunKey(wish.tenant, run) for run, wish in script.wishes.items() if wish.speaks]
    return [Screen(run) for run in speaking[-RUNS_FOLLOWED:] for _ in range(2)]


async def _passed(world: World, seconds: float) -> None:
    """Let time pass, in nobody's name."""
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


async def _come_to_rest(world: World, state: Fleet) -> None:
    """Let time pass until nothing is left undone, and a while longer; at most so long.

    Whatever is late must have come, and who stalls must have gone on, before the while begins.
    """
    # What was written by a clock that was ahead is due only then.
    over = world.loop.time() + REST_SECONDS + state.lot.skew_seconds_max
    if state.promises.streams.screens:
        over += TOLD_SECONDS
    still = 0
    while still < STILL_LEASES and world.loop.time() < over:
        await _passed(world, LEASE_SECONDS)
        still = still + 1 if _is_done(world, state) and not _is_astir(world, state) else 0


def _is_done(world: World, state: Fleet) -> bool:
    """Return whether everything has come to the end that it must come to."""
    try:
        state.promises.settled()
        check_results(world, state)
    except Broken:
        return False
    return True


def _is_astir(world: World, state: Fleet) -> bool:
    """Return whether something goes on, or will before the fleet has gone home.

    Of a run whose users were refused something no end is expected. It may have a way to go, and
    stand at a wait that is over in a moment.
    """
    return world.is_up_to_something() or state.promises.is_due_within(LEASE_SECONDS)


async def _worked_through(world: World, state: Fleet, *, calls: bool) -> None:
    plant_dead(world, state.lot, LEASE_SECONDS)
    jump_clocks(world, state.lot, state.trouble_seconds, is_worker=_is_worker)
    workers = [world.supervise(f"w{number}", state.work) for number in range(WORKERS)]
    clients = [
        world.supervise(f"c{number}", state.client(script))
        for number, script in enumerate(state.script.clients)
        if not state.shared
    ]
    workers.append(world.supervise("person", state.person))
    if calls:
        treasurer = Treasurer(state.outside, state.promises.seen, state.leaving)
        workers.append(
            world.supervise(
                "treasurer", lambda process: treasurer.work(state.face(process), process)
            )
        )
    workers.append(world.supervise("late", state.latecomer))
    if state.crowd is not None and state.crowd.victims:
        workers.append(world.supervise("pest", state.pest))
    if state.strange:
        workers.append(world.supervise("stranger", state.stranger))
    if state.promises.streams.screens:
        workers.append(world.supervise("reader", state.read))
    await _passed(world, state.trouble_seconds)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index,
        skew_seconds_max=world.plan.skew_seconds_max,
        sluggish=world.plan.sluggish,
    )
    world.at(world.loop.time() + REAPED_SECONDS, _check_reaped, state)
    for client in clients:
        await client.ended
    while not all(line.done for line in state.script.lines):
        await _passed(world, 5)
    if owed := funds_owed(state.script, statuses_of(world)):
        await world.supervise("donor", state.client(owed)).ended
    await _come_to_rest(world, state)
    state.send_home()
    for worker in workers:
        await worker.ended


def funds_owed(script: Script, statuses: Mapping[str, str]) -> list[Line]:
    """Return what gives money to the runs that were given none while they had failed.

    They were retried since. They would wait for it for ever, and their children look for it again
    and again: no fleet would come to rest.
    """
    return [
        Line(0.0, "fund", line.run, line.argument.split()[-1])
        for line in script.lines
        if line.verb == "fund" and line.refused and statuses.get(line.run) in OPEN
    ]


def _is_worker(process: Process) -> bool:
    return process.name.startswith("w") and not process.crashed


def _check_reaped(state: Fleet) -> None:
    try:
        state.promises.reaping.check_reaped()
    except Broken as broken:
        state.world.loop.fail(broken)


async def _reused(world: World, state: Fleet) -> None:
    """Start runs under ids whose rows are over their time, but perhaps not gone yet.

    By then nothing is left of the run that sleeps but what was made to last. Another one is started
    behind it in its session, and then it is woken.
    """
    # Where few losses are enough, it may have been quarantined before it was extended.
    sleeps = statuses_of(world).get(SLEEPER) == "waiting"
    await _passed(world, 12 * DAY_SECONDS)
    state.promises.forgive()
    world.plan = rough()
    ids = [run for run, wish in sorted(state.script.wishes.items()) if wish.expires is None][:4]
    now = world.loop.time()
    script = Script()
    for run in ids:
        script.wishes[run] = Wish(["work 0.1", "swift", "heavy", "work 0.2"])
    script.wishes[FOLLOWER] = Wish(["work 0.1"], session=state.script.wishes[SLEEPER].session)
    starts = [Line(now + number, "start", run) for number, run in enumerate(script.wishes)]
    state.outside.begun_again = script.in_memory
    wakes = [Line(now + 9, "signal", SLEEPER, "wake", "w")] if sleeps else []
    script.clients = [starts, wakes]
    later = Fleet(
        world,
        state.promises,
        script,
        state.floor_bytes,
        state.graph,
        state.outside,
        state.lot,
        drains=False,
        crowd=state.crowd,
    )
    workers = [world.supervise("later", later.work)]
    clients = [world.supervise("again", later.client(lines)) for lines in script.clients]
    await _passed(world, 20)
    world.plan = calm()
    for client in clients:
        await client.ended
    await _passed(world, 6 * LEASE_SECONDS)
    later.send_home()
    for worker in workers:
        await worker.ended
    later.promises.settled()
    if sleeps:
        script.wishes[SLEEPER] = state.script.wishes[SLEEPER]
    check_results(world, later)
    if sleeps and statuses_of(world)[SLEEPER] == "waiting":
        raise Broken(f"P1: {SLEEPER} was woken, and sleeps on")
