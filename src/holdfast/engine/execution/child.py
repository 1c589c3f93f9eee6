"""A child of a run, as the node that started it refers to it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from holdfast.engine.effects.begun_requests import BegunRequests, tracked
from holdfast.engine.execution.conditions import ChildCondition
from holdfast.model.program import Program, ResultT

__all__ = ["Child", "ResultSource"]


class ResultSource(Protocol):
    """The context of a node, which returns the results of children."""

    def result_of(self, child: Child[Any], /) -> Coroutine[Any, Any, Any]:
        """Return a child's result."""
        ...


class Child(ChildCondition[ResultT]):
    """A run that a node started. Its result is a ``ResultT``."""

    def __init__(
        self,
        context: ResultSource,
        id: str,
        graph: Program[Any, ResultT] | None,
        requests: BegunRequests,
    ) -> None:
        self._context = context
        self._requests = requests
        self.graph = graph
        self.id = id

    @tracked
    async def result(self) -> ResultT:
        """Return the final state of the child; pause this run until the child has ended.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the child did not finish.
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer stored.
            ResultTaken: another visit took the result, and the child was not retried since.
        """
        return await self._context.result_of(self)

    def __repr__(self) -> str:
        return f"<child {self.id!r}>"
