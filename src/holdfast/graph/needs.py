"""What the nodes of a graph need from the process that runs them."""

from __future__ import annotations

from typing import Any, cast

from holdfast.errors import InvalidGraph
from holdfast.graph.declaration import GraphDeclaration
from holdfast.model.needs import Needs

__all__ = ["declared_needs", "needs_of"]


def declared_needs(models: Any, quotas: Any) -> Needs:
    """Return what a user declared as ``Graph(models=…, quotas=…)``.

    Raises:
        InvalidGraph: not a list of names, or a quota for a model that ``models`` does not name.
    """
    named = None if models is None else _names(models, "models")
    limited = _names(() if quotas is None else quotas, "quotas")
    unknown = sorted(limited - (named or frozenset()))
    if unknown:
        raise InvalidGraph(
            f"quotas must name models that models=… names, too, got {unknown[0]!r:.80}"
        )
    return Needs(models=named or frozenset(), quotas=limited, complete=named is not None)


def needs_of(declaration: GraphDeclaration) -> Needs:
    """Return what a graph needs, with the graphs that it includes."""
    needs = declaration.needs
    for part in declaration.subgraphs.values():
        needs = needs.with_part(needs_of(part.graph))
    return needs


def _names(given: Any, field: str) -> frozenset[str]:
    if isinstance(given, list | tuple | set | frozenset):
        names: tuple[Any, ...] = tuple(cast(Any, given))
        if all(isinstance(name, str) and name for name in names):
            return frozenset(names)
    raise InvalidGraph(f"{field} must be a list of names of models, got {given!r:.80}")
