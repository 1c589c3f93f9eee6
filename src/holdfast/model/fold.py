"""Folds the events of a journal into the execution of its run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.call import Call, CallEvent, call_after
from holdfast.model.child import (
    child_id_of,
    child_signal,
    is_unfinished_child_signal,
)
from holdfast.model.event import (
    AttemptFailed,
    BranchFailed,
    BudgetDrawn,
    CallFinished,
    CallIntended,
    CallReserved,
    CallRetried,
    CallVoided,
    Cancelled,
    ChildGranted,
    ChildStarted,
    Event,
    Expired,
    Extended,
    Failed,
    Failure,
    Fenced,
    Finished,
    Fork,
    NodeFinished,
    ProgramEvent,
    Rerouted,
    SignalSetAside,
    SignalTaken,
    Snapshot,
    TimerFired,
    WaitDescribed,
    WaitsRecorded,
)
from holdfast.model.execution import Branch, Execution, Strand, branch_paths, is_within, outer_path
from holdfast.model.reducers import reduced
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import (
    ChildWait,
    MapWait,
    SignalWait,
    Wait,
    answer_key,
    is_caller_wait,
    is_group_key,
    is_sleep_key,
)

__all__ = ["folded", "is_terminal", "restored", "snapshot"]

_UNKNOWN_CALL = Call()
_TERMINAL = (Finished, Failed, Cancelled, Expired)


def is_terminal(event: Event) -> bool:
    """Return whether an event ends the run. Only a retry can follow it."""
    return isinstance(event, _TERMINAL)


def folded(execution: Execution, events: Iterable[Event]) -> Execution:
    """Return the execution after the events."""
    for event in events:
        execution = _folded_one(execution, event)
    return execution


def snapshot(execution: Execution, at_ms: int, *, size: int, blobs: bool) -> Snapshot:
    """Return an execution as an event, so that readers can start there.

    Raises:
        TypeError, ValueError, OverflowError: a value of the state cannot be encoded.
    """
    # Sorted, so that the size of a snapshot does not depend on the hash seed of the process.
    ordered = msgspec.structs.replace(execution, taken=tuple(sorted(execution.taken)))
    return Snapshot(at_ms, _encoder.encode(ordered), size, blobs)


def restored(snapshot: Snapshot) -> Execution:
    """Return the execution in a snapshot.

    Fields that newer releases added get their defaults, so old snapshots stay readable.

    Raises:
        JournalDamaged: the snapshot cannot be decoded.
    """
    try:
        return _decoder.decode(snapshot.fold)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JournalDamaged(f"a snapshot cannot be read: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Execution)


def _folded_one(before: Execution, event: Event) -> Execution:
    match event:
        case NodeFinished():
            return _after_node(before, event)
        case AttemptFailed(branch=path):
            return _after_failed_attempt(before, path, event)
        case (
            CallFinished(branch=path)
            | CallIntended(branch=path)
            | CallVoided(branch=path)
            | CallRetried(branch=path)
            | CallReserved(branch=path)
        ):
            return _after_call_event(before, path, event)
        case SignalTaken(branch=path):
            taken = before.taken | {(event.name, event.id)}
            after = _with_progress(before, taken=taken, **_child_spending(before, event))
            return _after_answer(after, path, event)
        case SignalSetAside():
            taken = before.taken | {(event.name, event.id)}
            return _with_progress(before, taken=taken, aside=(*before.set_aside, event))
        case BudgetDrawn():
            return _with_progress(before, drawn=event.total)
        case ChildGranted():
            return _with_progress(before, **_with_child_slice(before, event.id, event.max_spending))
        case TimerFired(branch=path):
            after = _with_progress(before, **_with_timeout(before, event))
            return _after_answer(after, path, event)
        case ChildStarted(branch=path):
            strand = _strand(before, path)
            children = {**strand.children, event.number: event.id}
            return _with_strand(_with_progress(before), path, children=children)
        case WaitDescribed():
            return before
        case WaitsRecorded():
            return _after_waits(_with_progress(before), event)
        case BranchFailed(branch=path):
            return _after_branch_failure(before, path, event)
        case Rerouted():
            return _after_reroute(before, event)
        case ProgramEvent(branch=path):
            if not event.notes:
                return before
            return _with_strand(before, path, noted={**_strand(before, path).notes, **event.notes})
        case Fenced():
            return msgspec.structs.replace(before, fences=before.fences + 1)
        case Extended():
            # This is not progress: the count of fences of a run that kills its workers must go on.
            return msgspec.structs.replace(before, ttl=max(before.ttl, event.ttl), kept=event.kept)
        case Snapshot():
            return restored(event)
        case Finished():
            return _with_progress(before, ending="finished", failure=None)
        case Failed():
            return _with_progress(
                before,
                ending="failed",
                failure=event.failure,
                failed_node=event.node or msgspec.UNSET,
                failed_in=event.branch or msgspec.UNSET,
            )
        case Cancelled():
            failure = Failure("Cancelled", event.reason)
            return _with_progress(before, ending="cancelled", failure=failure)
        case Expired():
            return _with_progress(before, ending="expired")


def _after_failed_attempt(before: Execution, path: str, event: AttemptFailed) -> Execution:
    strand = _strand(before, path)
    return _with_strand(
        _with_progress(before, spent_ms=before.spent_ms + event.spent_ms),
        path,
        failed_attempts=strand.failed_attempts + 1,
        retry_at_ms=event.retry_at_ms,
        failure=event.failure,
        calls=_without_failures(strand.calls),
    )


def _after_branch_failure(before: Execution, path: str, event: BranchFailed) -> Execution:
    kept = {name: strand for name, strand in before.branches.items() if not is_within(name, path)}
    branch = msgspec.structs.replace(before.branches[path], over=True, fork=None, failed=event)
    after = _with_progress(before, branches={**kept, path: branch})
    return _after_branch_end(after, outer_path(path))


def _after_node(before: Execution, event: NodeFinished) -> Execution:
    path = event.branch
    strand = _strand(before, path)
    counted: dict[str, Any] = {
        "fences": 0,
        "nodes_run": before.nodes_run + 1,
        "spent_ms": before.spent_ms + event.spent_ms,
    }
    entered: dict[str, Any] = {
        **_VISIT_DEFAULTS,
        "visit": strand.visit + 1,
        "fork": event.fork,
        "node": event.node if event.to is None else event.to,
    }
    if not isinstance(strand, Branch):
        entered["state"] = reduced(before.state, event.delta, event.ops)
        after = msgspec.structs.replace(before, **counted, **entered)
    else:
        over = event.to is None
        branch = msgspec.structs.replace(
            strand,
            **entered,
            delta=reduced(strand.delta, event.delta, event.ops),
            ops={**strand.ops, **event.ops} if event.ops else strand.ops,
            over=over,
        )
        counted["branches"] = {**before.branches, path: branch}
        after = msgspec.structs.replace(before, **counted)
        if over:
            return _after_branch_end(after, outer_path(path))
    if event.fork is None:
        return after
    paths = list(branch_paths(path, _strand(after, path)))
    starts = event.fork.starts
    branches = {
        name: Branch(node=starts[0] if event.fork.over else starts[number])
        for number, name in enumerate(paths)
    }
    after = msgspec.structs.replace(after, branches={**after.branches, **branches})
    return after if branches else _joined(after, path)


def _after_branch_end(execution: Execution, path: str) -> Execution:
    """Return the execution after one more branch of a strand has ended."""
    strand = _strand(execution, path)
    ended = strand.ended + 1
    if strand.fork is not None and ended < strand.fork.width:
        return _with_strand(execution, path, ended=ended)
    return _joined(execution, path)


def _joined(execution: Execution, path: str) -> Execution:
    """Return the execution after all branches of a strand have joined."""
    strand = _strand(execution, path)
    assert strand.fork is not None
    names = list(branch_paths(path, strand))
    branches = [execution.branches[name] for name in names]
    state, ops = execution.state, dict[str, str]()
    if isinstance(strand, Branch):
        state, ops = strand.delta, strand.ops
    for branch in branches:
        if branch.failed is None:
            delta, reducers = _branch_result(strand.fork, branch)
            state, ops = reduced(state, delta, reducers), {**ops, **reducers}
    changes: dict[str, Any] = {
        "fork": None,
        "ended": 0,
        "failures": tuple(branch.failed for branch in branches if branch.failed is not None),
    }
    gone = set(names)
    left = {name: branch for name, branch in execution.branches.items() if name not in gone}
    execution = msgspec.structs.replace(execution, branches=left)
    if not isinstance(strand, Branch):
        return msgspec.structs.replace(execution, **changes, state=state)
    return _with_strand(execution, path, **changes, delta=state, ops=ops)


def _branch_result(fork: Fork, branch: Branch) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the delta that a branch adds to its outer strand, and the reducers for it."""
    if fork.takes is None:
        delta = {name: value for name, value in branch.delta.items() if name != fork.into}
        return delta, branch.ops
    return {
        name: branch.delta[own] for name, own in fork.gives.items() if own in branch.delta
    }, fork.ops


