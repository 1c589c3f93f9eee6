"""A workflow as a program: what the engine asks of it while a run executes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from holdfast.errors import HoldfastError, InvalidGraph, InvalidInput, InvalidResult, InvalidState
from holdfast.graph.graph import Graph
from holdfast.graph.lost_types import check_kept_type
from holdfast.graph.mismatch import Mismatch, type_for_people
from holdfast.graph.node import Node
from holdfast.graph.program import GraphProgram
from holdfast.graph.value_codec import ValueCodec, value_faults
from holdfast.graph.workflow_signature import WorkflowSignature, resolved_types
from holdfast.model.execution import Execution
from holdfast.model.function_state import INPUT, RESULT
from holdfast.model.type_parameters import InputT, ResultT

__all__ = ["WorkflowProgram"]


class WorkflowProgram(GraphProgram[InputT, ResultT]):
    """Runs one function as the only node of a graph.

    The state of a run is ``{"input": …}`` and, after the function has returned, ``"result"``.
    """

    def __init__(
        self, function: Callable[..., Any], graph: Graph, signature: WorkflowSignature
    ) -> None:
        """Take the function, and the graph with one node that runs it."""
        # First, because it copies the function's attributes.
        functools.update_wrapper(cast(Any, self), function)
        super().__init__(graph._declaration)
        self._function = function
        self._signature = signature

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The only node, by the name of the workflow."""
        return self._plan.wiring.nodes

    @property
    def wraps_values(self) -> bool:
        """Whether the state holds input and result as fields: always."""
        return True

    @property
    def input_type(self) -> Any:
        """The type of the input; that of None if the function takes none."""
        return self._types[0]

    def check(self) -> Self:
        """Return the workflow if it can run.

        Raises:
            InvalidGraph: the workflow cannot run. The error lists everything that is wrong with it.
        """
        kinds = zip(("input", "result"), self._types, strict=True)
        faults = [fault for what, kind in kinds for fault in value_faults(kind, what)]
        if faults:
            raise InvalidGraph(
                f"workflow {self.name!r:.80} cannot be run: " + "; ".join(faults), faults=faults
            )
        return super().check()

    def admitted_input(self, input: Any) -> Any:
        """Return the input of a start: None is an input like any other."""
        return input

    def start(self, input: Any, seed: str) -> Execution:
        """Return the execution of a new run.

        Raises:
            InvalidInput: the input does not fit its type.
        """
        parameter = self._signature.input
        if input is None and parameter is not None and parameter.default is not parameter.empty:
            input = parameter.default
        if parameter is None and input == {}:
            input = None
        try:
            stored = self._codecs[0].stored_input(input)
        except InvalidInput:
            if input is not None:
                raise
            raise InvalidInput(
                f"no input was given; workflow {self.name!r:.80} takes "
                f"{type_for_people(self._types[0])}"
            ) from None
        state = {} if parameter is None else {INPUT: stored}
        return Execution(state=state, seed=seed, node=self._plan.wiring.start)

    def enter(self, execution: Execution, branch: str = "") -> Any:
        """Return the input as the function gets it; None if the function takes none.

        Raises:
            InvalidState: the stored input does not fit its type.
        """
        return self.typed_input(execution.visible_state(branch))

    def delta(self, execution: Execution, branch: str, returned: Any) -> dict[str, Any]:
        """Return the result as a change of the state.

        Raises:
            InvalidResult: the result does not fit its type, or cannot be stored.
        """
        if self._types[1] is Any and not self._names_result:
            remedy = f"annotate the result, def {self._function.__name__}(…) -> {{type}}"
            try:
                check_kept_type(returned, remedy=remedy)
            except Mismatch as lost:
                raise InvalidResult(f"the result is {lost}") from None
        return {RESULT: self._codecs[1].stored_result(returned)}

    def unreturned_changes(
        self, execution: Execution, branch: str, *, state: Any, returned: Any
    ) -> list[str]:
        """Return the fields of the input that the function changed in place, in vain."""
        if self._signature.input is None or returned is state:
            return []
        try:
            stored = execution.visible_state(branch)[INPUT]
            return self._codecs[0].changed_parts(state, stored)
        except HoldfastError:
            return []  # what the function did to its input cannot be stored: it does not matter

    def unreturned_text(self, node: str, fields: list[str]) -> str:
        """Return for people what becomes of changes to the input."""
        named = ", ".join(f"{field!r:.80}" for field in fields[:8] if field)
        changed = f"{named} of its input" if named else "its input"
        return (
            f"workflow {self.name!r:.80} changed {changed} in place: the run does not keep the "
            "change. Change a copy, and return what callers need"
        )

    def typed_input(self, state: dict[str, Any]) -> Any:
        """Return the input in a stored state.

        Raises:
            InvalidState: the stored input does not fit its type.
        """
        if self._signature.input is None:
            return None
        if INPUT not in state:
            raise InvalidState(
                f"the run has no input for workflow {self.name!r:.80}: another kind of program "
                "started it, or a version without an input"
            )
        return self._codecs[0].typed(state[INPUT], INPUT)

    def typed_state(self, state: dict[str, Any]) -> Any:
        """Return the input and, after the function has returned, the result of a run, by name.

        Raises:
            InvalidState: a stored value does not fit its type.
        """
        typed: dict[str, Any] = {}
        if INPUT in state:
            typed[INPUT] = self.typed_input(state)
        if RESULT in state:
            typed[RESULT] = self.result(state)
        return typed

    def result(self, state: dict[str, Any]) -> Any:
        """Return what the function of a finished run returned.

        Raises:
            InvalidState: the stored result does not fit its type.
        """
        return self._codecs[1].typed(state.get(RESULT), RESULT)

    @functools.cached_property
    def _types(self) -> tuple[Any, Any]:
        """The types of input and result, resolved late: the function may be above its types."""
        given, returned = resolved_types(self._function, self._signature)
        return type(None) if self._signature.input is None else given, returned

    @functools.cached_property
    def _names_result(self) -> bool:
        empty = inspect.Signature.empty
        return inspect.signature(self._function).return_annotation is not empty

    @functools.cached_property
    def _codecs(self) -> tuple[ValueCodec, ValueCodec]:
        return ValueCodec(self._types[0]), ValueCodec(self._types[1])
