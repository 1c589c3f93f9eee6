"""The contract between the engine and the programs that it runs.

A program is pure: it does no input or output, reads no clock and draws no random numbers. The
engine performs the outstanding effects, gives each outcome to the program, writes the events that
the program decides, folds them, and asks again::

    execution = program.start(input, seed)
    while effects := program.outstanding(execution):
        effect, outcome = perform(effects)
        decision = program.step(execution, effect.branch, outcome, now_ms)
        execution = folded(execution, decision.events)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Self, cast

import msgspec

from holdfast.model.decision import Decision, Outcome
from holdfast.model.event import Event, Rerouted
from holdfast.model.execution import Execution
from holdfast.model.needs import Needs
from holdfast.model.policy import ONCE, Durability, Pausable, Retry
from holdfast.model.type_parameters import InputT, ResultT

__all__ = [
    "Effect",
    "InputT",
    "InvokeTask",
    "ItemPolicy",
    "Proceed",
    "Program",
    "ResultT",
    "RunChild",
    "RunItem",
    "RunNode",
    "WaitForToken",
    "WaitUntil",
]


_NO_NEEDS = Needs()


class Effect(msgspec.Struct, frozen=True):
    """Something that the engine has to perform for one branch of a run.

    An effect follows from the execution alone: a worker that resumes the run gets an equal one.
    """

    node: str
    """The node at which the branch stands."""
    visit: int
    """The number of the visit. Calls, waits and children get their identity from it."""
    not_before_ms: int = 0
    """The engine performs the effect at this time or later."""
    branch: str = ""
    """The branch of the run; empty for the run itself."""
    pausable: Pausable = "yes"
    """Whether the run may pause while the effect waits."""
    max_pause_ms: int | None = None
    """A pause that lasts longer makes the outcome `WentStale`."""


class RunNode(Effect, frozen=True):
    """Call the function of a node with the state. The outcome is what it changes in the state."""


class RunItem(Effect, frozen=True, kw_only=True):
    """Call an item function of a map for one index. The outcome is what it returned.

    Only chunks ask for it, which are runs of their own.
    """

    index: int


class Proceed(Effect, frozen=True):
    """Perform nothing: the program decides at once. The outcome is None."""


class InvokeTask(Effect, frozen=True, kw_only=True):
    """Call a task that the process registered by name. The outcome is what the task returned.

    The call is recorded: it gets the same idempotency key after a crash, and its result is used
    again instead of a second call.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    timeout_ms: int | None = None
    """The task raises `CallTimedOut` if it takes longer."""
    heartbeat_ms: int | None = None
    """The task raises `HeartbeatTimedOut` if ``ctx.heartbeat()`` is not called for that long."""


class WaitUntil(Effect, frozen=True, kw_only=True):
    """Wait until a time. The outcome is None."""

    at_ms: int


class WaitForToken(Effect, frozen=True, kw_only=True):
    """Wait for a signal with the name ``token``. The outcome is the payload of the signal."""

    token: str
    deadline_ms: int | None = None
    """The effect raises `WaitTimedOut` at this time."""


class RunChild(Effect, frozen=True, kw_only=True):
    """Start a child run and wait for its end. The outcome is the child's final state."""

    program: Program
    input: Any = None
    id: str | None = None
    """The id of the child; None lets the engine derive one from the visit."""


class ItemPolicy(msgspec.Struct, frozen=True):
    """How the items of one item function are retried, and whether they may pause."""

    retry: Retry = ONCE
    pausable: Pausable = "yes"
    max_pause_ms: int | None = None


