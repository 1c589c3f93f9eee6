"""What packages above the engine offer to nodes, such as the documents of their store."""

from __future__ import annotations

from typing import TypeVar

from holdfast.engine.execution.visit_facts import VisitFacts

__all__ = ["offer_of"]

T = TypeVar("T")


def offer_of(context: VisitFacts, kind: type[T]) -> T:
    """Return what is offered to the nodes of this process under its class.

    Raises:
        LookupError: nothing of this class is.
    """
    offers = context._visit.claimed.kernel.offers  # pyright: ignore[reportPrivateUsage]
    if kind not in offers:
        raise LookupError(f"this process offers no {kind.__name__} to its nodes")
    return offers[kind]
