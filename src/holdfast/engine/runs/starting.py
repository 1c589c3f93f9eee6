"""Starts runs: the id is the idempotency key, and an acknowledged start is never lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast.engine.journal.in_memory import InMemoryRun, RunExists
from holdfast.engine.journal.payloads import check_fits, spill_if_large
from holdfast.engine.journal.reader import LoadedRun, new_run
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_entry import QueueAdmission, start_in_queue
from holdfast.engine.runs.webhook_watch import watch_run
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    InvalidInput,
    InvalidRequest,
    InvalidResult,
    PayloadTooLarge,
    Refused,
)
from holdfast.graph.mismatch import TooLarge
from holdfast.graph.value_sizes import check_size
from holdfast.model.budget import BudgetLimits
from holdfast.model.execution import Execution
from holdfast.model.function_state import input_value
from holdfast.model.map import MapChunk
from holdfast.model.names import POOL_LABEL
from holdfast.model.program import Program
from holdfast.model.run import OnBusy
from holdfast.records.codec import canonical_hash, compress, encode
from holdfast.records.head import (
    PLAIN_SCHEMA,
    SCHEMA,
    Head,
    JournalExtent,
    RunRef,
    head_of,
    is_past_ttl,
)
from holdfast.records.index_keys import DueQueue, IndexKey, shard_of_run
from holdfast.records.journal import record_write
from holdfast.records.keys import RunKey
from holdfast.records.lifetime import retention_class, retention_seconds, ttl_of
from holdfast.records.run_writes import create_write
from holdfast.records.settings import UserHash

__all__ = [
    "START_REFUSALS",
    "PreparedInput",
    "StartRequest",
    "StartResult",
    "check_same_run",
    "create_run",
    "hash_requested_user",
    "prepare_input",
    "start_in_memory",
    "start_prepared",
    "start_run",
    "write_input",
]

START_REFUSALS = (InvalidRequest, Refused)
"""The errors after which a start has certainly not written the run's row."""

# Larger inputs are not stored in the row, which is written often: it stays about a kilobyte.
_INPUT_BYTES_MAX = 400


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The checked request to start a run."""

    run: RunKey
    user: str | None
    labels: dict[str, str]
    starts_ms: int | None
    expires_in_ms: int
    retention_ms: int
    session: str | None = None
    on_busy: OnBusy = "queue"
    parent: RunRef | None = None
    user_hash: str | None = None
    """The stored hash of the user, if it is known already."""
    budget: BudgetLimits | None = None
    payer: RunRef | None = None
    """The run that pays for it: it draws on that run's account."""
    on_pause: bool = False
    """Whether its durability is ``on_pause``."""
    chunk: MapChunk | None = None
    """Which part of a map of its parent it works on."""

    @property
    def pool(self) -> str | None:
        """The pool of workers that run it, from the label."""
        return self.labels.get(POOL_LABEL)


class StartResult(msgspec.Struct, frozen=True):
    """The result of a start."""

    head: Head
    loaded: LoadedRun | None
    """The run as it begins; None if it existed before."""


class PreparedInput(msgspec.Struct, frozen=True):
    """An input that fits the state of its graph, packed."""

    execution: Execution
    packed: bytes
    input_hash: bytes
    plain_hash: bytes
    """The hash without the session."""
    plain_bytes: int
    """Its size before compression."""


async def prepare_input(
    kernel: Kernel, graph: Program, input: Any, session: str | None
) -> PreparedInput:
    """Check and pack the input of a run; a large one in a thread.

    The seed stays empty: it is not known before the run has a row.

    Raises:
        PayloadTooLarge: it has more bytes than the limit allows.
        InvalidInput: it does not fit the graph's state, or cannot be stored.
    """
    limit = kernel.limits.input_bytes_max
    try:
        size = await kernel.offload.measure(input, limit)
    except TooLarge as error:
        raise _too_large_error(error) from None
    return await kernel.offload.run(size, _prepare, graph, input, session, limit)


def _prepare(graph: Program, input: Any, session: str | None, bytes_max: int) -> PreparedInput:
    execution = graph.start(input, "")
    given = input_value(execution.state, wrapped=graph.wraps_values)
    if isinstance(input, Mapping) and isinstance(given, dict):
        given = _given_fields(cast(Mapping[Any, Any], input), cast(dict[str, Any], given))
    try:
        plain = encode(execution.state)
        check_size(execution.state, len(plain), bytes_max)
    except InvalidResult as error:
        raise InvalidInput(str(error)) from None
    except TooLarge as error:
        raise _too_large_error(error) from None
    plain_hash = canonical_hash([graph.name, None, given])
    hash = plain_hash if session is None else canonical_hash([graph.name, session, given])
    return PreparedInput(execution, compress(plain), hash, plain_hash, len(plain))


