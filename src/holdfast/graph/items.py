"""Item functions: what a map calls for each index. They are part of a graph, and not routed to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from holdfast.errors import InvalidGraph
from holdfast.graph.declaration import GraphDeclaration
from holdfast.graph.node import (
    Node,
    function_fault,
    function_identity,
    is_sync_function,
    name_fault,
    name_of,
    takes_context,
)
from holdfast.graph.spans import positive_ms
from holdfast.graph.value_codec import ValueCodec
from holdfast.graph.workflow_signature import WorkflowSignature, resolved_types
from holdfast.model.durations import Duration
from holdfast.model.policy import ONCE, Pausable, Retry
from holdfast.model.program import ItemPolicy

__all__ = ["ItemDecorator", "ItemFunction", "find_item", "items_of"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class ItemFunction(Generic[FunctionT]):
    """An item function of a graph, with the types of its value and of its result."""

    def __init__(self, node: Node, signature: WorkflowSignature) -> None:
        self.node = node
        self._signature = signature

    @property
    def policy(self) -> ItemPolicy:
        """How its items are retried, and whether they may pause."""
        return ItemPolicy(self.node.retry, self.node.pausable, self.node.max_pause_ms)

    def typed_value(self, stored: Any) -> Any:
        """Return the value of an item as the function gets it.

        Raises:
            InvalidState: the value does not fit the type of the parameter.
        """
        return self._codecs[0].typed(stored, "value of the item")

    def stored_result(self, returned: Any) -> Any:
        """Return what the function returned in its durable form.

        Raises:
            InvalidResult: the result does not fit its type, or cannot be stored.
        """
        return self._codecs[1].stored_result(returned)

    def typed_result(self, stored: Any) -> Any:
        """Return a stored result in the type that the function returns.

        Raises:
            InvalidState: the result does not fit the type.
        """
        return self._codecs[1].typed(stored, "result of the item")

    @functools.cached_property
    def _codecs(self) -> tuple[ValueCodec, ValueCodec]:
        given, returned = resolved_types(self.node.function, self._signature)
        return ValueCodec(given), ValueCodec(returned)


class ItemDecorator:
    """Registers functions as items of one graph: ``@graph.item`` or ``@graph.item(retry=…)``."""

    def __init__(self, declaration: GraphDeclaration) -> None:
        self._declaration = declaration

    @overload
    def __call__(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        pausable: Pausable = "yes",
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        max_pause: Duration | None = None,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def __call__(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        pausable: Pausable = "yes",
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        max_pause: Duration | None = None,
    ) -> Any:
        """Register a function that a map calls for each item, and return the function unchanged.

        The function takes ``(index)`` or ``(index, ctx)``; the first is the value of the item if
        the map was given values. What it returns has any type with a durable form.

        Raises:
            InvalidGraph: an argument is invalid, or the graph was checked already.
            InvalidRequest: ``timeout`` or ``max_pause`` is not a duration.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            item = name_of(function) if name is None else name
            if fault := name_fault(item) or function_fault(function):
                raise InvalidGraph(f"item {item!r:.80}: {fault}")
            node = Node(
                name=item,
                function=function,
                is_sync=is_sync_function(function),
                takes_context=takes_context(function),
                pausable=pausable,
                retry=retry,
                timeout_ms=positive_ms(timeout, "timeout"),
                max_pause_ms=positive_ms(max_pause, "max_pause"),
            )
            first = next(iter(inspect.signature(function).parameters.values()))
            signature = WorkflowSignature(first, node.takes_context)
            self._declaration.add_item(node, ItemFunction(node, signature))
            return function

        return register if function is None else register(function)


def items_of(declaration: GraphDeclaration) -> Mapping[str, ItemFunction[Any]]:
    """Return the item functions of a graph and of the graphs that it includes, by name.

    Those of included graphs are called ``name/item``, as their nodes are.
    """
    found: dict[str, Any] = dict(declaration.items)
    for name, part in declaration.subgraphs.items():
        found |= {f"{name}/{item}": each for item, each in items_of(part.graph).items()}
    return found


def find_item(items: Mapping[str, ItemFunction[Any]], function: Any) -> str | None:
    """Return the name of an item function; None if the function is none of them."""
    identity = function_identity(function)
    for name, item in items.items():
        if function_identity(item.node.function) == identity:
            return name
    return None
