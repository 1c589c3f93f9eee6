"""A program that runs Python functions: what the engine needs to perform a `RunNode`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from holdfast.graph.items import ItemFunction
from holdfast.graph.node import Node
from holdfast.model.execution import Execution
from holdfast.model.program import InputT, ItemPolicy, Program, ResultT

__all__ = ["FunctionProgram"]


class FunctionProgram(Program[InputT, ResultT]):
    """A program that has nodes which are Python functions. Only it may ask for `RunNode`."""

    @property
    @abstractmethod
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by their names."""

    @property
    def items(self) -> Mapping[str, ItemFunction[Any]]:
        """The item functions of its maps by their names."""
        return {}

    @property
    def item_policies(self) -> Mapping[str, ItemPolicy]:
        """How the items of each item function are retried, by name."""
        return {name: item.policy for name, item in self.items.items()}

    def typed_item(self, item: str, stored: Any) -> Any:
        """Return a stored result of an item function in its type.

        Raises:
            InvalidState: the result does not fit the type.
        """
        found = self.items.get(item)
        return stored if found is None else found.typed_result(stored)

    @abstractmethod
    def enter(self, execution: Execution, branch: str = "") -> Any:
        """Return the state as the function of a branch's node gets it.

        Raises:
            InvalidState: the stored state does not match the type.
        """

    @abstractmethod
    def delta(self, execution: Execution, branch: str, returned: Any) -> dict[str, Any]:
        """Return what the function of a branch's node changed in the state, in its durable form.

        Raises:
            InvalidResult: what it returned does not fit the type, or cannot be stored.
        """

    @abstractmethod
    def unreturned_changes(
        self, execution: Execution, branch: str, *, state: Any, returned: Any
    ) -> list[str]:
        """Return the fields that a function changed in the state that `enter` gave it, in vain.

        These are the fields that ``returned`` does not name.
        """

    @abstractmethod
    def unreturned_text(self, node: str, fields: list[str]) -> str:
        """Return for people what becomes of such changes, and what to write instead."""