def _given_fields(input: Mapping[Any, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored fields of an input that its caller gave, for the hash.

    Default values are left out: a later version of the program may have others. If the caller
    uses another name of a field, such as an alias, all fields count.
    """
    if not all(name in stored for name in input):
        return stored
    return {name: value for name, value in stored.items() if name in input}


def _packed_answer(graph: Program, prepared: PreparedInput) -> bytes:
    """Return the input as it is packed if it answers the wait of another run."""
    if not graph.wraps_values:
        return prepared.packed
    return compress(encode(input_value(prepared.execution.state, wrapped=True)))


def _too_large_error(error: TooLarge) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the input: {error}; PayloadLimits.input_bytes_max sets the limit",
        field="input",
        size=error.size,
        limit=error.limit,
    )


async def start_run(
    kernel: Kernel,
    workers: LocalWorkers,
    graph: Program,
    input: Any,
    request: StartRequest,
    *,
    owner: str | None,
) -> StartResult:
    """Start a run; if there is an ``owner``, the run is claimed by it from the beginning.

    Raises:
        InvalidInput: the input does not fit the graph's state.
        AlreadyExists: there is a run with this id and another input or user.
        SessionBusy: another run of the session is open, and ``on_busy`` says not to wait for it.
    """
    prepared = await prepare_input(kernel, graph, input, request.session)
    return await start_prepared(kernel, workers, graph, prepared, request, owner=owner)


async def start_prepared(
    kernel: Kernel,
    workers: LocalWorkers,
    graph: Program,
    prepared: PreparedInput,
    request: StartRequest,
    *,
    owner: str | None,
) -> StartResult:
    """Start a run with a prepared input; see `start_run`."""
    generation = kernel.ids.new()
    user = await hash_requested_user(kernel, request)
    head = await _build_head(
        kernel, graph, request, prepared, user, generation=generation, owner=owner
    )
    try:
        if head.session_queue is None:
            head = await write_input(kernel, head, prepared.packed)
            if head.chunk is None:
                await watch_run(kernel, head)
            await create_run(kernel, head)
        else:
            admission = QueueAdmission(
                head.session_queue,
                request.on_busy,
                _packed_answer(graph, prepared),
                lambda head: write_input(kernel, head, prepared.packed),
            )
            head = await start_in_queue(kernel, workers, head, admission)
    except RunExists as existing:
        if request.parent is not None:
            # A node that runs again may pass another input; the first one counts.
            return StartResult(head_of(existing.item), None)
        current = check_same_run(
            existing.item, prepared.input_hash, request.run, graph=graph.name, user=user
        )
        return StartResult(current, None)
    if head.status == "promoted":
        return StartResult(head, None)
    return StartResult(head, _new_run(head, prepared))


async def start_in_memory(
    kernel: Kernel, graph: Program, input: Any, request: StartRequest, *, owner: str
) -> StartResult:
    """Start a run in memory, unless it exists; nothing is written.

    Raises:
        InvalidInput: the input does not fit the graph's state, or is too large.
        AlreadyExists: there is a run with this id and another input or user.
    """
    prepared = await prepare_input(kernel, graph, input, None)
    try:
        check_fits(kernel, prepared.packed)  # checked now, and not when the run pauses
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    user = await hash_requested_user(kernel, request)
    current = await kernel.heads.get(request.run.head)
    if current is not None and not is_past_ttl(current, kernel.clock.now_ms()):
        existing = check_same_run(
            current, prepared.input_hash, request.run, graph=graph.name, user=user
        )
        return StartResult(existing, None)
    head = await _build_head(kernel, graph, request, prepared, user, generation="", owner=owner)
    loaded = _new_run(head, prepared)
    loaded.in_memory = InMemoryRun(prepared.packed, prepared.input_hash, user)
    return StartResult(head, loaded)


async def write_input(kernel: Kernel, head: Head, packed: bytes) -> Head:
    """Write an input that is not in the row; return the row with its extent.

    Raises:
        RunExists: there is a run with this id.
        InvalidInput: the input is too large.
    """
    if head.input is not None:
        return head
    # Checked first, so that a repeated start leaves no large input behind.
    current = await kernel.heads.get(head.key.head)
    if current is not None and not is_past_ttl(current, kernel.clock.now_ms()):
        raise RunExists(current)
    # Written before the row, so that a row always has its input.
    try:
        content = await spill_if_large(kernel, head, packed, "input")
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    put = record_write(head, 0, content, token=kernel.ids.new())
    await kernel.resolve_write(kernel.journals, put)
    extent = JournalExtent(size=content.size, blobs=content.blob is not None)
    return msgspec.structs.replace(head, extent=extent)


async def create_run(
    kernel: Kernel, head: Head, *, alive: Callable[[], bool] | None = None
) -> Head:
    """Write the row of a new run; ``alive`` as in `Kernel.resolve_write`.

    Raises:
        RunExists: there is a run with this id.
        ClaimLost: ``alive`` returned False, and the outcome is unknown.
    """
    write = create_write(head, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    try:
        await kernel.resolve_write(
            kernel.heads,
            write,
            alive=alive,
            was_applied=lambda item: item.get("generation") == head.generation,
        )
    except ConditionFailed as failed:
        raise RunExists(failed.item or {}) from None
    return head


async def hash_requested_user(kernel: Kernel, request: StartRequest) -> UserHash | None:
    """Return the stored hash of the user in a start request."""
    if request.user is None:
        return None
    return await kernel.hash_user(request.user, request.run.tenant)


def check_same_run(
    item: Mapping[str, Any], hash: bytes, run: RunKey, *, graph: str, user: UserHash | None
) -> Head:
    """Return the existing row of a run, if it has the same graph, input and user.

    Raises:
        AlreadyExists: it has another graph, input or user.
    """
    current = head_of(item)
    same_user = current.user is None if user is None else user.matches(current.user)
    if current.graph != graph and current.input_hash != hash:
        raise AlreadyExists(
            f"run {run.id!r} exists, and is a run of {current.graph!r}, not of {graph!r}: an id "
            "belongs to one run, of one workflow or graph; pass another id"
        ) from None
    if current.input_hash != hash or not same_user:
        raise AlreadyExists(
            f"run {run.id!r} of graph {current.graph!r} exists, and was started with another "
            "input, in another session or for another user"
        ) from None
    return current


def _new_run(head: Head, prepared: PreparedInput) -> LoadedRun:
    execution = msgspec.structs.replace(prepared.execution, seed=head.seed)
    packed, plain_bytes = prepared.packed, prepared.plain_bytes
    return new_run(execution, head.extent, len(packed), plain_bytes=plain_bytes)


async def _build_head(
    kernel: Kernel,
    graph: Program,
    request: StartRequest,
    prepared: PreparedInput,
    user: UserHash | None,
    *,
    generation: str,
    owner: str | None,
) -> Head:
    settings = await kernel.get_settings()
    now = kernel.clock.now_ms()
    starts_ms = max(request.starts_ms or now, now)
    expires_ms = starts_ms + request.expires_in_ms
    ttl = ttl_of(expires_ms, retention_seconds(request.retention_ms))
    queue = DueQueue(graph.name, request.pool, shard_of_run(request.run, settings.shards))
    if owner is None or starts_ms > now:
        owner, place = None, IndexKey.due(queue, starts_ms, request.run, 1)
    else:
        place = IndexKey.owned(owner, queue, request.run, 1)
    small = len(prepared.packed) <= _INPUT_BYTES_MAX
    return Head(
        key=request.run,
        graph=graph.name,
        version=graph.version,
        schema=PLAIN_SCHEMA if request.chunk is None else SCHEMA,
        pool=queue.pool,
        shard=queue.shard,
        list_shards=settings.list_shards,
        status="running" if starts_ms <= now else "waiting",
        generation=generation,
        epoch=1,
        owner=owner,
        index_key=place,
        input_hash=prepared.input_hash,
        input=prepared.packed if small else None,
        first=prepared.execution.node,
        node=prepared.execution.node,
        created_ms=now,
        updated_ms=now,
        starts_ms=starts_ms,
        expires_ms=expires_ms,
        ttl=ttl,
        kept=retention_class(ttl - now // 1000),
        user=_stored_user(request, user),
        labels=request.labels,
        reason="scheduled" if starts_ms > now else None,
        retries_left=graph.retries_left(prepared.execution),
        session=request.session,
        parent=request.parent,
        budget=request.budget,
        payer=request.payer,
        on_pause=request.on_pause,
        wrapped=graph.wraps_values,
        chunk=request.chunk,
        plain_hash=_key_hash(request, prepared, user) if request.on_pause else b"",
    )


def _stored_user(request: StartRequest, user: UserHash | None) -> str | None:
    if user is None:
        return request.user_hash
    # The row of a run in a session names the session's queue.
    return user.bound if request.session is None else user.unbound


def _key_hash(request: StartRequest, prepared: PreparedInput, user: UserHash | None) -> bytes:
    """Return the hash that the keys of an ``on_pause`` run derive from; empty for the input hash.

    The user is part of it. A run that never paused is not stored, so another user may start a run
    with the same id and input, and must not get the answers that a tool stored under the first
    user's keys.
    """
    user_hash = request.user_hash if user is None else user.bound
    if user_hash is not None:
        return canonical_hash([prepared.plain_hash.hex(), user_hash])
    return b"" if request.session is None else prepared.plain_hash