def _after_answer(before: Execution, path: str, event: SignalTaken | TimerFired) -> Execution:
    strand, key = _strand(before, path), answer_key(event.wait)
    return _with_strand(
        before,
        path,
        answers={**strand.answers, key: event},
        waits=tuple(wait for wait in strand.waits if answer_key(wait.key) != key),
    )


def _with_timeout(before: Execution, event: TimerFired) -> dict[str, Any]:
    """Return the changed fields when a wait for a signal timed out; none after a sleep."""
    if is_sleep_key(event.wait):
        return {}
    known = {} if before.timed_out is msgspec.UNSET else before.timed_out
    return {"timed_out": {**known, event.node: event.at_ms}}


def _after_call_event(before: Execution, path: str, event: CallEvent) -> Execution:
    strand = _strand(before, path)
    known = strand.calls.get(event.call, _UNKNOWN_CALL)
    calls = {**strand.calls, event.call: call_after(known, event)}
    counted: dict[str, Any] = {}
    if isinstance(event, CallReserved):
        unspent = known.reserved if event.instead else NO_SPENDING
        counted = {"spent": before.spent + event.max_spending - unspent}
    elif isinstance(event, CallFinished):
        counted = {
            "spent": before.spent + event.spent - known.reserved,
            "saved": before.saved + event.saved,
        }
    if isinstance(event, CallRetried):
        calls = _without_failures(calls, within=f"{event.call}>")
    if not path:
        return _with_progress(before, **counted, calls=calls)
    return _with_strand(_with_progress(before, **counted), path, calls=calls)


