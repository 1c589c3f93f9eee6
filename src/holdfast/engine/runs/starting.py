"""Makes runs: the id is the idempotency key, and an answered start is never lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.engine.journal.in_memory import Stood, Unwritten
from holdfast.engine.journal.payloads import check_fits, spilled
from holdfast.engine.journal.reader import Loaded, begun
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.session_entry import Entrance, start_in_lane
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    InvalidInput,
    InvalidResult,
    PayloadTooLarge,
)
from holdfast.graph import Graph
from holdfast.graph.values import Oversize, check_size
from holdfast.model.budget import Limits
from holdfast.model.execution import Execution
from holdfast.model.run import OnBusy
from holdfast.records.changes import created
from holdfast.records.codec import canonical_hash, compress, encode
from holdfast.records.head import Context, Head, Parent, head_of, is_over
from holdfast.records.journal import record
from holdfast.records.keys import Place, Queue, RunKey, shard_of_run
from holdfast.records.lifetime import retention_class, retention_seconds, ttl_of
from holdfast.records.names import POOL
from holdfast.records.settings import UserHash

__all__ = [
    "Prepared",
    "Start",
    "Started",
    "begin_unwritten",
    "hashed_user",
    "made",
    "prepare",
    "same_run",
    "start",
    "start_prepared",
    "with_input",
]

# What of an input stays in the row, so that it remains about a kilobyte: it is written often.
_INPUT_BYTES_MAX = 400


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A start that was asked for, each field checked."""

    run: RunKey
    user: str | None
    labels: dict[str, str]
    starts_ms: int | None
    expires_in_ms: int
    retention_ms: int
    session: str | None = None
    on_busy: OnBusy = "queue"
    parent: Parent | None = None
    user_hash: str | None = None
    """What is kept of the user, where that is known already."""
    budget: Limits | None = None
    draws: Parent | None = None
    """The run on whose account it draws."""
    on_pause: bool = False
    """Whether its durability is ``on_pause``, wherever there is room for it."""

    @property
    def pool(self) -> str | None:
        """Which workers take it: the label says so."""
        return self.labels.get(POOL)


class Started(msgspec.Struct, frozen=True):
    """What became of a start."""

    head: Head
    loaded: Loaded | None
    """The run as it begins; None where it was there before."""


class Prepared(msgspec.Struct, frozen=True):
    """An input that fits its graph."""

    execution: Execution
    packed: bytes
    hash: bytes
    plain_hash: bytes
    """The hash without the session."""
    plain_bytes: int
    """How many bytes it has before compression."""


async def prepare(kernel: Kernel, graph: Graph, input: Any, session: str | None) -> Prepared:
    """Return the input as it is kept; the seed is not known before the run has a row.

    A large one does not hold up the event loop.

    Raises:
        PayloadTooLarge: it has more bytes than it may have.
        InvalidInput: it does not fit the graph's state, or cannot be kept.
    """
    limit = kernel.limits.input_bytes_max
    try:
        size = await kernel.heavy.admitted(input, limit)
    except Oversize as error:
        raise _too_large(error) from None
    return await kernel.heavy.run(size, _prepared, graph, input, session, limit)


def _prepared(graph: Graph, input: Any, session: str | None, bytes_max: int) -> Prepared:
    execution = graph.start(input, "")
    # Fields that the type fills in by itself are not part of what was asked for: a later version
    # of the graph may fill in others.
    given = execution.state
    if isinstance(input, Mapping):
        given = {name: value for name, value in given.items() if name in input}
    try:
        plain = encode(execution.state)
        check_size(execution.state, len(plain), bytes_max)
    except InvalidResult as error:
        raise InvalidInput(str(error)) from None
    except Oversize as error:
        raise _too_large(error) from None
    plain_hash = canonical_hash([graph.name, None, given])
    hash = plain_hash if session is None else canonical_hash([graph.name, session, given])
    return Prepared(execution, compress(plain), hash, plain_hash, len(plain))