class Program(ABC, Generic[InputT, ResultT]):
    """Something that a worker can run: a graph, a state machine, a list of steps.

    ``Program[Order, Receipt]`` takes an ``Order`` as its input, and its result is a ``Receipt``.

    Every method must return the same for the same arguments, in every process that has this
    version of the program. The engine calls methods from threads, too, so a checked program must
    not change.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the program. Its runs keep this name."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the program, from 1.

        A worker continues a run with the version that started it, or with its newest version if it
        does not have that one. It leaves runs of versions newer than all of its own.
        """

    @property
    def durability(self) -> Durability:
        """When the runs of the program become durable, unless a start says otherwise."""
        return "every_node"

    @property
    def needs(self) -> Needs:
        """What a worker's process must have to run the program; a worker without it does not start.

        What is not named here is found by use: a worker that lacks it leaves the run to others.
        """
        return _NO_NEEDS

    @property
    def expires_in_ms(self) -> int | None:
        """How long after their start the runs expire, unless a start says otherwise."""
        return None

    def wait_warnings(self, expires_in_ms: int) -> tuple[str, ...]:
        """Return for people which waits cannot fit into a run that expires after that time."""
        return ()

    @property
    def signals(self) -> Mapping[str, Any]:
        """The types of the payloads of signals, by name; `msgspec.UNSET` for any payload."""
        return {}

    @property
    def takes_other_signals(self) -> bool:
        """Whether runs of the program also take signals that `signals` does not name."""
        return True

    @property
    def item_policies(self) -> Mapping[str, ItemPolicy]:
        """The item functions that a map of its runs can call, by name."""
        return {}

    def typed_item(self, item: str, stored: Any) -> Any:
        """Return a stored result of an item function in its type.

        Raises:
            InvalidState: the result does not fit the type.
        """
        return stored

    @property
    def input_type(self) -> Any:
        """The type of the input of a run; `msgspec.UNSET` if it is not known."""
        return msgspec.UNSET

    @property
    def wraps_values(self) -> bool:
        """Whether a run's state is ``{"input": …, "result": …}``, as that of a function.

        Otherwise the state begins as the input of the run, and is its result at the end.
        """
        return False

    def draw(self) -> str:
        """Return a Mermaid flowchart of the program; empty if it has none."""
        return ""

    def check(self) -> Self:
        """Return the program if it can be run. It must not change from then on.

        Raises:
            InvalidGraph: the program cannot be run.
        """
        return self

    def admitted_input(self, input: Any) -> Any:
        """Return the input of a start; ``input`` is None if the start gives none."""
        return {} if input is None else input

    @abstractmethod
    def start(self, input: InputT, seed: str) -> Execution:
        """Return the execution of a new run.

        Raises:
            InvalidInput: the input does not fit the program.
        """

    @abstractmethod
    def effect(self, execution: Execution, branch: str) -> Effect:
        """Return the effect that one branch needs next. The branch stands at a node.

        Raises:
            UnknownNode: the program does not have the node.
        """

    @abstractmethod
    def step(self, execution: Execution, branch: str, outcome: Outcome, now_ms: int) -> Decision:
        """Decide what follows from the outcome of a branch's effect.

        Retries, too, are decided here. The program draws jitter from ``execution.seed``.

        Raises:
            UnknownNode: the program does not have the node at which the branch stands.
        """

    def outstanding(self, execution: Execution) -> tuple[Effect, ...]:
        """Return all effects that the run needs next; none if the run has ended.

        Raises:
            UnknownNode: the program does not have a node at which the run stands.
        """
        if not execution.branches and execution.ending is None:
            return (self.effect(execution, ""),)
        return tuple([self.effect(execution, path) for path, _ in execution.runnable_strands()])

    def retried(
        self, execution: Execution, node: str | None, request: str, now_ms: int
    ) -> tuple[Event, ...]:
        """Decide how a failed run continues after an operator's retry, optionally at a node."""
        return (Rerouted(now_ms, node, "retried", request),)

    def retries_left(self, execution: Execution) -> int:
        """Return how many failures the run survives where it stands. Operators see this number."""
        return 0

    def typed_input(self, state: dict[str, Any]) -> Any:
        """Return what a caller gets as the input of a run that started with this state.

        Raises:
            InvalidState: the state does not fit the program.
        """
        return self.result(state)

    def typed_state(self, state: dict[str, Any]) -> Any:
        """Return what a caller gets as the state of a run, at any time.

        Raises:
            InvalidState: the state does not fit the program.
        """
        return self.result(state)

    def result(self, state: dict[str, Any]) -> ResultT:
        """Return what a caller gets as the result of a run that finished with this state.

        Raises:
            InvalidState: the state does not fit the program.
        """
        return cast(ResultT, state)