def _with_child_slice(before: Execution, child: str, spending: Spending) -> dict[str, Any]:
    """Return the changed fields when a child may spend, or has spent, this much."""
    return {
        "spent": before.spent + spending - before.slices.get(child, NO_SPENDING),
        "slices": {**before.slices, child: spending},
    }


def _child_spending(before: Execution, event: SignalTaken) -> dict[str, Any]:
    """Return the changed fields when a child with its own budget has ended."""
    child = child_id_of(event.name)
    if child not in before.slices or "spent" not in event.payload:
        return {}
    return _with_child_slice(before, child, Spending(*event.payload["spent"]))


def _without_failures(calls: dict[str, Call], *, within: str = "") -> dict[str, Call]:
    """Return the calls without their failures, as the next attempt finds them."""
    return {
        name: _reset_call(call) if name.startswith(within) else call
        for name, call in calls.items()
        if call.voided or not call.is_forgotten or not name.startswith(within)
    }


def _reset_call(call: Call) -> Call:
    if call.is_forgotten:
        return Call(voided=call.voided)  # a voided key stays voided
    return msgspec.structs.replace(call, failed=0, retry_at_ms=0)


def _after_waits(before: Execution, event: WaitsRecorded) -> Execution:
    by_branch: dict[str, list[Wait]] = {}
    for wait in event.waits:
        by_branch.setdefault(wait.branch, []).append(wait)
    own = (*before.waits, *by_branch.pop("", ()))
    # One replacement of the dict: there may be thousands of branches.
    branches = dict(before.branches)
    for path, waits in by_branch.items():
        known = branches[path].waits
        branches[path] = msgspec.structs.replace(branches[path], waits=(*known, *waits))
    return msgspec.structs.replace(before, waits=own, branches=branches)