def _too_large(error: Oversize) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the input: {error}; PayloadLimits.input_bytes_max sets the limit",
        field="input",
        size=error.size,
        limit=error.limit,
    )


async def start(
    kernel: Kernel, hands: Hands, graph: Graph, input: Any, asked: Start, *, owner: str | None
) -> Started:
    """Make a run, held by ``owner`` from the first moment on if there is one.

    Raises:
        InvalidInput: the input does not fit the graph's state.
        AlreadyExists: there is a run of this id, with another input or for another user.
        SessionBusy: another run of its session goes on, and it is not to wait for that.
    """
    prepared = await prepare(kernel, graph, input, asked.session)
    return await start_prepared(kernel, hands, graph, prepared, asked, owner=owner)


async def start_prepared(
    kernel: Kernel,
    hands: Hands,
    graph: Graph,
    prepared: Prepared,
    asked: Start,
    *,
    owner: str | None,
) -> Started:
    """Make a run of an input that was prepared; see `start`."""
    generation = kernel.ids.new()
    user = await hashed_user(kernel, asked)
    head = await _head(kernel, graph, asked, prepared, user, generation=generation, owner=owner)
    try:
        if head.lane is None:
            head = await made(kernel, await with_input(kernel, head, prepared.packed))
        else:
            entrance = Entrance(
                head.lane,
                asked.on_busy,
                prepared.packed,
                lambda head: with_input(kernel, head, prepared.packed),
            )
            head = await start_in_lane(kernel, hands, head, entrance)
    except Stood as stood:
        if asked.parent is not None:
            # A node that runs again may ask for something else; what it asked for first stands.
            return Started(head_of(stood.item), None)
        return Started(same_run(stood.item, prepared.hash, asked.run, user=user), None)
    if head.status == "promoted":
        return Started(head, None)
    return Started(head, _begun(head, prepared))


async def begin_unwritten(
    kernel: Kernel, graph: Graph, input: Any, asked: Start, *, owner: str
) -> Started:
    """Begin a run in memory, unless it is there already; nothing is written.

    Raises:
        InvalidInput: the input does not fit the graph's state, or is too large.
        AlreadyExists: there is a run of this id, with another input or for another user.
    """
    prepared = await prepare(kernel, graph, input, None)
    try:
        check_fits(kernel, prepared.packed)  # now, and not when it comes to pause
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    user = await hashed_user(kernel, asked)
    standing = await kernel.heads.get(asked.run.head)
    if standing is not None and not is_over(standing, kernel.clock.now_ms()):
        return Started(same_run(standing, prepared.hash, asked.run, user=user), None)
    head = await _head(kernel, graph, asked, prepared, user, generation="", owner=owner)
    loaded = _begun(head, prepared)
    loaded.unwritten = Unwritten(prepared.packed, prepared.hash, user)
    return Started(head, loaded)


async def with_input(kernel: Kernel, head: Head, packed: bytes) -> Head:
    """Write the input down where it is not in the row; return the row that knows of it.

    Raises:
        Stood: there is a run of its id.
        InvalidInput: the input is too large.
    """
    if head.input is not None:
        return head
    # Asked first, so that a start which is only repeated leaves no large input behind.
    standing = await kernel.heads.get(head.key.head)
    if standing is not None and not is_over(standing, kernel.clock.now_ms()):
        raise Stood(standing)
    # Before the row, so that a row never stands for an input that is not there.
    try:
        content = await spilled(kernel, head, packed, "input")
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    put = record(head, 0, content, token=kernel.ids.new())
    await kernel.settle(kernel.journals, put)
    context = Context(size=content.size, blobs=content.blob is not None)
    return msgspec.structs.replace(head, context=context)


