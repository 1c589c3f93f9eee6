"""The graphs that a worker runs, by name and version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.errors import InvalidRequest
from holdfast.model.program import Program

__all__ = ["Programs"]


class Programs:
    """The graphs of one worker, each in one or more versions."""

    def __init__(self, graphs: Iterable[Program]) -> None:
        """Check the graphs.

        Raises:
            InvalidGraph: a graph cannot be run.
            InvalidRequest: there is no graph, one of them is no graph, or two have the same name
                and version.
        """
        self._versions: dict[str, dict[int, Program]] = {}
        for graph in _listed(graphs):
            if not isinstance(graph, Program):
                raise InvalidRequest(
                    f"graphs must contain graphs or workflows, got {graph!r:.80}", field="graphs"
                )
            versions = self._versions.setdefault(graph.check().name, {})
            if versions.setdefault(graph.version, graph) is not graph:
                raise InvalidRequest(
                    f"graphs must differ in name or version, got two graphs {graph.name!r} of "
                    f"version {graph.version}",
                    field="graphs",
                )
        if not self._versions:
            raise InvalidRequest("graphs must contain at least one graph", field="graphs")

    def __iter__(self) -> Iterator[Program]:
        for versions in self._versions.values():
            yield from versions.values()

    def __contains__(self, name: str) -> bool:
        return name in self._versions

    @property
    def names(self) -> Sequence[str]:
        """The names of the graphs, in the order in which they were given."""
        return tuple(self._versions)

    def select(self, name: str, version: int) -> Program:
        """Return the graph that continues a run of this version.

        Without that version it is the newest one: the journal holds every decision of the run,
        the route included, so another version can continue it.
        """
        versions = self._versions[name]
        return versions.get(version) or versions[max(versions)]

    def find(self, name: str) -> Program | None:
        """Return the newest version of a graph; None if the worker does not have the graph."""
        versions = self._versions.get(name)
        return None if versions is None else versions[max(versions)]


def _listed(graphs: Any) -> Iterable[Program]:
    if isinstance(graphs, Program):
        raise InvalidRequest(
            f"graphs must be a list, got {graphs.name!r:.80} alone: put it into a list, as in "
            f"hf.worker([{graphs.name:.80}])",
            field="graphs",
        )
    if not isinstance(graphs, Iterable):
        raise InvalidRequest(f"graphs must be a list of graphs, got {graphs!r:.80}", field="graphs")
    return graphs  # pyright: ignore[reportUnknownVariableType]