def _after_reroute(before: Execution, event: Rerouted) -> Execution:
    if event.to is None:
        # Without the name of the branch that failed, any visit may hold the wrong answer.
        asking = before.failed_in if event.asks_again else None
        branches = {
            path: msgspec.structs.replace(
                branch, **_retried_strand(branch, asks_again=asking in (path, msgspec.UNSET))
            )
            for path, branch in before.branches.items()
        }
        kept = _retried_strand(before, asks_again=asking is msgspec.UNSET)
        kept |= _drawn_after_retry(before, event) | _NOT_FAILED
        return _with_progress(before, **kept, branches=branches, retried=event.request)
    strand = _strand(before, event.branch)
    # Its inner branches are dropped.
    kept_branches = {
        path: branch
        for path, branch in before.branches.items()
        if path == event.branch or not is_within(path, event.branch)
    }
    after = _with_progress(
        before,
        **_drawn_after_retry(before, event),
        branches=kept_branches,
        retried=event.request or before.retried,
        **_NOT_FAILED,
    )
    return _with_strand(
        after, event.branch, **_VISIT_DEFAULTS, node=event.to, visit=strand.visit + 1
    )


def _drawn_after_retry(before: Execution, event: Rerouted) -> dict[str, Any]:
    """Return the changed fields of a run with a shared budget when it is retried.

    The run gave back what it had not spent when it failed.
    """
    if before.drawn is None or not event.request:
        return {}
    return {"drawn": before.drawn.at_most(before.spent)}


def _retried_strand(strand: Strand, *, asks_again: bool) -> dict[str, Any]:
    """Return the changed fields of a strand whose visit continues after a retry.

    Finished sleeps, ended children and voided keys stay. Children that did not finish are
    forgotten: they ended with the run, and the visit starts new ones. Maps that failed go on. Waits
    for callers' signals ``asks_again``, or keep their answers and timeouts.
    """
    dropped = {
        key
        for key, answer in strand.answers.items()
        if isinstance(answer, SignalTaken)
        and is_unfinished_child_signal(answer.name, answer.payload)
    }
    if asks_again:
        dropped |= {key for key, answer in strand.answers.items() if _is_by_caller(key, answer)}
    finished = {
        answer.name
        for key, answer in strand.answers.items()
        if isinstance(answer, SignalTaken) and key not in dropped
    }
    unwaited = (ChildWait, MapWait, SignalWait) if asks_again else (ChildWait, MapWait)
    return {
        "failed_attempts": 0,
        "retry_at_ms": 0,
        "failure": None,
        "calls": _without_failures(strand.calls),
        "noted": msgspec.UNSET,
        "answers": {key: a for key, a in strand.answers.items() if key not in dropped},
        "children": {n: id for n, id in strand.children.items() if child_signal(id) in finished},
        # Children do not signal a failed run, so the visit has to ask for their end again.
        "waits": tuple(
            wait
            for wait in strand.waits
            if not isinstance(wait.kind, unwaited) and not is_group_key(answer_key(wait.key))
        ),
    }


def _is_by_caller(key: str, answer: SignalTaken | TimerFired) -> bool:
    """Return whether a wait asked callers. A group did, unless the end of a child answered it."""
    if is_group_key(key):
        return not isinstance(answer, SignalTaken) or is_caller_wait(f"{answer.name}#1")
    return is_caller_wait(key)


# The fields of a run that is not failed, or no longer.
_NOT_FAILED: dict[str, Any] = {
    "ending": None,
    "failed_node": msgspec.UNSET,
    "failed_in": msgspec.UNSET,
}
# The fields with which each visit starts.
_VISIT_DEFAULTS: dict[str, Any] = {
    "failed_attempts": 0,
    "retry_at_ms": 0,
    "answers": {},
    "waits": (),
    "children": {},
    "failure": None,
    "fork": None,
    "ended": 0,
    "failures": (),
    "calls": {},
    "noted": msgspec.UNSET,
}


def _strand(execution: Execution, path: str) -> Strand:
    return execution.branches[path] if path else execution


def _with_strand(execution: Execution, path: str, **changes: Any) -> Execution:
    if not path:
        return msgspec.structs.replace(execution, **changes)
    branch = msgspec.structs.replace(execution.branches[path], **changes)
    return msgspec.structs.replace(execution, branches={**execution.branches, path: branch})


def _with_progress(before: Execution, **changes: Any) -> Execution:
    return msgspec.structs.replace(before, fences=0, **changes)