async def made(kernel: Kernel, head: Head, *, alive: Callable[[], bool] | None = None) -> Head:
    """Write a run's row; ``alive`` says whether to go on trying, see `Kernel.settle`.

    Raises:
        Stood: there is a run of its id.
        Dropped: ``alive`` said no, and nothing is known.
    """
    write = created(head, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    try:
        await kernel.settle(
            kernel.heads,
            write,
            alive=alive,
            stands=lambda item: item.get("generation") == head.generation,
        )
    except ConditionFailed as failed:
        raise Stood(failed.item or {}) from None
    return head


async def hashed_user(kernel: Kernel, asked: Start) -> UserHash | None:
    """Return what is kept of the user for whom a run is asked for."""
    if asked.user is None:
        return None
    return await kernel.user_hash(asked.user, asked.run.tenant)


def same_run(item: Mapping[str, Any], hash: bytes, run: RunKey, *, user: UserHash | None) -> Head:
    """Return the row that stands under an id, if it has the same input and user.

    Raises:
        AlreadyExists: it has not.
    """
    standing = head_of(item)
    same_user = standing.user is None if user is None else user.names(standing.user)
    if standing.input_hash != hash or not same_user:
        raise AlreadyExists(
            f"there is a run {run.id!r} already, of graph {standing.graph!r}, and it was started "
            "with another input, in another session or for another user"
        ) from None
    return standing


def _begun(head: Head, prepared: Prepared) -> Loaded:
    execution = msgspec.structs.replace(prepared.execution, seed=head.seed)
    packed, plain_bytes = prepared.packed, prepared.plain_bytes
    return begun(execution, head.context, len(packed), plain_bytes=plain_bytes)


async def _head(
    kernel: Kernel,
    graph: Graph,
    asked: Start,
    prepared: Prepared,
    user: UserHash | None,
    *,
    generation: str,
    owner: str | None,
) -> Head:
    settings = await kernel.settings()
    now = kernel.clock.now_ms()
    starts_ms = max(asked.starts_ms or now, now)
    expires_ms = starts_ms + asked.expires_in_ms
    ttl = ttl_of(expires_ms, retention_seconds(asked.retention_ms))
    queue = Queue(graph.name, asked.pool, shard_of_run(asked.run, settings.shards))
    if owner is None or starts_ms > now:
        owner, place = None, Place.due(queue, starts_ms, asked.run, 1)
    else:
        place = Place.owned(owner, queue, asked.run, 1)
    small = len(prepared.packed) <= _INPUT_BYTES_MAX
    return Head(
        key=asked.run,
        graph=graph.name,
        version=graph.version,
        pool=queue.pool,
        shard=queue.shard,
        list_shards=settings.list_shards,
        status="running" if starts_ms <= now else "waiting",
        generation=generation,
        epoch=1,
        owner=owner,
        place=place,
        input_hash=prepared.hash,
        input=prepared.packed if small else None,
        first=prepared.execution.node,
        node=prepared.execution.node,
        created_ms=now,
        updated_ms=now,
        starts_ms=starts_ms,
        expires_ms=expires_ms,
        ttl=ttl,
        kept=retention_class(ttl - now // 1000),
        user=_kept_user(asked, user),
        labels=asked.labels,
        reason="scheduled" if starts_ms > now else None,
        retries_left=graph.nodes[prepared.execution.node].retry.attempts - 1,
        session=asked.session,
        parent=asked.parent,
        budget=asked.budget,
        draws=asked.draws,
        on_pause=asked.on_pause,
        plain_hash=_key_hash(asked, prepared, user) if asked.on_pause else b"",
    )


def _kept_user(asked: Start, user: UserHash | None) -> str | None:
    if user is None:
        return asked.user_hash
    # The row of a run in a session names the session's queue.
    return user.bound if asked.session is None else user.unbound


def _key_hash(asked: Start, prepared: Prepared, user: UserHash | None) -> bytes:
    """Return what the keys of a run with ``on_pause`` derive from, if that is not its input hash.

    The user is part of it: nothing of a run that never paused is kept, so the same id and input may
    come from another user, who must not get the answers that a tool keeps under the first one's
    keys.
    """
    whose = asked.user_hash if user is None else user.bound
    if whose is not None:
        return canonical_hash([prepared.plain_hash.hex(), whose])
    return b"" if asked.session is None else prepared.plain_hash
